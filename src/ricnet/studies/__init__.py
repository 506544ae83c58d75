"""Studies of many runs: comparisons and sweeps."""
