"""Archives, unpacked so that a folder is either whole or absent, and never more than a data set needs."""

import gzip
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from ricnet.errors import RicnetError

LARGEST = 4 << 30
"""Bytes of an archive once it is unpacked; the largest data set we know takes a third of it."""
MOST_MEMBERS = 200_000
LARGEST_READ = 1 << 14
"""Bytes asked for at once. tarfile copies files in pieces of this size, so more can only be a header, which is whole in
memory and searched by patterns whose time grows with its square."""


class _Refused(Exception):
    pass


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
        with _opened(archive) as stream, tarfile.open(fileobj=_Bounded(stream), mode="r:") as files:
            for count, member in enumerate(files):
                _check(member, count)
                files.extract(member, into, filter="data")
    except tarfile.FilterError as error:
        raise RicnetError(
            f"{archive} would write outside its folder ({error}), so it was not unpacked; get the official archive."
        ) from error
    except _Refused as error:
        raise RicnetError(
            f"{archive} holds {error}, as no data set does, so it was not unpacked; get the official archive."
        ) from error
    except Exception as error:  # cut-off streams fail as EOFError, zlib.error, ReadError, …
        raise RicnetError(
            f"{archive} could not be unpacked ({error}); delete it and get a whole copy, or free disk space."
        ) from error


def _opened(archive: Path) -> io.BufferedIOBase:
    """The tar within: gzip is all that data sets come in, and other compressions take memory as they like."""
    with archive.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(archive) if compressed else archive.open("rb")


def _check(member: tarfile.TarInfo, count: int) -> None:
    """No links: they are how archives reach outside of their folder, past the filters of several Python versions."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
        raise _Refused(f"{member.name!r}, neither a file nor a folder")
    if member.size < 0:  # some versions of tarfile would go round in circles
        raise _Refused(f"{member.name!r}, of {member.size} bytes")
    if count >= MOST_MEMBERS:
        raise _Refused(f"more than {MOST_MEMBERS:,} files")


class _Bounded(io.RawIOBase):
    """A stream that ends with an error where it would go on for too long, or is asked for too much at once."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise _Refused(f"a header of {size:,} bytes")
        self._refuse_beyond(self.tell() + size)
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._refuse_beyond(offset)
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _refuse_beyond(self, place: int) -> None:
        if place > LARGEST:
            raise _Refused(f"more than {LARGEST / 1e9:.1f} GB")


def _settle(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # another process was faster, and its copy is as good
            raise
