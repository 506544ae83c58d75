"""Aliases of public names that have moved; each is kept for one version."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved(module: str, **homes: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose names are elsewhere now. (Pickles of the last version find them so.)"""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        told = f"{module}.{name} is now {homes[name]}.{name}; the old path goes in the next version."
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return getattr(import_module(homes[name]), name)

    return find
