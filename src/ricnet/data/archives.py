"""Archives, unpacked so that a folder is either whole or absent."""

import shutil
import tarfile
import tempfile
from pathlib import Path

from ricnet.errors import RicnetError


def unpack(archive: Path, folder: str) -> Path:
    """Unpack the archive's `folder` beside it; an interrupted attempt leaves only a hidden temporary folder."""
    target = archive.parent / folder
    if target.is_dir():
        return target
    try:
        beside = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=archive.parent))
    except OSError as error:
        raise RicnetError(
            f"{archive} cannot be unpacked, as {archive.parent} is not writable; unpack it by hand."
        ) from error
    try:
        _extract(archive, beside)
        if not (beside / folder).is_dir():
            raise RicnetError(f"{archive} does not contain the folder {folder}; put the official archive in its place.")
        _settle(beside / folder, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _extract(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as files:
            files.extractall(into, filter="data")
    except tarfile.FilterError as error:
        raise RicnetError(
            f"{archive} would write outside its folder ({error}), so it was not unpacked; get the official archive."
        ) from error
    except Exception as error:  # cut-off streams fail as EOFError, zlib.error, ReadError, …
        raise RicnetError(
            f"{archive} could not be unpacked ({error}); delete it and get a whole copy, or free disk space."
        ) from error


def _settle(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # another process was faster, and its copy is as good
            raise
