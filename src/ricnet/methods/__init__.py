"""One file per system; `METHODS` finds them by name."""

from typing import Any

from ricnet.methods.act import ACT
from ricnet.methods.anytime import Anytime
from ricnet.methods.method import Method
from ricnet.methods.pondernet import PonderNet
from ricnet.methods.ric import RIC
from ricnet.methods.supervised import Supervised

METHODS: dict[str, type[Method[Any]]] = {method.name: method for method in (RIC, Supervised, Anytime, ACT, PonderNet)}

__all__ = ["ACT", "METHODS", "RIC", "Anytime", "Method", "PonderNet", "Supervised"]
