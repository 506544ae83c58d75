"""Systems (methods with changed settings), benchmarks, and experiments, which combine them with seeds.

Settings that act after training (a readout, a temperature) are separate, so that systems with the same weights are
trained once.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ricnet.errors import RicnetError, nearest, wanted, what_else
from ricnet.methods import METHODS, RIC, ClosedForm, OnPolicy
from ricnet.models.config import AFTER_TRAINING, PARTS, Config, Optimization, as_typed, field_types, fits
from ricnet.nets.encoders import EncoderOptions
from ricnet.report.runs import RunRecord
from ricnet.training.recipes import Facts, preset

Changes = tuple[tuple[str, Any], ...]
"""Settings that differ from the preset, in hashable form."""


# Systems: every method, and variants of them (ablations, controls, peers)


@dataclass(frozen=True)
class System:
    method: str | None
    """Name of the method; None for the default of `ric train`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    """Settings that act after training."""
    preset: str | None = None
    """Preset of this system; None for the preset of the study."""
    capped: bool = False
    """Set `uniform_mix` to the share of the uniform in the mean of RIC's Dirichlet, which depends on the data."""
    about: str = field(default="", compare=False)

    def changes_for(self, facts: Facts) -> dict[str, Any]:
        return {**({"uniform_mix": uniform_share(facts)} if self.capped else {}), **self.changes}


def uniform_share(facts: Facts) -> float:
    """Kε/(c + Kε), the share of the uniform in the mean of RIC's Dirichlet at the largest c of the preset `fast`."""
    ric = preset("fast", None, facts).method
    assert isinstance(ric, RIC)
    floor = facts.classes * ric.alpha_floor
    return floor / (ric.c_max + floor)


RAW = {"calibration": "none", "halt_rule": "value"}
"""No calibration with any preset; systems with calibration have it in their name."""

VARIANTS: dict[str, System] = {
    # Algorithms of RIC, and the control that shows what reinforcement learning adds.
    "ric": System(
        None, about="RIC, the default of ric train: on-policy, for texts Algorithm 1, with --exits in closed form"
    ),
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
    "ric-sampled-feedback": System(None, after={"feedback": "sample"}, about="RIC's weights, samples fed back"),
    "ric-temperature": System(None, after={"calibration": "temperature"}, about="RIC's weights, temperature scaled"),
    # Peers that calibrate one-pass classifiers.
    "supervised-temperature": System(
        "supervised", after={"calibration": "temperature"}, about="SL's weights, temperature scaled"
    ),
    "label-smoothing": System("supervised", {"label_smoothing": 0.1}, about="SL with smoothed labels (0.1)"),
    "logitnorm": System("supervised", {"objective": "logitnorm"}, about="SL with normalised logits"),
    "evidential": System("supervised", {"objective": "evidential"}, about="SL with the evidential loss"),
    "confidence-cap": System("supervised", capped=True, about="SL with the confidence limit of RIC's Dirichlet mean"),
}


def all_systems() -> dict[str, System]:
    """All systems by name: each method, registered ones included, and the variants."""
    methods = {name: System(name, about=method.about) for name, method in METHODS.items()}
    systems = {**methods, **VARIANTS}
    return systems | {name: system for name, system in methods.items() if METHODS[name] not in (RIC, ClosedForm)}


def find_system(name: str) -> System:
    """The system of a name with optional settings: `ric`, `ric:gamma=0.9,rollouts=2`."""
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
    """Parse gamma=0.9 into {"gamma": 0.9}, for settings of this method."""
    hints, named = settings_of(method), method or OnPolicy.name
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        key = name.strip().replace("-", "_")
        if key not in hints:
            close = nearest(key, hints)
            meant = f"did you mean {close}?" if close else f"see ric train --method {named} --help-all."
            raise RicnetError(f"{flag}: {name.strip()!r} is not a setting of {named}; {meant}")
        if not value:
            raise RicnetError(f"{flag}: {text!r} needs a value; write {key}=VALUE.")
        read = read_setting(value.strip())
        if not fits(read, hints[key]):
            raise RicnetError(f"{flag}: {key} cannot be {value}; give {wanted(hints[key])}.")
        found[key] = as_typed(read, hints[key])
    return found


def settings_of(method: str | None) -> dict[str, Any]:
    """Type of each setting of a run with this method; for None those of all RIC algorithms."""
    kinds = (Config, EncoderOptions, Optimization, *((RIC, OnPolicy) if method is None else (METHODS[method],)))
    hints: dict[str, Any] = {}
    for kind in kinds:
        hints |= {name: hints.get(name, hint) | hint for name, hint in field_types(kind).items() if name not in PARTS}
    return hints


def read_setting(text: str) -> Any:
    """Parse a value: 0.9 is a number, true a bool, none is None, anything else a text."""
    if text.lower() == "none":
        return None
    for read in (json.loads, float):  # JSON has no .5
        with suppress(ValueError):
            return read(text.lower() if text.lower() in ("true", "false") else text)
    return text


# Experiments


@dataclass(frozen=True)
class Benchmark:
    label: str
    """Name in figures."""
    data: str
    """A name, a folder or a file, as for `ric train`."""
    changes: Changes = ()
    """Settings for this benchmark, for instance label noise or a resolution."""


@dataclass(frozen=True)
class Experiment:
    """All seeds of one system on one data set."""

    system: str
    """A name of `all_systems`, optionally with settings: ric, supervised-temperature, ric:gamma=0.9."""
    benchmark: Benchmark
    seeds: tuple[int, ...]
    changes: Changes = ()
    """Settings of this experiment; they override those of the system and of the benchmark."""
    preset: str = "fast"


Runs = Mapping[Experiment, Sequence[RunRecord]]
"""Finished runs of each experiment, in the order of its seeds; none if its data is missing."""
