"""Files that a power cut does not empty: the disk holds what is in them before they take their name."""

import os
from contextlib import suppress
from pathlib import Path


def take_name(draft: Path, path: Path, keep: Path | None = None) -> None:
    """Flush what was written beside the target, then rename: a crash leaves the old file or the new one.

    `keep` is where the old file goes; a crash between the two renames leaves it there, and none at `path`.
    """
    sync(draft)
    if keep is not None and path.exists():
        path.replace(keep)
    draft.replace(path)
    sync_names(path.parent)


def sync(path: Path) -> None:
    """Wait until the disk holds what was written to a file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_names(folder: Path) -> None:
    """Wait until the disk knows the new names in a folder, where the system can say so (Windows cannot)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
