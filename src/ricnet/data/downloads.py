"""Download published files from mirrors, check and unpack them. An unpacked folder is complete or absent."""

import gzip
import io
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pooch
from filelock import FileLock

from ricnet.errors import RicnetError, setting

Progress = Callable[[str, int, int | None], None]
"""Called with the name of the file, the bytes so far, and the total (None if the host does not say)."""

_CHUNK = 1 << 18
_TIMEOUT_S = 30


@dataclass(frozen=True)
class PublishedFile:
    name: str
    md5: str
    urls: tuple[str, ...]
    forms: tuple[str, ...]
    """Names of the file or of its unpacked folder; the first one found is read."""
    size: int | None = None

    def find(self, places: tuple[Path, ...]) -> Path | None:
        candidates = (place / form for form in self.forms for place in places)
        return next((path for path in candidates if path.exists()), None)


def fetch(file: PublishedFile, folder: Path, progress: Progress | None = None) -> Path:
    """Try each mirror in turn. A broken transfer is resumed, also by another process or from another mirror. A second
    process that wants the same file waits for the first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{file.name}.lock"):
            return _fetch(file, folder, progress)
    except OSError as error:
        raise RicnetError(
            f"{folder} cannot be written ({error}); choose another with {setting('data_dir')} or RICNET_DATA."
        ) from error


def _fetch(file: PublishedFile, folder: Path, progress: Progress | None) -> Path:
    reasons = []
    for url in file.urls:
        try:
            downloader = _resuming(folder / f".{file.name}.part", file.name, progress)
            return Path(pooch.retrieve(url, f"md5:{file.md5}", fname=file.name, path=folder, downloader=downloader))
        except (OSError, HTTPException) as error:
            reasons.append(f"{urlsplit(url).hostname}: {getattr(error, 'reason', error)}")
        except ValueError:  # pooch found another checksum and removed the file
            reasons.append(f"{urlsplit(url).hostname}: the file that came has a wrong checksum")
    raise RicnetError(
        f"{file.name} could not be fetched ({'; '.join(reasons)}); "
        f"get it by hand, for instance from {file.urls[0]}, and put it into {folder}."
    )


def _resuming(part: Path, name: str, progress: Progress | None) -> Callable[[str, Any, Any], None]:
    """A downloader for pooch that keeps a partial file; pooch checks the checksum and moves the file into place."""

    def download(url: str, output_file: Any, _pooch: Any) -> None:
        try:
            _transfer(url, part, name, progress)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            part.unlink()  # longer than the file, so it is not its beginning
            _transfer(url, part, name, progress)
        part.replace(output_file)

    return download


def _transfer(url: str, part: Path, name: str, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "ricnet"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as sink:
            while chunk := response.read(_CHUNK):
                sink.write(chunk)
                done += len(chunk)
                if progress:
                    progress(name, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


# Archives

LARGEST = 4 << 30
"""Maximum bytes of an unpacked archive; the largest known data set has a third."""
MOST_MEMBERS = 200_000
LARGEST_READ = 1 << 14
"""Maximum bytes of one read. tarfile copies files in pieces of this size, so a larger read is a header, which tarfile
keeps in memory and searches in quadratic time."""


class _Refused(Exception):
    """The archive holds something that no data set needs."""


def unpack(archive: Path, folder: str) -> Path:
    """Unpack `folder` of the archive beside it; an interrupted attempt leaves only a hidden temporary folder."""
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
        try:
            (beside / folder).rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
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
            f"{archive} holds {error}, which no data set needs, so it was not unpacked; get the official archive."
        ) from error
    except Exception as error:  # cut-off streams fail as EOFError, zlib.error, ReadError, …
        raise RicnetError(
            f"{archive} could not be unpacked ({error}); delete it and get a complete copy, or free disk space."
        ) from error


def _opened(archive: Path) -> io.BufferedIOBase:
    """The tar file within gzip; other compressions are refused, because they may take any amount of memory."""
    with archive.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(archive) if compressed else archive.open("rb")


def _check(member: tarfile.TarInfo, count: int) -> None:
    """Only files and folders: links escape the filters of several Python versions."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
        raise _Refused(f"{member.name!r}, neither a file nor a folder")
    if member.size < 0:  # some versions of tarfile loop forever
        raise _Refused(f"{member.name!r}, of {member.size} bytes")
    if count >= MOST_MEMBERS:
        raise _Refused(f"more than {MOST_MEMBERS:,} files")


class _Bounded(io.RawIOBase):
    """A stream that refuses reads beyond `LARGEST` bytes, or of more than `LARGEST_READ` at once."""

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
