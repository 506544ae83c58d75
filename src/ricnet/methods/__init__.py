"""One file per system; `METHODS` finds them by name. To add one from outside the package:

@register_method
@dataclass(frozen=True)
class Mine(Supervised):
    name: ClassVar[str] = "mine"
    ...
"""

from dataclasses import fields
from typing import Any, TypeVar

from torch import nn

from ricnet.core.trajectory import Temperature
from ricnet.errors import setting
from ricnet.methods.act import ACT
from ricnet.methods.anytime import Anytime
from ricnet.methods.closed_form import ClosedForm
from ricnet.methods.exits import AtExits, ExitHeads
from ricnet.methods.inference import InSteps
from ricnet.methods.iterative import Iterative
from ricnet.methods.method import Method
from ricnet.methods.on_policy import OnPolicy
from ricnet.methods.pondernet import PonderNet
from ricnet.methods.ric import RIC
from ricnet.methods.supervised import Supervised
from ricnet.nets.refiner import RecurrentClassifier

METHODS: dict[str, type[Method[Any]]] = {
    method.name: method for method in (OnPolicy, ClosedForm, RIC, Supervised, Anytime, ACT, PonderNet)
}

Kind = TypeVar("Kind", bound=type[Method[Any]])


def register_method(method: Kind) -> Kind:
    """Make a method of your own available under its name, to `train`, `load` and the command line; a decorator."""
    METHODS[method.name] = method
    return method


def of_another_method(name: str, own: str) -> str | None:
    """Whose setting it is, if not that of the method `own`, and what to do; None where no method has it."""
    if name == "exact_gain":
        return f"is a method now; leave it out, or take {setting('method', ClosedForm.name)}."
    owners = [method for method, kind in METHODS.items() if name in {field.name for field in fields(kind)}]
    if not owners:
        return None
    return f"is a setting of {', '.join(owners)}, not of {own}; leave it out, or take {setting('method', owners[0])}."


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
    "ClosedForm",
    "Method",
    "OnPolicy",
    "PonderNet",
    "Supervised",
    "in_steps",
    "of_another_method",
    "register_method",
]
