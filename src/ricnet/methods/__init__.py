"""One file per system; `METHODS` finds them by name. To add one from outside the package:

@register_method
@dataclass(frozen=True)
class Mine(Supervised):
    name: ClassVar[str] = "mine"
    ...
"""

from typing import Any, TypeVar

from torch import nn

from ricnet.methods.act import ACT
from ricnet.methods.anytime import Anytime
from ricnet.methods.iterative import InSteps, Iterative
from ricnet.methods.method import Method
from ricnet.methods.pondernet import PonderNet
from ricnet.methods.ric import RIC
from ricnet.methods.supervised import ExitHeads, Supervised
from ricnet.nets.refiner import RecurrentClassifier

METHODS: dict[str, type[Method[Any]]] = {method.name: method for method in (RIC, Supervised, Anytime, ACT, PonderNet)}

Kind = TypeVar("Kind", bound=type[Method[Any]])


def register_method(method: Kind) -> Kind:
    """Make a method of your own available under its name, to `train`, `load` and the command line; a decorator."""
    METHODS[method.name] = method
    return method


def in_steps(method: Method[Any], model: nn.Module) -> InSteps[Any] | None:
    """How a method is asked one step after the other; None where it answers at once, or in a way of its own."""
    if isinstance(method, Supervised) and isinstance(model, ExitHeads):
        return method.at_exits(model)
    return method if isinstance(method, Iterative) and isinstance(model, RecurrentClassifier) else None


__all__ = ["ACT", "METHODS", "RIC", "Anytime", "Method", "PonderNet", "Supervised", "in_steps", "register_method"]
