"""The methods, one file each; `METHODS` maps names to them. `modern_method` reads settings of older versions.

To add a method from outside the package:

    @register_method
    @dataclass(frozen=True)
    class Mine(Supervised):
        name: ClassVar[str] = "mine"
        ...
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from torch import nn

from ricnet.core.trajectory import Temperature
from ricnet.errors import setting
from ricnet.methods.act import ACT as ACT
from ricnet.methods.anytime import Anytime as Anytime
from ricnet.methods.closed_form import ClosedForm as ClosedForm
from ricnet.methods.inference import InSteps, Iterative
from ricnet.methods.method import Method as Method
from ricnet.methods.on_policy import OnPolicy as OnPolicy
from ricnet.methods.pondernet import PonderNet as PonderNet
from ricnet.methods.ric import RIC as RIC
from ricnet.methods.supervised import AtExits, ExitHeads
from ricnet.methods.supervised import Supervised as Supervised
from ricnet.nets.refiner import RecurrentClassifier

METHODS: dict[str, type[Method[Any]]] = {
    method.name: method for method in (OnPolicy, ClosedForm, RIC, Supervised, Anytime, ACT, PonderNet)
}

Kind = TypeVar("Kind", bound=type[Method[Any]])


def register_method(method: Kind) -> Kind:
    """Decorator that makes a method available by its name in `train`, `load` and the CLI."""
    METHODS[method.name] = method
    return method


def of_another_method(name: str, own: str) -> str | None:
    """End of an error message about a setting `name` that the method `own` does not have: which methods have it, and
    what to do. None if no method has it."""
    if name == "exact_gain":
        return f"is a method now; remove it, or use {setting('method', ClosedForm.name)}."
    owners = [method for method, kind in METHODS.items() if name in {field.name for field in fields(kind)}]
    if not owners:
        return None
    return f"is a setting of {', '.join(owners)}, not of {own}; remove it, or use {setting('method', owners[0])}."


Inference = Method[Any] | InSteps[Any]
"""Anything with `refine`: a method, or its inference in steps."""


def in_steps(method: Inference, model: nn.Module, temperature: Temperature = 1.0) -> InSteps[Any] | None:
    """The step-by-step inference of a method; None if it answers in one pass or overrides `refine`. SL with exits
    compares its confidence at this temperature."""
    if isinstance(method, AtExits):
        return method
    if isinstance(method, Supervised) and isinstance(model, ExitHeads):
        return method.at_exits(model, temperature)
    return method if isinstance(method, Iterative) and isinstance(model, RecurrentClassifier) else None


# Until version 0.1 the method `ric` covered three algorithms, which `updates_per_snapshot` and `exact_gain` selected.

RETIRED_PRESETS = {"on-policy": OnPolicy.name, "closed-form": ClosedForm.name, "snapshots": RIC.name}
"""Former presets that are methods now."""


def modern_method(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The `method` entry of a config.json in its current form, without settings that had no effect; not validated."""
    if entry.get("name") != RIC.name:
        return dict(entry)
    kind: type[RIC] = RIC
    if entry.get("exact_gain") is True:
        kind = ClosedForm
    elif entry.get("updates_per_snapshot") == 1 or entry.get("objective") == "expected":
        kind = OnPolicy
    unused = {"exact_gain", *(field.name for field in fields(RIC))} - {field.name for field in fields(kind)}
    modern = {name: value for name, value in entry.items() if name not in unused} | {"name": kind.name}
    if kind is not RIC and modern.get("objective") != "expected":
        modern.pop("objective", None)
    if modern.get("rollouts") == 1 and "label_baseline" in modern:  # had no effect with one roll-out
        modern["label_baseline"] = False
    return modern
