import os
import signal
from collections.abc import Callable
from functools import cache

import pytest
from problems import CPU, blobs, configured

from ricnet.data import Dataset
from ricnet.training.api import run
from ricnet.training.run import RunFolder
from ricnet.training.trainer import Trainer


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return Dataset("blobs", blobs(96, 0), blobs(30, 1), blobs(60, 2), ("a", "b", "c"))


@pytest.fixture(scope="session")
def finished(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """A finished run of a method; tests read it and leave it alone."""

    @cache
    def made(method: str) -> RunFolder:
        folder = RunFolder(tmp_path_factory.mktemp(method) / "run")
        run(configured(dataset, method), dataset, folder, CPU)
        return folder

    return made


@pytest.fixture
def after_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[Trainer], None]], None]:
    """Have something done to a trainer after an update."""
    step = Trainer._step

    def arrange(update: int, act: Callable[[Trainer], None]) -> None:
        def step_and_act(self: Trainer) -> None:
            step(self)
            if self.update == update:
                act(self)

        monkeypatch.setattr(Trainer, "_step", step_and_act)

    return arrange


@pytest.fixture
def stop_after(after_update: Callable[..., None]) -> Callable[[int], None]:
    """Ask a run to stop, as Ctrl-C does."""
    return lambda update: after_update(update, lambda _: os.kill(os.getpid(), signal.SIGINT))
