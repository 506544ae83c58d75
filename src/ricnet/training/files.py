"""Files that are either wholly there or not at all, and JSON that came from one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ricnet.errors import RicnetError
from ricnet.untrusted import parse_json, read_text


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside the target, flush to the disk, then rename: a crash leaves the old file or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        write(draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
        raise RicnetError(f"{path} could not be written ({error}); free space or choose another --out.") from error
    finally:
        draft.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    try:
        entry = parse_json(read_text(path))
    except (ValueError, OSError) as error:
        raise RicnetError(f"{path} cannot be read ({error}); restore it or train again.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f"{path} is not a file of ricnet's: it holds no JSON object; restore it or train again.")
    return entry
