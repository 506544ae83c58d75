"""One process at a time in a folder: a lock that the system itself takes back when its holder dies."""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ricnet.errors import RicnetError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


@contextmanager
def locked(folder: Path, tell: Callable[[str], object]) -> Iterator[None]:
    """Hold the folder's lock, or raise with the name of who does.

    Where there are no such locks nobody is stopped: on Windows silently, on a file system without them after `tell`.
    """
    if sys.platform == "win32":
        yield
        return
    path = folder / LOCK
    descriptor = _acquire(path, tell)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is still held, so that the name is never taken from the next holder
        os.close(descriptor)


def refuse_if_locked(folder: Path) -> None:
    """The same sentence, for those who do not want the lock yet."""
    if (folder / LOCK).exists():
        with locked(folder, lambda _: None):
            pass


def _acquire(path: Path, tell: Callable[[str], object]) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RicnetError(
                f"{path.parent} cannot be written to ({error.strerror}); make it writable or choose another --out."
            ) from error
        _lock(descriptor, path.parent, tell)
        if _is_at(path, descriptor):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)  # whoever held it has just removed the file: this is a lock of nothing


def _lock(descriptor: int, folder: Path, tell: Callable[[str], object]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 300, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise RicnetError(f"{folder} is in use by {holder}; wait until it ends, or choose another --out.") from None
    except OSError as error:
        tell(f"{folder} cannot be locked ({error.strerror}); see to it that nothing else trains there.")


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """For the sentence that others get; a full disk has no room for it, which does no harm."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
