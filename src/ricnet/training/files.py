"""Files that are either wholly there or not at all, and JSON that came from one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ricnet.durable import sync as sync
from ricnet.durable import sync_names as sync_names
from ricnet.durable import take_name
from ricnet.errors import RicnetError
from ricnet.untrusted import parse_json, read_text


class Unwritable(RicnetError):
    """A full disk, a read-only one, a folder that is gone."""


def write_atomically(path: Path, write: Callable[[Path], None], keep: Path | None = None) -> None:
    """Write beside the target, flush to the disk, then rename: a crash leaves the old file or the new one.

    `keep` is where the old file goes; a crash between the two renames leaves it there, and none at `path`.
    """
    draft = draft_of(path)
    with writing(path):
        try:
            write(draft)
            take_name(draft, path, keep)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Where a file is written before it takes its name; all that a killed process leaves."""
    return path.with_name(f".{path.name}.draft")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the system says into a sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise Unwritable(f"{path} could not be written ({reason}); free space or choose another --out.") from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        entry = parse_json(read_text(path))
    except (ValueError, OSError) as error:
        raise RicnetError(f"{path} cannot be read ({error}); restore it or train again.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f"{path} is not a file of ricnet's: it holds no JSON object; restore it or train again.")
    return entry
