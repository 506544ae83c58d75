"""Libraries that only some doors need: those of an extra, asked for before any work is done."""

from importlib.util import find_spec

from ricnet.errors import RicnetError


def require_extra(who: str, extra: str, *modules: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise RicnetError(f"{who} needs {', '.join(missing)}; install with: pip install 'ricnet[{extra}]'.")
