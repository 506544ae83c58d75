"""Questions put to many runs: comparisons, sweeps, theory experiments, the tables and figures of the paper."""
