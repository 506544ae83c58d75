"""The loop: configuration, schedule, checkpoints, resume, logging, and the folder a run leaves behind."""
