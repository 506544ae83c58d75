"""Convert the `method` entry of a config.json from an older version.

Until version 0.1 the method `ric` covered three algorithms, which `updates_per_snapshot` and `exact_gain` selected.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ricnet.methods.closed_form import ClosedForm
from ricnet.methods.on_policy import OnPolicy
from ricnet.methods.ric import RIC

RETIRED_PRESETS = {"on-policy": OnPolicy.name, "closed-form": ClosedForm.name, "snapshots": RIC.name}
"""Former presets that are methods now."""
RETIRED = {"exact_gain", *(field.name for field in fields(RIC))}
"""Settings of the former method `ric`."""


def modern_method(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The `method` entry of a config.json in its current form, without settings that had no effect; not validated."""
    if entry.get("name") != RIC.name:
        return dict(entry)
    kind = _algorithm(entry)
    unused = RETIRED - {field.name for field in fields(kind)}
    modern = {name: value for name, value in entry.items() if name not in unused} | {"name": kind.name}
    if kind is not RIC and modern.get("objective") != "expected":
        modern.pop("objective", None)
    if modern.get("rollouts") == 1 and "label_baseline" in modern:  # had no effect with one roll-out
        modern["label_baseline"] = False
    return modern


def _algorithm(entry: Mapping[str, Any]) -> type[RIC]:
    if entry.get("exact_gain") is True:
        return ClosedForm
    on_policy = entry.get("updates_per_snapshot") == 1 or entry.get("objective") == "expected"
    return OnPolicy if on_policy else RIC
