"""Every system that can be compared, by name: the paper's, its ablations and controls, and the peers a reader asks for.

A system is a method with some of its settings changed. Settings that act after training (a readout, a temperature)
are kept apart, so that systems which share their weights are trained once.
"""

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.conclusion import AFTER_TRAINING
from ricnet.training.config import Config, Optimization, fits


@dataclass(frozen=True)
class System:
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    """What is done with the trained weights."""


CAP = 0.1 / 10.1
"""Kε/(c + Kε) at K = 10, c = 10, ε = 0.01: the share of the uniform in the paper's Dirichlet mean."""

SYSTEMS: dict[str, System] = {
    # The paper's own, and the control that tells what reinforcement adds.
    "supervised": System("supervised"),
    "act": System("act"),
    "pondernet": System("pondernet"),
    "ric": System("ric"),
    "anytime": System("anytime"),
    # Ablations of RIC.
    "ric-ppo": System("ric", {"objective": "ppo"}),
    "ric-logistic-normal": System("ric", {"head": "logistic-normal"}),
    "ric-expected": System("ric", {"objective": "expected"}),
    "ric-mu": System("ric", after={"readout": "mu"}),
    "ric-implied": System("ric", after={"readout": "implied"}),
    "ric-sampled-feedback": System("ric", after={"feedback": "sample"}),
    "ric-temperature": System("ric", after={"calibration": "temperature"}),
    # Peers that calibrate one-pass classifiers.
    "supervised-temperature": System("supervised", after={"calibration": "temperature"}),
    "label-smoothing": System("supervised", {"label_smoothing": 0.1}),
    "logitnorm": System("supervised", {"objective": "logitnorm"}),
    "evidential": System("supervised", {"objective": "evidential"}),
    "confidence-cap": System("supervised", {"uniform_mix": CAP}),
}


def find_system(name: str) -> System:
    """A name, perhaps followed by settings of its own: `ric`, `ric:gamma=0.9,rollouts=2`."""
    base, _, settings = name.partition(":")
    if base not in SYSTEMS:
        close = difflib.get_close_matches(base, SYSTEMS, n=1)
        meant = f"did you mean {close[0]}?" if close else f"choose from: {', '.join(SYSTEMS)}."
        raise RicnetError(f"--methods {base}: there is no such system; {meant}")
    system = SYSTEMS[base]
    given = parse_settings(settings.split(",") if settings else [], system.method, f"--methods {name}")
    after = {key: value for key, value in given.items() if key in AFTER_TRAINING}
    changes = {key: value for key, value in given.items() if key not in AFTER_TRAINING}
    return System(system.method, {**system.changes, **changes}, {**system.after, **after})


def parse_settings(texts: Sequence[str], method: str, flag: str) -> dict[str, Any]:
    """gamma=0.9 as {"gamma": 0.9}, for the settings that a run of this method has."""
    hints = settings_of(method)
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        key = name.strip().replace("-", "_")
        if not value or key not in hints:
            raise RicnetError(f"{flag}: {text!r} is no setting of {method}; write SETTING=VALUE, as in epochs=30.")
        found[key] = read_setting(value.strip())
        if not fits(found[key], hints[key]):
            raise RicnetError(f"{flag}: {key} cannot be {value}; see ric train --method {method} --help.")
    return found


def settings_of(method: str) -> dict[str, Any]:
    """The type of every setting that a run of this method has."""
    hints: dict[str, Any] = {}
    for kind in (Config, EncoderOptions, Optimization, METHODS[method]):
        own = get_type_hints(kind)
        hints |= {f.name: own[f.name] for f in dataclasses.fields(kind)}
    return {name: hint for name, hint in hints.items() if name not in ("method", "network", "optimization")}


def read_setting(text: str) -> Any:
    """0.9 is a number, true a truth value, none nothing, and the rest is text."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return None if text.lower() == "none" else text
