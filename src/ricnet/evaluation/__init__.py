"""What a trajectory is worth: accuracy, calibration, selective prediction, halting."""
