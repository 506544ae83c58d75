import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ricnet.errors import RicnetError
from ricnet.training.run import LOCK, locked, refuse_if_locked

HOLD = """
import sys, pathlib, warnings
from ricnet.training.run import locked
with locked(pathlib.Path(sys.argv[1]), warnings.warn):
    print("held", flush=True)
    sys.stdin.read()
"""


def never(sentence: str) -> None:
    pytest.fail(sentence)


def test_a_second_one_is_told_who_holds_it_and_a_later_one_gets_it(tmp_path: Path) -> None:
    with locked(tmp_path, never):
        for ask in (lambda: locked(tmp_path, never).__enter__(), lambda: refuse_if_locked(tmp_path)):
            with pytest.raises(RicnetError, match=rf"{tmp_path} is in use by process {os.getpid()} on .*wait until"):
                ask()
    assert not list(tmp_path.iterdir())
    refuse_if_locked(tmp_path)
    with locked(tmp_path, never):
        pass


def test_another_process_is_kept_out_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RicnetError, match=f"is in use by process {process.pid} on"):
            refuse_if_locked(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path, never):
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} ")


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder ends between our opening the file and our locking it: what we lock then has no name any more."""
    flock, calls = fcntl.flock, []

    def remove_and_lock(descriptor: int, how: int) -> None:
        calls.append(1)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with locked(tmp_path, never), pytest.raises(RicnetError, match="in use"):
        refuse_if_locked(tmp_path)
    assert len(calls) >= 3


def test_a_file_system_without_locks_stops_nobody_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    told: list[str] = []
    with locked(tmp_path, told.append):
        pass
    assert told == [f"{tmp_path} cannot be locked (No locks available); see to it that nothing else trains there."]


def test_a_read_only_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RicnetError, match=r"cannot be written to \(Read-only file system\); make it writable or"):
        locked(tmp_path, never).__enter__()
