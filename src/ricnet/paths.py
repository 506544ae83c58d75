"""Paths as users and files write them."""

from pathlib import Path

from ricnet.errors import RicnetError


def user_path(text: str | Path) -> Path:
    """The path that is meant, with ~ as the user's home; refused where no file can have such a name."""
    try:
        if "\0" in str(text):
            raise ValueError("it has a zero byte")
        path = Path(text).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, unreadable, a zero byte, the home of nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise RicnetError(f"{str(text)[:200]!r} cannot be a path ({reason}); check its spelling.") from error
    return path
