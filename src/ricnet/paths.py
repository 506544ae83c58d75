"""Paths as users and files write them."""

import os
import re
from pathlib import Path

from ricnet.errors import RicnetError

_WITH_TARGET = re.compile(r"(.*?\.(?:(?:csv|tsv|jsonl)(?:\.gz)?|parquet))#(.+)", re.IGNORECASE | re.DOTALL)

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def user_path(text: str | Path) -> Path:
    """The path that is meant, with ~ as the user's home; refused where no file can have such a name."""
    if _ADDRESS.match(str(text)):
        raise RicnetError(
            f"{str(text)[:200]} is an address, and only data sets known by name are downloaded (ric data list); "
            "download it first, for instance with curl -LO, and give the path of the file."
        )
    try:
        if not str(text) or "\0" in str(text):
            raise ValueError("it is empty" if not str(text) else "it has a zero byte")
        path = Path(text).expanduser()
        os.fsencode(path)
        path.exists()
    except UnicodeEncodeError as error:
        raise RicnetError(f"{str(text)[:200]!a} cannot be a path (no file has such letters); check it.") from error
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # too long, no text, empty, the home of nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise RicnetError(f"{str(text)[:200]!r} cannot be a path ({reason}); check its spelling.") from error
    return path


def split_target(spec: str) -> tuple[str, str | None]:
    """my.csv#label is the table my.csv with the classes in its column `label`, whose name may have slashes."""
    match = _WITH_TARGET.fullmatch(spec)
    return (match[1], match[2]) if match else (spec, None)
