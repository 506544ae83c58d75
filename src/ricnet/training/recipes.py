"""Presets, which hold all default settings, and the configuration of a run: a preset with the user's changes.

`paper` has the settings of the paper, which are the defaults of the methods' fields, and common practice where the
paper is silent. `fast` depends on data and device: METHOD_SETTINGS has a row of settings for each case, of which the
first that matches is used; `_network` and `_optimization` have the settings that all methods share. Settings of the
user replace those of the preset. Settings that depend on them follow: another credit has another range of c.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
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
from ricnet.nets.whitened import SMALLEST

Preset = Literal["fast", "paper", "on-policy", "snapshots", "closed-form"]
"""The last three are deprecated names of methods; they will be removed in the next version."""
GPU = torch.device("cuda")
TEXT_ENCODER = "tfidf"
FEW_ROWS = 5_000
"""Training rows below which the settings for few rows apply. Width, epochs, batch size, weight decay and steps of
tables do not depend on it: they change smoothly (`by_rows`)."""
VERY_FEW_ROWS = 1_000
"""Training rows below which the batch size is chosen so that few rows are left over."""
LARGE_TABLE = 50_000
"""Rows of a table above which an estimator holds out no more validation rows than at this number."""
MOST_UPDATES = 8_000
"""Maximum updates on a table; larger tables get larger batches."""
MOST_JOINT, MOST_JOINT_OF_A_TABLE = 20, 5
"""Maximum number of classes for joint credit, and for joint credit on tables, which get fewer updates."""
ROWS_TO_JUDGE = 50
"""Minimum held-out rows to judge a run by, and rows from which an estimator holds some out: with fewer, one row is more
than two points of accuracy."""
HELD_OUT = 0.15
"""Default share of validation rows of an estimator."""
SMALL_SIDE = 32
"""Images up to this many pixels a side get a network for small images on a CPU."""
WORTH_COMPILING = 5_000
"""Updates from which compiling the encoder saves more time than it takes."""


@dataclass(frozen=True)
class Facts:
    """What a preset depends on: data, device and some settings of the user."""

    rows: int
    classes: int
    side: int
    """Longer side of an image in pixels; 0 for tables and texts."""
    device: str = "cuda"
    """cpu or cuda. On a CPU, `fast` chooses small networks and few epochs, so that images train in minutes."""
    encoder: str | None = None
    """Encoder named by the user. Width and stem of the preset apply only to the encoder of the preset."""
    text: bool = False
    freeze: bool | None = None
    """Setting of the user; None leaves it to the preset."""
    copies: int = 0
    """Augmented copies of each training image."""
    exits: bool = False
    shorter_side: int | None = None
    """Of an image in pixels; None for `side`."""

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device, given: Mapping[str, Any]) -> "Facts":
        return cls(
            rows=len(dataset.train),
            classes=len(dataset.class_names),
            side=max(dataset.view_shape[1:]) if dataset.is_image else 0,
            device=device.type,
            encoder=given.get("encoder"),
            text=dataset.is_text,
            freeze=given.get("freeze"),
            copies=given.get("augmented_copies", 0),
            exits=given.get("exits", "none") != "none",
            shorter_side=min(dataset.view_shape[1:]) if dataset.is_image else None,
        )

    @property
    def pretrained(self) -> bool:
        return is_pretrained(self.encoder or "")

    @property
    def frozen(self) -> bool:
        """By default a pretrained encoder is frozen with few rows, and on a CPU, where fine-tuning takes hours."""
        return self.freeze if self.freeze is not None else self.pretrained and (self.few or self.device == "cpu")

    @property
    def few(self) -> bool:
        return self.rows < FEW_ROWS

    @property
    def few_photographs(self) -> bool:
        return self.few and self.side > TINY_IMAGE

    @property
    def is_whitened(self) -> bool:
        """Whether the recipe of small images on a CPU applies, for the encoder `whitened`."""
        small = TINY_IMAGE < self.side <= SMALL_SIDE and (self.shorter_side or self.side) >= SMALLEST
        ours = self.encoder in (None, "auto", "whitened")
        return small and ours and self.device == "cpu" and self.rows >= VERY_FEW_ROWS and not self.exits

    @property
    def many_classes(self) -> bool:
        return self.classes > MOST_JOINT

    @property
    def many_classes_of_a_table(self) -> bool:
        return self.is_table and self.classes > MOST_JOINT_OF_A_TABLE and not self.exits

    @property
    def reads_words(self) -> bool:
        """Whether the recipe of texts applies: the encoder reads token ids and is trained."""
        return self.text and not self.frozen

    @property
    def is_table(self) -> bool:
        """Whether the recipe of tables applies: to tables, texts and features of a frozen encoder."""
        return not self.side


TYPICAL = Facts(rows=50_000, classes=10, side=32)
"""Used for help texts, which are printed before any data is read."""
KINDS = (TYPICAL, replace(TYPICAL, side=0, text=True))
"""Examples of data; between them they reach every default method without exits."""


# A configuration

FOR_IMAGES = ("shift", "crop_area", "cutout", "trivial_augment")
"""Settings of augmentation that would do nothing on other data."""


def configure(
    dataset: Dataset, method: str | None, preset_name: str, device: torch.device = GPU, /, **changes: Any
) -> Config:
    """The configuration of a preset for this data and device, with some settings changed. If `method` is None, it is
    the preset's default."""
    if not dataset.is_image:
        if changes.get("encoder") == "auto":
            del changes["encoder"]
        for name in FOR_IMAGES:
            if changes.get(name):
                raise RicnetError(f"{setting(name, changes[name])} is for images, not {dataset.unit}; leave it out.")
    config = preset(preset_name, method, Facts.of(dataset, device, changes), changes)
    return changed(replace(config, data=dataset.name, oversize=dataset.oversize), changes)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Change settings of a configuration or of its parts; raise if one does not exist or has no effect."""
    left = dict(changes)
    if changes.get("final_fit"):
        config = _without_choices(config, changes)
    parts: dict[str, Any] = {}
    for name in PARTS:
        part = getattr(config, name)
        own = {f.name: left.pop(f.name) for f in dataclasses.fields(part) if f.name in left}
        parts[name] = replace(part, **given_settings(type(part), own))
    method, exits = parts["method"], parts["network"].exits != "none"
    if "horizon" in changes and exits:
        raise RicnetError(f"{setting('exits')} determines the number of steps; leave {setting('horizon')} out.")
    if (price := getattr(method, "compute_price", 0.0)) > 0 and not exits:
        priced = setting("compute_price", price)
        raise RicnetError(f"{priced} needs exits; add {setting('exits', 'stage')}, or leave the price out.")
    unknown = set(left) - {f.name for f in dataclasses.fields(Config)} | set(left) & {"data", *PARTS}
    if unknown:
        raise RicnetError(unknown_setting(min(unknown), config))
    for name, reason in method.without_effect(exits=exits).items():
        if name in changes:
            raise RicnetError(f"{setting(name, changes[name])} has no effect here: {reason}; leave it out.")
    return replace(config, **parts, **given_settings(Config, left))


def _without_choices(config: Config, changes: Mapping[str, Any]) -> Config:
    """The settings of a final fit, for which no rows are held out to choose by."""
    fixed = {"select": "last", "patience": None, "calibration": "none", "halt_rule": "value", "budget": None}
    for name, value in fixed.items():
        if changes.get(name, value) != value:
            raise RicnetError(
                f"{setting(name, changes[name])} needs validation rows, on which {setting('final_fit', True)} trains; "
                "leave one of them out."
            )
    if config.optimization.patience is not None and "epochs" not in changes:
        raise RicnetError(
            f"{setting('final_fit', True)} has no validation rows to stop by; add {setting('epochs')}, for example the "
            "selected epoch of a run with validation rows."
        )
    last = replace(config.optimization, select="last", patience=None)
    return replace(config, calibration="none", halt_rule="value", budget=None, optimization=last)


def all_settings(config: Config) -> dict[str, Any]:
    """Settings of a configuration and of its parts, by name."""
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
    """Complete the changes for a pretrained encoder: its path becomes absolute, and images of any size are resized to
    its resolution unless another one is given."""
    name = changes.get("encoder")
    if not isinstance(name, str) or not is_pretrained(name):
        return changes
    changes = {**changes, "encoder": whole_name(name)}
    if changes.get("resolution") is not None or not (isinstance(data, str | Path) and is_resizable(data)):
        return changes
    encoder = find_encoder(changes["encoder"])
    return {**changes, "resolution": max(encoder.architecture.size) if isinstance(encoder, ImageEncoder) else None}


def default_oversize(preset_name: str, changes: Mapping[str, Any]) -> dict[str, float | None]:
    """The default size of stored photographs: with `fast` larger than the network reads them, for sharper random crops
    (docs/questions/recipes.md). As large as it reads them with `paper`, without augmentation or smaller crops, and for
    pretrained and frozen encoders."""
    cropped = preset_name != "paper" and changes.get("augment", True) and changes.get("crop_area") != 1
    cropped = cropped and not changes.get("freeze")
    whole = not cropped or is_pretrained(str(changes.get("encoder", "")))
    return {} if whole or "oversize" in changes else {"oversize": None}


# Presets


def preset(name: str, method: str | None, facts: Facts, given: Mapping[str, Any] | None = None) -> Config:
    """The settings of a preset. `given` are settings of the user that others depend on."""
    method = choose_method(name, method, facts)
    if facts.rows < 2:
        raise RicnetError(f"there is {facts.rows} training row to learn from; training needs at least 2.")
    if facts.frozen:  # the model is trained on features, like a table
        facts = replace(facts, side=0, rows=facts.rows * (1 + facts.copies), freeze=True)
    if name == "paper":
        return _paper(method, facts, given or {})
    return _fast(method, facts, given or {}, any_data=name in RETIRED_PRESETS)


DEFAULT_METHODS: tuple[tuple[str, Callable[[Facts], bool], type[RIC]], ...] = (
    # Data, condition, algorithm of `fast`. Evidence: docs/questions/algorithm.md.
    ("exits", lambda f: f.exits, ClosedForm),
    ("texts", lambda f: f.text and (f.frozen or not f.pretrained), RIC),
    ("other data", lambda f: True, OnPolicy),
)


def choose_method(preset_name: str, method: str | None, facts: Facts = TYPICAL) -> str:
    """The method to train. The default is Algorithm 1 for `paper`, and for `fast` that of the first
    matching row of DEFAULT_METHODS."""
    retired = RETIRED_PRESETS.get(preset_name)
    if retired is not None and method in (None, RIC.name, retired):
        return retired
    if method is None:
        default = next(kind for _, fits, kind in DEFAULT_METHODS if fits(facts))
        method = RIC.name if preset_name == "paper" else default.name
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


def possible_methods(preset_name: str, method: str | None, exits: bool) -> list[str]:
    """Possible results of `choose_method` before the data is read."""
    return list(dict.fromkeys(choose_method(preset_name, method, replace(facts, exits=exits)) for facts in KINDS))


def notices(method: str | None, preset_name: str, facts: Facts = TYPICAL) -> list[str]:
    """Notes about deprecated names, and about Algorithm 1 where it is not the default."""
    if preset_name in RETIRED_PRESETS:
        new = setting("method", RETIRED_PRESETS[preset_name])
        return [
            f"{setting('preset', preset_name)} is deprecated and will be removed in the next version; use {new}, "
            "whose settings also depend on the kind of data."
        ]
    default = choose_method(preset_name, None, facts)
    if method == RIC.name != default:
        named = setting("method", RIC.name)
        return [f"{named} is Algorithm 1 of the paper (snapshots, SPO); the default is {setting('method', default)}."]
    return []


def _paper(method: str, facts: Facts, given: Mapping[str, Any]) -> Config:
    """Adam, batch size 256 and ReLU are values from the paper's sweep. Weight decay is decoupled: added to the
    gradient, it keeps RIC at 57 % on CIFAR-10 (docs/archive/experiments.md)."""
    kind = METHODS[method]
    settings = wide(facts.classes) if given.get("credit") == "marginal" else {}
    return Config(
        preset="paper",
        method=kind(**settings),
        network=EncoderOptions("resnet34" if facts.side else TEXT_ENCODER if facts.text else "mlp"),
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
    settings, optimization = _method_settings(kind, facts, given, any_data), _optimization(facts, given)
    if facts.is_table and hasattr(kind, "horizon"):
        settings |= _table_steps(facts, settings)
    if facts.exits:  # accuracy is noisy on few validation rows, and each exit has another
        optimization = replace(optimization, select="calibrated")
    if issubclass(kind, RIC) and not issubclass(kind, OnPolicy):  # gradients grow like the square of a large ratio
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
    """Range of the concentration c for joint credit: the policy explores and starts near the uniform distribution.
    c_max grows with the number of classes, so that the mean can come as close to certainty as with ten classes."""
    return {"c_max": float(max(10, classes)), "alpha_floor": 0.1 / classes, "head_gain": 0.01}


def wide(classes: int) -> dict[str, float]:
    """Range of c for marginal credit and the closed form, which have less noise: samples are closer to the mean."""
    return {"c_max": float(10 * max(10, classes)), "alpha_floor": 0.1, "head_gain": 1.0}


FEW = {"rollouts": 2, "gae_lambda": 0.95, "credit": "joint", "reward_floor": 1e-4, "label_baseline": True}
MANY = {"rollouts": 4, "gae_lambda": 0.0, "credit": "marginal", "label_baseline": True}
SHORT_ROUNDS = {"updates_per_snapshot": 2, "epsilon": 0.5}
"""Few updates per snapshot; the paper has 400 long rounds."""

Row = tuple[type[Method[Any]], str, Callable[[Facts], bool], dict[str, Any], Callable[[int], dict[str, float]] | None]
METHOD_SETTINGS: tuple[Row, ...] = (
    # Method, data, condition, settings, range of c. Evidence: docs/archive/experiments.md, for exits docs/exits.md.
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
    (OnPolicy, "table, > 5 classes", lambda f: f.many_classes_of_a_table, MANY, wide),
    (OnPolicy, "few rows", lambda f: f.few, FEW, narrow),
    (OnPolicy, "many rows", lambda f: True, MANY, wide),
    (RIC, "many classes", lambda f: f.many_classes, MANY | SHORT_ROUNDS, wide),
    (RIC, "table, > 5 classes", lambda f: f.many_classes_of_a_table, MANY | SHORT_ROUNDS, wide),
    (RIC, "few rows", lambda f: f.few, FEW | SHORT_ROUNDS, narrow),
    (RIC, "many rows", lambda f: True, MANY | SHORT_ROUNDS | {"credit": "joint"}, narrow),
    (Anytime, "exits", lambda f: f.exits, {"step_weight": "uniform", "value_coef": 0.5}, None),
    (Method, "any", lambda f: True, {}, None),
)
EACH_EXIT = {"gamma": 0.01, "rollouts": 16}
"""With exits and a user's score: a small gamma, so that each exit is rewarded for its own belief."""


def _method_settings(
    kind: type[Method[Any]], facts: Facts, given: Mapping[str, Any], any_data: bool = False
) -> dict[str, Any]:
    """Settings of the first row that matches. With `any_data`, only the numbers of rows and classes are compared, as in
    the retired presets."""
    # With exits no row for tables matches.
    known = replace(facts, side=0, text=False, freeze=False, exits=True) if any_data else facts
    _, _, _, settings, spread = next(row for row in METHOD_SETTINGS if issubclass(kind, row[0]) and row[2](known))
    if spread is None:
        return dict(settings)
    settings = settings | spread(facts.classes)
    if given.get("rollouts") == 1:  # the baseline compares roll-outs of an example
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
    """Settings that depend on the user's settings; `credit` is that of the preset. Another credit has another range of
    c. The logistic-normal policy and the objective `expected` have no marginal credit."""
    if given.get("objective") == "expected":
        return {"credit": "joint"}
    wanted = given.get("credit", "joint" if given.get("head") == "logistic-normal" else credit)
    if wanted == credit:
        return {}
    return {"credit": wanted} | (narrow(classes) if wanted == "joint" else {"reward_floor": None, **wide(classes)})


# Settings that all methods share in `fast`


def _network(facts: Facts) -> EncoderOptions:
    """Few images get a small network, and a CPU one that downsamples early, which leaves time for more updates. An
    encoder that the user names keeps its width. A pretrained encoder is followed by an MLP as wide as for tables."""
    share = by_rows(facts.rows, TABLE_WIDTH) if facts.is_table else 0.5 if facts.few else 1.0
    if facts.pretrained or facts.frozen:
        return EncoderOptions(facts.encoder or "custom", share, freeze=facts.frozen)
    if facts.text:
        return EncoderOptions(TEXT_ENCODER)
    if facts.is_table:
        return EncoderOptions("tabular" if facts.encoder is None else facts.encoder, share)
    if facts.side <= TINY_IMAGE:
        return EncoderOptions()
    chosen = EncoderOptions("resnet10", width=0.5) if facts.few else EncoderOptions()
    if facts.is_whitened:
        chosen = EncoderOptions("whitened", width=0.25)
    elif facts.device == "cpu" and facts.side <= SMALL_SIDE:
        chosen = EncoderOptions("conv", width=0.5)
    elif facts.device == "cpu":
        chosen = EncoderOptions("resnet10", width=0.25, stem="original")
    return chosen if facts.encoder in (None, "auto", chosen.encoder) else EncoderOptions(facts.encoder)


def _optimization(facts: Facts, given: Mapping[str, Any]) -> Optimization:
    if facts.is_table:
        return _texts(facts) if facts.reads_words else _table(facts)
    if facts.is_whitened:
        return _small_images_on_a_cpu(facts, given)
    if facts.few_photographs:
        return _few_images(facts)
    if facts.side > TINY_IMAGE and facts.device == "cpu":
        return _many_images_on_a_cpu(facts)
    return _few_rows(facts) if facts.few else _many_rows(facts, given)


def _few_images(facts: Facts) -> Optimization:
    """Chosen on photographs. The epoch is selected by NLL after temperature scaling, because accuracy is noisy on few
    validation images (docs/questions/choices.md)."""
    batch_size = even_batch(facts.rows, 32)
    epochs = min(100, max(30, math.ceil(800 / (facts.rows // batch_size))))
    return Optimization(
        epochs=epochs, batch_size=batch_size, lr=3e-3, weight_decay=0.5, average=0.98, select="calibrated", clip=0.5
    )


def _many_images_on_a_cpu(facts: Facts) -> Optimization:
    """Small batches make up for few epochs. Twenty epochs of 9,000 small images take minutes; fewer than eight epochs
    learn too little."""
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


def _small_images_on_a_cpu(facts: Facts, given: Mapping[str, Any]) -> Optimization:
    """Short runs of the encoder `whitened`: twelve epochs of 9,000 images (docs/questions/recipes.md)."""
    settings = Optimization(
        epochs=min(30, max(5, round(108_000 / facts.rows))),
        batch_size=64,
        optimizer="muon",
        lr=4e-3,
        weight_decay=0.5,
        warmup_epochs=1.0,
        clip=None,
        select="calibrated",
    )
    return averaged(settings, facts, given)


def _few_rows(facts: Facts) -> Optimization:
    """At least 500 updates."""
    batch_size = even_batch(facts.rows, 128) if facts.rows < VERY_FEW_ROWS else 128
    epochs = max(60, math.ceil(500 / (facts.rows // batch_size)))
    return Optimization(epochs=epochs, batch_size=batch_size, lr=3e-3, clip=0.5, select="calibrated")


def _many_rows(facts: Facts, given: Mapping[str, Any]) -> Optimization:
    """Strong weight decay suits image encoders with batch norm: the scale of their weights has no effect on the output,
    so decay sets the effective learning rate."""
    settings = Optimization(
        epochs=120,
        batch_size=512,
        lr=4e-3,
        weight_decay=0.5,
        warmup_epochs=2.0,
        clip=None,
        cutout=facts.side // 4 if facts.side > TINY_IMAGE else 0,
        select="calibrated",
    )
    return averaged(settings, facts, given)


def averaged(settings: Optimization, facts: Facts, given: Mapping[str, Any]) -> Optimization:
    """With the average of the weights over a tenth of the run, at most 1,000 updates. The user may have changed the
    number of updates."""
    own = {name: given[name] for name in ("epochs", "batch_size") if name in given}
    settings = replace(settings, **given_settings(Optimization, own))
    updates = settings.epochs * (facts.rows // min(settings.batch_size, facts.rows))
    return replace(settings, average=min(0.999, max(0.0, 1 - 10 / updates)))


# Tables: each setting maps numbers of rows to values; `by_rows` interpolates between them


TABLE_EPOCHS = {1_000: 100.0, 5_000: 60.0, 20_000: 20.0, 200_000: 20.0, 800_000: 5.0}
TABLE_BATCH = {2_000: 64.0, 10_000: 128.0}
TABLE_WIDTH = {2_000: 0.5, 20_000: 1.0}
TABLE_DECAY = {2_000: 1.0, 10_000: 0.2}
TABLE_AVERAGE = {2_000: 0.98, 10_000: 0.99}
TABLE_PATIENCE = {20_000: 15.0, 200_000: 5.0}
TABLE_STEPS, TABLE_ROLLOUTS = {2_000: 5.0, 8_000: 3.0}, {2_000: 4.0, 8_000: 2.0}
FEATURES_LR = {2_000: 1e-3, 20_000: 4e-3}
"""Learning rate for features of a frozen encoder. At the rate of tables, the best epoch of runs with few rows was the
second or third."""


def by_rows(rows: int, points: Mapping[int, float]) -> float:
    """Interpolate linearly in the logarithms of rows and values; constant outside the points."""
    counts, values = ([math.log(number) for number in numbers] for numbers in (points, points.values()))
    return float(f"{math.exp(float(np.interp(math.log(rows), counts, values))):.3g}")


def _table(facts: Facts) -> Optimization:
    """For tables, and features of a frozen encoder. Over-fitting shows first in the confidence, so the epoch is
    selected by NLL. The average of the weights replaces the end of the learning rate schedule, which a run that stops
    early does not reach. Evidence: docs/archive/experiments.md."""
    rows = facts.rows
    epochs = round(by_rows(rows, TABLE_EPOCHS))
    batch_size = max(round(by_rows(rows, TABLE_BATCH)), math.ceil(epochs * rows / MOST_UPDATES))
    return Optimization(
        epochs=epochs,
        batch_size=even_batch(rows, batch_size) if rows < VERY_FEW_ROWS else batch_size,
        lr=by_rows(rows, FEATURES_LR) if facts.frozen else 4e-3,
        weight_decay=by_rows(rows, TABLE_DECAY),
        average=by_rows(rows, TABLE_AVERAGE),
        select="nll",
        patience=round(by_rows(rows, TABLE_PATIENCE)),
    )


def _table_steps(facts: Facts, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, and roll-outs of methods that sample: fewer with many rows, where the time of an update matters more than
    its variance. Tables of up to five classes have 2 roll-outs; few rows of features keep those of METHOD_SETTINGS."""
    if facts.reads_words:
        return {"horizon": 5}
    most = by_rows(facts.rows, TABLE_ROLLOUTS) if facts.frozen or facts.classes > MOST_JOINT_OF_A_TABLE else 2
    keep = "rollouts" not in settings or facts.exits or (facts.frozen and facts.few)
    rollouts = {} if keep else {"rollouts": min(settings["rollouts"], round(most))}
    return {"horizon": round(by_rows(facts.rows, TABLE_STEPS)), **rollouts}


def _texts(facts: Facts) -> Optimization:
    """The vector of a word is learned from the few texts that have it, which takes more updates, and strong decay would
    undo it (docs/tutorials/text.md). A pretrained encoder that is trained too has no such vectors."""
    small, sparse = facts.few, not facts.pretrained
    batch_size = min(64 if small else 128, facts.rows)
    return Optimization(
        epochs=min(100, max(20, math.ceil((2_600 if sparse or not small else 1_000) / (facts.rows // batch_size)))),
        batch_size=batch_size,
        lr=4e-3,
        weight_decay=1.0 if small and not sparse else 0.2,
        average=0.98 if small else 0.99,
        select="nll",
        patience=15,
    )


def even_batch(rows: int, most: int) -> int:
    """The batch size in (most/2, most] that leaves the fewest rows over; an epoch skips rows that do not fill a
    batch."""
    sizes = range(most // 2 + 1, most + 1)
    return max(sizes, key=lambda size: (rows // size * size, size)) if rows > most else rows


def unwatched_table(rows: int) -> dict[str, Any]:
    """Changes for a table without validation rows for early stopping: few epochs, so that training ends before most
    small tables over-fit."""
    updates = rows // min(64, rows)
    return {"epochs": max(20, math.ceil(100 / updates))} if rows < LARGE_TABLE else {}
