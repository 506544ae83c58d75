"""Published files: where they are, how they are recognised, how they are fetched."""

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
"""Called with the file's name, the bytes so far and the bytes in all (None where the host does not say)."""

_CHUNK = 1 << 18
_TIMEOUT_S = 30


@dataclass(frozen=True)
class PublishedFile:
    name: str
    md5: str
    urls: tuple[str, ...]
    forms: tuple[str, ...]
    """Names under which it, or what it unpacks to, serves as well; the first one found is read."""
    size: int | None = None

    def find(self, places: tuple[Path, ...]) -> Path | None:
        candidates = (place / form for form in self.forms for place in places)
        return next((path for path in candidates if path.exists()), None)


def fetch(file: PublishedFile, folder: Path, progress: Progress | None = None) -> Path:
    """Try each mirror in turn; a broken transfer goes on where it stopped, be it in another process or mirror. A second
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
        except ValueError:  # pooch found another checksum and removed what came
            reasons.append(f"{urlsplit(url).hostname}: the file that came has a wrong checksum")
    raise RicnetError(
        f"{file.name} could not be fetched ({'; '.join(reasons)}); "
        f"get it by hand, for instance from {file.urls[0]}, and put it into {folder}."
    )


def _resuming(part: Path, name: str, progress: Progress | None) -> Callable[[str, Any, Any], None]:
    """A downloader for pooch that keeps what has arrived; pooch checks the whole and moves it into place."""

    def download(url: str, output_file: Any, _pooch: Any) -> None:
        try:
            _transfer(url, part, name, progress)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            part.unlink()  # longer than the file itself: not its beginning
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
