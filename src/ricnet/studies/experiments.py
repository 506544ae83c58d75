"""What is compared: systems, each a method with some of its settings changed, on benchmarks, at a scale.

Settings that act after training (a readout, a temperature) are kept apart, so that systems which share their weights
are trained once.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ricnet.errors import RicnetError, nearest, what_else
from ricnet.methods import METHODS, RIC, ClosedForm, OnPolicy
from ricnet.models.config import AFTER_TRAINING, PARTS, Config, Optimization, as_typed, field_types, fits
from ricnet.nets.encoders import EncoderOptions
from ricnet.report.runs import RunRecord
from ricnet.training.recipes import Facts, preset

Changes = tuple[tuple[str, Any], ...]
"""Settings that differ from the preset's, hashable."""


# Systems: every method, and variants of them (ablations, controls, peers)


@dataclass(frozen=True)
class System:
    method: str | None
    """None for the default of the preset, as `ric train` without --method takes it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    """What is done with the trained weights."""
    preset: str | None = None
    """Where its settings come from, whatever the preset of the study; None for the study's."""
    capped: bool = False
    """Mix in as much of the uniform as RIC's Dirichlet mean has; how much that is depends on the data."""
    about: str = field(default="", compare=False)

    def changes_for(self, facts: Facts) -> dict[str, Any]:
        return {**({"uniform_mix": uniform_share(facts)} if self.capped else {}), **self.changes}


def uniform_share(facts: Facts) -> float:
    """Kε/(c + Kε), the share of the uniform in the mean of RIC's Dirichlet at its most confident, by `fast`."""
    ric = preset("fast", None, facts).method
    assert isinstance(ric, RIC)
    floor = facts.classes * ric.alpha_floor
    return floor / (ric.c_max + floor)


RAW = {"calibration": "none", "halt_rule": "value"}
"""What is compared is what was trained, whatever the preset fits on validation data afterwards; a system that fits
something says so in its name."""

VARIANTS: dict[str, System] = {
    # Algorithms of RIC, and the control that tells what reinforcement adds.
    "ric": System(None, about="RIC as ric train takes it: on-policy, with --exits in closed form"),
    "ric-snapshots": System("ric", preset="fast", about="RIC by Algorithm 1, with short rounds"),
    "ric-closed-form": System("ric-closed-form", preset="fast", about="RIC with rewards in closed form"),
    "anytime-matched": System(
        "anytime",
        {"step_weight": "uniform", "value_coef": 0.5},
        capped=True,
        about="Anytime with RIC's step weights, cap and halting by a value",
    ),
    # Ablations of RIC.
    "ric-ppo": System("ric", {"objective": "ppo"}, about="Algorithm 1 with PPO instead of SPO"),
    "ric-logistic-normal": System("ric", {"head": "logistic-normal"}, about="Algorithm 1 with another policy"),
    "ric-marginal": System(None, {"credit": "marginal"}, about="a step's gain credited to a_y alone, with less noise"),
    "ric-expected": System(
        "ric-on-policy", {"objective": "expected"}, about="E[log a_y] in closed form, no policy gradient"
    ),
    "ric-mu": System(None, after={"readout": "mu"}, about="RIC's weights, the softmax reported"),
    "ric-implied": System(None, after={"readout": "implied"}, about="RIC's weights, the implied q reported"),
    "ric-sampled-feedback": System(None, after={"feedback": "sample"}, about="RIC's weights, V asked on samples"),
    "ric-temperature": System(None, after={"calibration": "temperature"}, about="RIC's weights, temperature scaled"),
    # Peers that calibrate one-pass classifiers.
    "supervised-temperature": System(
        "supervised", after={"calibration": "temperature"}, about="SL's weights, temperature scaled"
    ),
    "label-smoothing": System("supervised", {"label_smoothing": 0.1}, about="SL with smoothed labels (0.1)"),
    "logitnorm": System("supervised", {"objective": "logitnorm"}, about="SL with normalised logits"),
    "evidential": System("supervised", {"objective": "evidential"}, about="SL with the evidential loss"),
    "confidence-cap": System("supervised", capped=True, about="SL mixed with the uniform as RIC's Dirichlet mean is"),
}


def all_systems() -> dict[str, System]:
    """Every system by name: each method as it is, registered ones included, then the variants."""
    methods = {name: System(name, about=method.about) for name, method in METHODS.items()}
    systems = {**methods, **VARIANTS}
    return systems | {name: system for name, system in methods.items() if METHODS[name] not in (RIC, ClosedForm)}


def find_system(name: str) -> System:
    """A name, perhaps followed by settings of its own: `ric`, `ric:gamma=0.9,rollouts=2`."""
    base, _, settings = name.partition(":")
    systems = all_systems()
    if base not in systems:
        raise RicnetError(f"--methods {base}: there is no such system; {what_else(base, systems)}")
    system = systems[base]
    given = parse_settings(settings.split(",") if settings else [], system.method, f"--methods {name}")
    after = {key: value for key, value in given.items() if key in AFTER_TRAINING}
    changes = {key: value for key, value in given.items() if key not in AFTER_TRAINING}
    return dataclasses.replace(system, changes={**system.changes, **changes}, after={**system.after, **after})


def parse_settings(texts: Sequence[str], method: str | None, flag: str) -> dict[str, Any]:
    """gamma=0.9 as {"gamma": 0.9}, for the settings that a run of this method has."""
    hints, named = settings_of(method), method or OnPolicy.name
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        key = name.strip().replace("-", "_")
        if key not in hints:
            close = nearest(key, hints)
            meant = f"did you mean {close}?" if close else f"see ric train --method {named} --help-all."
            raise RicnetError(f"{flag}: {name.strip()!r} is no setting of {named}; {meant}")
        if not value:
            raise RicnetError(f"{flag}: {text!r} needs a value; write {key}=VALUE.")
        read = read_setting(value.strip())
        if not fits(read, hints[key]):
            raise RicnetError(f"{flag}: {key} cannot be {value}; see ric train --method {named} --help-all.")
        found[key] = as_typed(read, hints[key])
    return found


def settings_of(method: str | None) -> dict[str, Any]:
    """The type of every setting that a run of this method has; of None any algorithm of RIC may be the method."""
    kinds = (Config, EncoderOptions, Optimization, *((RIC, OnPolicy) if method is None else (METHODS[method],)))
    hints: dict[str, Any] = {}
    for kind in kinds:
        hints |= {name: hints.get(name, hint) | hint for name, hint in field_types(kind).items() if name not in PARTS}
    return hints


def read_setting(text: str) -> Any:
    """0.9 is a number, true a truth value, none nothing, and the rest is text."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return None if text.lower() == "none" else text


# Experiments


@dataclass(frozen=True)
class Benchmark:
    label: str
    """What a figure calls it."""
    data: str
    """A name, a folder or a file, as `ric train` takes it."""
    changes: Changes = ()
    """What the data asks of the training, for instance label noise or a resolution."""


@dataclass(frozen=True)
class Experiment:
    """All seeds of one system on one data set."""

    system: str
    """A name of `all_systems`, perhaps with settings: ric, supervised-temperature, ric:gamma=0.9."""
    benchmark: Benchmark
    seeds: tuple[int, ...]
    changes: Changes = ()
    """Settings of this experiment alone; they win over the system's and the benchmark's."""
    preset: str = "fast"


Runs = Mapping[Experiment, Sequence[RunRecord]]
"""The finished runs of each experiment, in the order of its seeds. One whose data is not here has none."""
