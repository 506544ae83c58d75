"""One file per system; `METHODS` finds them by name."""

from typing import Any

from ricnet.methods.method import Method
from ricnet.methods.ric import RIC
from ricnet.methods.supervised import Supervised

METHODS: dict[str, type[Method[Any]]] = {method.name: method for method in (RIC, Supervised)}

__all__ = ["METHODS", "RIC", "Method", "Supervised"]
