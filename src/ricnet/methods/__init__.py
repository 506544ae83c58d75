"""One file per system; `METHODS` finds them by name. To add one from outside the package:

@register_method
@dataclass(frozen=True)
class Mine(Supervised):
    name: ClassVar[str] = "mine"
    ...
"""

from typing import Any, TypeVar

from torch import nn

from ricnet.core.trajectory import Temperature
from ricnet.methods.act import ACT
from ricnet.methods.anytime import Anytime
from ricnet.methods.iterative import InSteps, Iterative
from ricnet.methods.method import Method
from ricnet.methods.pondernet import PonderNet
from ricnet.methods.ric import RIC
from ricnet.methods.supervised import AtExits, ExitHeads, Supervised
from ricnet.nets.refiner import RecurrentClassifier

METHODS: dict[str, type[Method[Any]]] = {method.name: method for method in (RIC, Supervised, Anytime, ACT, PonderNet)}

Kind = TypeVar("Kind", bound=type[Method[Any]])


def register_method(method: Kind) -> Kind:
    """Make a method of your own available under its name, to `train`, `load` and the command line; a decorator."""
    METHODS[method.name] = method
    return method


Asked = Method[Any] | InSteps[Any]
"""What refines inputs: a method, or one of those that it asks one step after the other."""


def in_steps(method: Asked, model: nn.Module, temperature: Temperature = 1.0) -> InSteps[Any] | None:
    """How a method is asked one step after the other; None where it answers at once, or in a way of its own. How sure
    it is, where it leaves by that, is asked of beliefs with this temperature."""
    if isinstance(method, AtExits):
        return method
    if isinstance(method, Supervised) and isinstance(model, ExitHeads):
        return method.at_exits(model, temperature)
    return method if isinstance(method, Iterative) and isinstance(model, RecurrentClassifier) else None


__all__ = [
    "ACT",
    "METHODS",
    "RIC",
    "Anytime",
    "Asked",
    "Method",
    "PonderNet",
    "Supervised",
    "in_steps",
    "register_method",
]
