"""Ctrl-C and polite kills: remember that we were asked to stop, and stop where nothing is lost."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from ricnet.errors import RicnetError

GO_ON = "stopped; nothing is lost. The same command goes on where it stopped."


class Interrupted(RicnetError):
    """Training was asked to stop and has saved what it had."""

    exit_code = 130  # as a shell reports Ctrl-C


class StopRequest:
    """While entered, the first SIGINT or SIGTERM sets `asked`; a second one ends the program at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
