"""All default settings, and the configuration of a run: a preset for method, data and device, with the user's changes.

`paper` has the paper's settings, which are the defaults of the methods' fields, and common practice where the paper is
silent. `fast` is ours: METHOD_SETTINGS for the method, `_network` and `_optimization` for what methods share. The first
row of a table that holds is taken. Settings of the user replace it; if another setting of the row depends on one of
them (the range of c on the credit), the row follows the user's.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ricnet.data import Dataset
from ricnet.data.registry import is_resizable
from ricnet.errors import RicnetError, nearest, setting, what_else
from ricnet.io import whole_name
from ricnet.methods import METHODS, RETIRED_PRESETS, RIC, Anytime, ClosedForm, Method, OnPolicy, of_another_method
from ricnet.models.config import PARTS, Config, Optimization, given_settings
from ricnet.models.locate import find_encoder
from ricnet.nets.encoders import TINY_IMAGE, EncoderOptions, is_pretrained
from ricnet.nets.pretrained import ImageEncoder

Preset = Literal["fast", "paper", "on-policy", "snapshots", "closed-form"]
"""The last three are methods now and are removed in the next version."""
GPU = torch.device("cuda")
"""Default device of presets."""

FEW_ROWS = 5_000
"""Training rows below which networks are smaller and runs have more epochs."""
VERY_FEW_ROWS = 1_000
"""Training rows below which the batch size is chosen so that few rows are left over."""
LARGE_TABLE = 50_000
"""Rows of a table from which batches grow and epochs become fewer; rows of features then have another recipe."""
MOST_VISITS, MOST_UPDATES, LEAST_EPOCHS = 4_000_000, 8_000, 5
"""Of a large table: rows seen over all epochs (more only with LEAST_EPOCHS), and updates."""
MOST_JOINT, MOST_JOINT_OF_A_TABLE = 20, 5
"""Most classes for joint credit with few rows, and with a table, which gets fewer updates."""
ROWS_TO_JUDGE = 50
"""Minimum held-out rows to judge a run by, and rows from which an estimator holds some out: with fewer, one row is more
than two points of accuracy."""
HELD_OUT = 0.15
"""Default share of validation rows of an estimator."""
WORTH_COMPILING = 5_000
"""Updates from which compiling the encoder saves more time than it takes."""


@dataclass(frozen=True)
class Facts:
    """What a preset depends on: data, device and some settings of the user."""

    rows: int
    classes: int
    side: int
    """Of an image, in pixels; 0 for tables and texts."""
    device: str = "cuda"
    """cpu or cuda. On a CPU `fast` takes networks and epochs for images that train in minutes."""
    encoder: str | None = None
    """Encoder named by the user; the preset's width and stem do not suit another one."""
    text: bool = False
    freeze: bool | None = None
    """Setting of the user; None leaves it to the preset."""
    copies: int = 0
    """Augmented copies of each training image."""
    exits: bool = False

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device, given: Mapping[str, Any]) -> "Facts":
        return cls(
            rows=len(dataset.train),
            classes=len(dataset.class_names),
            side=max(dataset.input_shape[1:]) if dataset.is_image else 0,
            device=device.type,
            encoder=given.get("encoder"),
            text=dataset.is_text,
            freeze=given.get("freeze"),
            copies=given.get("augmented_copies", 0),
            exits=given.get("exits", "none") != "none",
        )

    @property
    def pretrained(self) -> bool:
        return is_pretrained(self.encoder or "")

    @property
    def frozen(self) -> bool:
        """By default a pretrained encoder is frozen if rows are few, and on a CPU, which would take hours."""
        return self.freeze if self.freeze is not None else self.pretrained and (self.few or self.device == "cpu")

    @property
    def few(self) -> bool:
        return self.rows < FEW_ROWS

    @property
    def few_photographs(self) -> bool:
        return self.few and self.side > TINY_IMAGE

    @property
    def many_classes(self) -> bool:
        return self.classes > MOST_JOINT

    @property
    def is_table(self) -> bool:
        """A table, texts, or few rows of features."""
        return not self.side and (self.text or not self.frozen or self.rows < LARGE_TABLE)


TYPICAL = Facts(rows=50_000, classes=10, side=32)
"""For help texts, before any data has been read."""


# A configuration


def configure(
    dataset: Dataset, method: str | None, preset_name: str, device: torch.device = GPU, /, **changes: Any
) -> Config:
    """A preset for this data and device, with these settings changed. Method None is the preset's default."""
    if dataset.is_text and changes.get("encoder") == "auto":
        changes["encoder"] = "words"
    config = preset(preset_name, method, Facts.of(dataset, device, changes), changes)
    return changed(replace(config, data=dataset.name), changes)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with settings of any of its parts changed; checks that they exist and have an effect."""
    left = dict(changes)
    parts: dict[str, Any] = {}
    for name in PARTS:
        part = getattr(config, name)
        own = {f.name: left.pop(f.name) for f in dataclasses.fields(part) if f.name in left}
        parts[name] = replace(part, **given_settings(type(part), own))
    method, exits = parts["method"], parts["network"].exits != "none"
    if "horizon" in changes and exits:
        raise RicnetError(f"with {setting('exits')} there is a step for every exit; leave {setting('horizon')} out.")
    if (price := getattr(method, "compute_price", 0.0)) > 0 and not exits:
        priced = setting("compute_price", price)
        raise RicnetError(f"{priced} needs exits; add {setting('exits', 'stage')} or leave it out.")
    unknown = set(left) - {f.name for f in dataclasses.fields(Config)} | set(left) & {"data", *PARTS}
    if unknown:
        raise RicnetError(unknown_setting(min(unknown), config))
    for name, reason in method.without_effect(exits=exits).items():
        if name in changes:
            raise RicnetError(f"{setting(name, changes[name])} has no effect here: {reason}; leave it out.")
    return replace(config, **parts, **given_settings(Config, left))


def all_settings(config: Config) -> dict[str, Any]:
    """The settings of a configuration and of its parts, by name."""
    parts = (config, *(getattr(config, name) for name in PARTS))
    return {field.name: getattr(part, field.name) for part in parts for field in dataclasses.fields(part)}


def unknown_setting(name: str, config: Config) -> str:
    method = config.method.name
    if (elsewhere := of_another_method(name, method)) is not None:
        return f"{setting(name)} {elsewhere}"
    meant = nearest(name, list(all_settings(config)))
    advice = f"did you mean {meant}?" if meant else f"see ric train --method {method} --help-all."
    return f"{name}: no such setting for the method {method}; {advice}"


def for_encoder(data: Any, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes with the settings of a pretrained encoder: its absolute path, and unless given the resolution that it
    reads, for images that are resized anyway."""
    name = changes.get("encoder")
    if not isinstance(name, str) or not is_pretrained(name):
        return changes
    changes = {**changes, "encoder": whole_name(name)}
    if changes.get("resolution") is not None or not (isinstance(data, str | Path) and is_resizable(data)):
        return changes
    encoder = find_encoder(changes["encoder"])
    return {**changes, "resolution": max(encoder.architecture.size) if isinstance(encoder, ImageEncoder) else None}


# Presets


def preset(name: str, method: str | None, facts: Facts, given: Mapping[str, Any] | None = None) -> Config:
    """The settings of a preset. None takes its default method; other settings may depend on those `given`."""
    method = choose_method(name, method, facts.exits)
    if facts.rows < 2:
        raise RicnetError(f"there is {facts.rows} training row to learn from; training needs at least 2.")
    if facts.frozen:  # it learns from rows of features
        facts = replace(facts, side=0, rows=facts.rows * (1 + facts.copies), freeze=True)
    if name == "paper":
        return _paper(method, facts, given or {})
    return _fast(method, facts, given or {}, any_data=name in RETIRED_PRESETS)


def choose_method(preset_name: str, method: str | None, exits: bool) -> str:
    """The method to train. None is the preset's default: `paper` ric, `fast` ric-on-policy, with exits
    ric-closed-form."""
    retired = RETIRED_PRESETS.get(preset_name)
    if retired is not None and method in (None, RIC.name, retired):
        return retired
    if method is None:
        method = RIC.name if preset_name == "paper" else ClosedForm.name if exits else OnPolicy.name
    if method not in METHODS:
        raise RicnetError(f"{setting('method', method)} is unknown; {what_else(method, sorted(METHODS))}")
    if retired is not None:
        named = f"{setting('preset', preset_name)} is {setting('method', retired)}"
        raise RicnetError(f"{named}, not {method}; leave one of them out.")
    if preset_name not in get_args(Preset):
        raise RicnetError(
            f"{setting('preset', preset_name)} is unknown; {what_else(preset_name, get_args(Preset)[:2])}"
        )
    return method


def notices(method: str | None, preset_name: str) -> list[str]:
    """Notes about deprecated names, and about methods that are not the default."""
    if preset_name in RETIRED_PRESETS:
        new = setting("method", RETIRED_PRESETS[preset_name])
        return [
            f"{setting('preset', preset_name)} is deprecated and goes away with the next version; use {new}, whose "
            "settings also follow the kind of data."
        ]
    if method == RIC.name and preset_name != "paper":
        default = setting("method", OnPolicy.name)
        return [
            f"{setting('method', RIC.name)} is Algorithm 1 of the paper (snapshots, SPO); the default is {default}."
        ]
    return []


def _paper(method: str, facts: Facts, given: Mapping[str, Any]) -> Config:
    """Of what the paper swept: Adam, batch 256, ReLU. Its weight decay is read as decoupled: coupled to the gradient,
    RIC stalls at 57 % on CIFAR-10 (docs/archive/experiments.md)."""
    kind = METHODS[method]
    settings = wide(facts.classes) if given.get("credit") == "marginal" else {}
    return Config(
        preset="paper",
        method=kind(**settings),
        network=EncoderOptions("resnet34" if facts.side else "words" if facts.text else "mlp"),
        optimization=Optimization(
            epochs=kind.paper_epochs,
            batch_size=min(256, facts.rows),
            optimizer="adamw",
            lr=3e-4,
            weight_decay=1e-3,
            schedule="constant",
            clip=0.5,
        ),
    )


def _fast(method: str, facts: Facts, given: Mapping[str, Any], any_data: bool = False) -> Config:
    kind = METHODS[method]
    settings, optimization = _method_settings(kind, facts, given, any_data), _optimization(facts)
    if facts.is_table and hasattr(kind, "horizon"):
        settings["horizon"] = 5
    if facts.exits:  # few validation rows tell accuracies apart badly, and each exit has one of its own
        optimization = replace(optimization, select="calibrated")
    if issubclass(kind, RIC) and not issubclass(kind, OnPolicy):  # far from 1, the gradient is like the ratio's square
        optimization = replace(optimization, clip=0.5)
    return Config(
        preset="fast",
        calibration="auto",
        halt_rule="auto",
        method=kind(**settings),
        network=_network(facts),
        optimization=optimization,
    )


# Settings of methods in `fast`


def narrow(classes: int) -> dict[str, float]:
    """Range of the Dirichlet for joint credit: it explores, and begins at the uniform. It grows with the classes, so
    that its mean can come as near to certainty for many as for ten."""
    return {"c_max": float(max(10, classes)), "alpha_floor": 0.1 / classes, "head_gain": 0.01}


def wide(classes: int) -> dict[str, float]:
    """Range for marginal credit and the closed form, which have less noise: samples are closer to the mean."""
    return {"c_max": float(10 * max(10, classes)), "alpha_floor": 0.1, "head_gain": 1.0}


FEW = {"rollouts": 2, "gae_lambda": 0.95, "credit": "joint", "reward_floor": 1e-4, "label_baseline": True}
MANY = {"rollouts": 4, "gae_lambda": 0.0, "credit": "marginal", "label_baseline": True}
SHORT_ROUNDS = {"updates_per_snapshot": 2, "epsilon": 0.5}
"""The paper has 400 long rounds."""

Row = tuple[type[Method[Any]], str, Callable[[Facts], bool], dict[str, Any], Callable[[int], dict[str, float]] | None]
METHOD_SETTINGS: tuple[Row, ...] = (
    # method, data, condition, settings, range of c.  Why: docs/archive/experiments.md, on exits docs/exits.md.
    (ClosedForm, "any", lambda f: True, {"rollouts": 2, "label_baseline": True}, wide),
    (
        OnPolicy,
        "few features, many classes",
        lambda f: f.frozen and f.few and f.many_classes,
        MANY | {"rollouts": 8},
        wide,
    ),
    (OnPolicy, "few features", lambda f: f.frozen and f.few, FEW | {"rollouts": 8, "gae_lambda": 0.0}, wide),
    (OnPolicy, "many classes", lambda f: f.many_classes, MANY, wide),
    (OnPolicy, "few rows, exits", lambda f: f.few and f.exits, FEW, narrow),
    (OnPolicy, "few photographs", lambda f: f.few_photographs, MANY, wide),
    (OnPolicy, "table, > 5 classes", lambda f: f.is_table and f.classes > MOST_JOINT_OF_A_TABLE, MANY, wide),
    (OnPolicy, "few rows", lambda f: f.few, FEW, narrow),
    (OnPolicy, "many rows", lambda f: True, MANY, wide),
    (RIC, "many classes", lambda f: f.many_classes, MANY | SHORT_ROUNDS, wide),
    (RIC, "few rows", lambda f: f.few, FEW | SHORT_ROUNDS, narrow),
    (RIC, "many rows", lambda f: True, MANY | SHORT_ROUNDS | {"credit": "joint"}, narrow),
    (Anytime, "exits", lambda f: f.exits, {"step_weight": "uniform", "value_coef": 0.5}, None),
    (Method, "any", lambda f: True, {}, None),
)
EACH_EXIT = {"gamma": 0.01, "rollouts": 16}
"""For sampled rewards of a user's score with exits: each exit is judged for itself."""


def _method_settings(
    kind: type[Method[Any]], facts: Facts, given: Mapping[str, Any], any_data: bool = False
) -> dict[str, Any]:
    """The first row that holds. With `any_data` rows and classes alone decide, as in the retired presets."""
    known = replace(facts, side=0, text=False, freeze=False, exits=True) if any_data else facts
    _, _, _, settings, spread = next(row for row in METHOD_SETTINGS if issubclass(kind, row[0]) and row[2](known))
    if spread is None:
        return dict(settings)
    settings = settings | spread(facts.classes)
    if given.get("rollouts") == 1:  # nothing to compare a roll-out with
        settings["label_baseline"] = False
    if "passes_per_snapshot" in given:
        settings.pop("updates_per_snapshot", None)
    if "credit" not in settings:
        return settings
    assert issubclass(kind, RIC)
    if not kind.rewards_log_score():
        settings |= {"credit": "joint", "reward_floor": None, **narrow(facts.classes)}
        return settings | (EACH_EXIT if facts.exits else {})
    return settings | following(settings["credit"], given, facts.classes)


def following(credit: str, given: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """Settings that follow those given by the user, if the preset has chosen `credit`: another credit has another range
    of c, and some policies and objectives have no marginal credit."""
    if given.get("objective") == "expected":
        return {"credit": "joint"}
    wanted = given.get("credit", "joint" if given.get("head") == "logistic-normal" else credit)
    if wanted == credit:
        return {}
    return {"credit": wanted} | (narrow(classes) if wanted == "joint" else {"reward_floor": None, **wide(classes)})


# Settings that all methods share in `fast`


def _network(facts: Facts) -> EncoderOptions:
    """For few images a small network, on a CPU one that soon halves its images: time is better spent on updates. An
    encoder that the user names has its own width; a pretrained one is followed by the MLP of a table."""
    share = 0.5 if facts.few else 1.0
    if facts.pretrained or facts.frozen:
        return EncoderOptions(facts.encoder or "custom", share, freeze=facts.frozen)
    if facts.text:
        return EncoderOptions("words")
    if facts.is_table:
        return EncoderOptions(width=share)
    if facts.side <= TINY_IMAGE:
        return EncoderOptions()
    chosen = EncoderOptions("resnet10", width=0.5) if facts.few else EncoderOptions()
    if facts.device == "cpu" and facts.side <= 32:
        chosen = EncoderOptions("conv", width=0.5)
    elif facts.device == "cpu":
        chosen = EncoderOptions("resnet10", width=0.25, stem="original")
    return chosen if facts.encoder in (None, "auto", chosen.encoder) else EncoderOptions(facts.encoder)


def _optimization(facts: Facts) -> Optimization:
    if facts.is_table:
        return _table(facts)
    if facts.few_photographs:
        return _few_images(facts)
    if facts.side > TINY_IMAGE and facts.device == "cpu":
        return _many_images_on_a_cpu(facts)
    return _few_rows(facts) if facts.few else _many_rows(facts)


def _few_images(facts: Facts) -> Optimization:
    """Chosen on photographs. The epoch is selected by NLL after a temperature: few validation images tell accuracies
    apart badly (docs/questions/choices.md)."""
    batch_size = even_batch(facts.rows, 32)
    epochs = min(100, max(30, math.ceil(800 / (facts.rows // batch_size))))
    return Optimization(
        epochs=epochs, batch_size=batch_size, lr=3e-3, weight_decay=0.5, average=0.98, select="calibrated", clip=0.5
    )


def _many_images_on_a_cpu(facts: Facts) -> Optimization:
    """Small batches, because few epochs make few updates. Twenty epochs of 9,000 small images take minutes; fewer than
    eight epochs learn too little."""
    epochs = min(80, max(8, round(180_000 / facts.rows)))
    return Optimization(
        epochs=epochs,
        batch_size=even_batch(facts.rows, 64),
        lr=4e-3,
        weight_decay=0.5,
        warmup_epochs=1.0,
        average=0.99,
        select="calibrated",
        clip=None,
    )


def _few_rows(facts: Facts) -> Optimization:
    """At least 500 updates."""
    batch_size = even_batch(facts.rows, 128) if facts.rows < VERY_FEW_ROWS else 128
    epochs = max(60, math.ceil(500 / (facts.rows // batch_size)))
    return Optimization(epochs=epochs, batch_size=batch_size, lr=3e-3, clip=0.5, select="calibrated")


def _many_rows(facts: Facts) -> Optimization:
    """Strong decay suits the normalised encoders of images, whose weights have no scale of their own: it sets how fast
    they turn. The MLP after a frozen encoder has a scale."""
    if not facts.side:
        return Optimization(epochs=120, lr=2e-3, clip=None)
    epochs, batch_size = 120, 512
    updates = epochs * (facts.rows // batch_size)
    return Optimization(
        epochs=epochs,
        batch_size=batch_size,
        lr=4e-3,
        weight_decay=0.5,
        warmup_epochs=2.0,
        clip=None,
        cutout=facts.side // 4 if facts.side > TINY_IMAGE else 0,
        average=min(0.999, 1 - 10 / updates),  # over a tenth of the run, if that is less than 1,000 updates
        select="calibrated",
    )


def _table(facts: Facts) -> Optimization:
    """Tables, texts and few features. From LARGE_TABLE rows on, at most MOST_UPDATES updates, by larger batches, and
    fewer than 20 epochs: time grows with the rows up to 200,000, hardly up to 800,000, and from there with the rows.

    Such a network over-fits first in its confidence, so the epoch is selected by NLL. The average of the weights
    replaces the end of the schedule, which a run that stops early does not reach. Chosen on eight tables
    (docs/estimators.md), large tables on three others (docs/archive/experiments.md). Few features have a lower rate: at
    that of tables the best epoch was the second or third."""
    small, large = facts.few, facts.rows >= LARGE_TABLE and not facts.text
    batch_size = min(64 if small else 128, facts.rows)
    updates = facts.rows // batch_size
    epochs = min(100, max(20, math.ceil((1_000 if small else 2_600) / updates)))
    if large:
        epochs = min(20, max(LEAST_EPOCHS, round(MOST_VISITS / facts.rows)))
        batch_size = max(128, math.ceil(epochs * facts.rows / MOST_UPDATES))
    return Optimization(
        epochs=epochs,
        batch_size=batch_size,
        lr=1e-3 if small and facts.frozen else 4e-3,
        weight_decay=1.0 if small else 0.2,
        average=0.98 if small else 0.99,
        select="nll",
        patience=5 if large else 15,
    )


def even_batch(rows: int, most: int) -> int:
    """The batch size from above most/2 to `most` that leaves the fewest rows over in an epoch; rows that do not fill a
    batch are not used."""
    sizes = range(most // 2 + 1, most + 1)
    return max(sizes, key=lambda size: (rows // size * size, size)) if rows > most else rows


def unwatched_table(rows: int) -> dict[str, Any]:
    """Changes to the recipe of a table without validation rows to stop by: it ends before most small tables are
    over-fitted."""
    updates = rows // min(64, rows)
    return {"epochs": max(20, math.ceil(100 / updates))} if rows < LARGE_TABLE else {}
