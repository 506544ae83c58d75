"""Evaluation: scores of trajectories, choices made on validation data, baselines."""
