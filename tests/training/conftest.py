import os
import signal
from collections.abc import Callable

import pytest

from ricnet.training.trainer import Trainer


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
