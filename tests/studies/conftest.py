"""A tiny data file, and experiments on it."""

from pathlib import Path

import numpy as np
import pytest

from ricnet.studies.experiments import Benchmark, Experiment

QUICK = (("batch_size", 32), ("epochs", 2), ("width", 0.1))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = np.arange(160) % 3
    x = (2 * np.eye(4)[y] + rng.normal(size=(160, 4))).astype(np.float32)
    np.savez(tmp_path / "blobs.npz", x=x, y=y)
    return tmp_path / "blobs.npz"


@pytest.fixture
def ask(data: Path):
    def experiment(system: str, seeds: int = 1, **changes: object) -> Experiment:
        return Experiment(
            system, Benchmark("blobs", str(data)), tuple(range(seeds)), (*QUICK, *sorted(changes.items()))
        )

    return experiment
