"""All defaults, given the method, what there is to learn, and the device.

`paper` has the paper's settings, which are the defaults of the methods' fields, and common practice where the paper is
silent. `fast` is ours: METHOD_SETTINGS for the method, `_network` and `_optimization` for all that methods share. The
first row of a table that holds is taken. What a user gives wins over all of them; where one setting of a row depends
on another that a user gives (the range of c on the credit), the row follows the user's.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ricnet.errors import RicnetError, setting, what_else
from ricnet.methods import METHODS, RIC, Anytime, ClosedForm, Method, OnPolicy
from ricnet.methods.archive import RETIRED_PRESETS
from ricnet.models.config import Config, Optimization
from ricnet.nets.encoders import TINY_IMAGE, EncoderOptions, is_pretrained

Preset = Literal["fast", "paper", "on-policy", "snapshots", "closed-form"]
"""The last three are methods now and go away with the next version."""
FEW_ROWS = 5_000
"""Training rows below which networks are smaller and runs are longer in epochs."""
VERY_FEW_ROWS = 1_000
ROWS_TO_JUDGE = 50
"""Minimum held-out rows to judge a run by, and rows from which an estimator holds some out: with fewer, one row is more
than two points of accuracy."""
HELD_OUT = 0.15
"""Share of validation rows of an estimator by default."""
TABLE_ROWS = 50_000
"""From so many rows of a table on, batches grow and epochs become fewer; rows of features have another recipe."""
MOST_VISITS, MOST_UPDATES = 4_000_000, 8_000
"""Rows that a large table is learned from, over all epochs unless that would be fewer than `LEAST_EPOCHS`; and
updates."""
LEAST_EPOCHS = 5
MOST_JOINT = 20
"""Most classes that few rows are judged by whole beliefs with (docs/archive/experiments.md)."""
MOST_JOINT_OF_A_TABLE = 5
"""The same of a table, which is learned from in fewer updates."""


@dataclass(frozen=True)
class Facts:
    """What a preset needs to know of the training data."""

    rows: int
    classes: int
    side: int
    """Of an image, in pixels; 0 for tables and texts."""
    device: str = "cuda"
    """cpu or cuda. On a CPU `fast` takes networks and epochs for images that it can train in minutes."""
    encoder: str | None = None
    """That the user names, if any: width and stem of another one do not suit it."""
    text: bool = False
    freeze: bool | None = None
    """What the user says; None leaves it to the preset."""
    copies: int = 0
    """Of each image that are learned from beside it."""
    exits: bool = False
    """Whether the encoder can be left early."""

    @property
    def pretrained(self) -> bool:
        return is_pretrained(self.encoder or "")

    @property
    def frozen(self) -> bool:
        """Few rows teach an encoder that knows much little, and a CPU takes hours for it."""
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
        """Or texts; also few rows of features."""
        return not self.side and (self.text or not self.frozen or self.rows < TABLE_ROWS)


TYPICAL = Facts(rows=50_000, classes=10, side=32)
"""For help texts, before any data has been read."""


# RIC's settings in `fast`


def narrow(classes: int) -> dict[str, float]:
    """Range of the Dirichlet for samples that are judged as a whole: it explores, and begins at the uniform. It grows
    with the classes, so that its mean can come as near to certainty for many as for ten."""
    return {"c_max": float(max(10, classes)), "alpha_floor": 0.1 / classes, "head_gain": 0.01}


def wide(classes: int) -> dict[str, float]:
    """The same where little noise is left, with marginal credit and in closed form: closer to what it means."""
    return {"c_max": float(10 * max(10, classes)), "alpha_floor": 0.1, "head_gain": 1.0}


FEW = {"rollouts": 2, "gae_lambda": 0.95, "credit": "joint", "reward_floor": 1e-4, "label_baseline": True}
MANY = {"rollouts": 4, "gae_lambda": 0.0, "credit": "marginal", "label_baseline": True}
SHORT_ROUNDS = {"updates_per_snapshot": 2, "epsilon": 0.5}
"""Where the paper has 400 long ones."""

Row = tuple[type[Method[Any]], str, Callable[[Facts], bool], dict[str, Any], Callable[[int], dict[str, float]] | None]
METHOD_SETTINGS: tuple[Row, ...] = (
    # method, data, whether it is that, settings, range of c.  Why: docs/archive/experiments.md, on exits docs/exits.md.
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
"""Sampled rewards of a score of your own, with exits: each exit for itself."""


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


def preset(name: str, method: str | None, facts: Facts, given: Mapping[str, Any] | None = None) -> Config:
    """The settings of a preset. None takes its default method; `given` are settings of the user that others follow."""
    method = choose_method(name, method, facts.exits)
    if name == "paper":
        return _paper(method, facts, given or {})
    return _fast(method, facts, given or {}, any_data=name in RETIRED_PRESETS)


def _learned_from(facts: Facts) -> Facts:
    """Rows of features, where the encoder is frozen."""
    if facts.rows < 2:
        raise RicnetError(f"there is {facts.rows} training row to learn from; training needs at least 2.")
    if not facts.frozen:
        return facts
    return replace(facts, side=0, rows=facts.rows * (1 + facts.copies), freeze=True)


def _paper(method: str, facts: Facts, given: Mapping[str, Any]) -> Config:
    """Of what the paper swept: Adam, batch 256, ReLU. Its weight decay is read as decoupled: coupled to the gradient,
    RIC stalls at 57 % on CIFAR-10 (docs/archive/experiments.md)."""
    facts, kind = _learned_from(facts), METHODS[method]
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
    facts, kind = _learned_from(facts), METHODS[method]
    settings, optimization = _method_settings(kind, facts, given, any_data), _optimization(facts)
    if facts.is_table and hasattr(kind, "horizon"):
        settings["horizon"] = 5
    if facts.exits:  # few validation rows tell accuracies apart badly, and each exit has one of its own
        optimization = replace(optimization, select="calibrated")
    if issubclass(kind, RIC) and not issubclass(kind, OnPolicy):  # a ratio far from 1 makes a gradient like its square
        optimization = replace(optimization, clip=0.5)
    return Config(
        preset="fast",
        calibration="auto",
        halt_rule="auto",
        method=kind(**settings),
        network=_network(facts),
        optimization=optimization,
    )


def _method_settings(
    kind: type[Method[Any]], facts: Facts, given: Mapping[str, Any], any_data: bool = False
) -> dict[str, Any]:
    """The first row that holds. With `any_data` rows and classes alone decide, as the retired presets had it."""
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
    """What changes beside settings that a user gives, where `credit` would have been chosen: another credit has
    another range of c, and some policies and objectives know no marginal credit."""
    if given.get("objective") == "expected":
        return {"credit": "joint"}
    wanted = given.get("credit", "joint" if given.get("head") == "logistic-normal" else credit)
    if wanted == credit:
        return {}
    return {"credit": wanted} | (narrow(classes) if wanted == "joint" else {"reward_floor": None, **wide(classes)})


def notices(method: str | None, preset_name: str) -> list[str]:
    """What a user should know about the names given."""
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


# What all methods share in `fast`


def _network(facts: Facts) -> EncoderOptions:
    """For few images a small one, on a CPU one that soon halves its images: time is better spent on updates. One that
    the user names instead comes at its own width. After one that others have trained comes what a table gets."""
    narrow = 0.5 if facts.few else 1.0
    if facts.pretrained or facts.frozen:
        return EncoderOptions(facts.encoder or "custom", narrow, freeze=facts.frozen)
    if facts.text:
        return EncoderOptions("words")
    if facts.is_table:
        return EncoderOptions(width=narrow)
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
    if facts.side > TINY_IMAGE and facts.few:
        return _few_images(facts)
    if facts.side > TINY_IMAGE and facts.device == "cpu":
        return _many_images_on_a_cpu(facts)
    return _few_rows(facts) if facts.few else _many_rows(facts)


def _few_images(facts: Facts) -> Optimization:
    """Averaged weights, found on photographs; the epoch by NLL after a temperature: few validation images tell
    accuracies apart badly (docs/questions/choices.md)."""
    batch_size = even_batch(facts.rows, 32)
    epochs = min(100, max(30, math.ceil(800 / (facts.rows // batch_size))))
    return Optimization(
        epochs=epochs, batch_size=batch_size, lr=3e-3, weight_decay=0.5, average=0.98, select="calibrated", clip=0.5
    )


def _many_images_on_a_cpu(facts: Facts) -> Optimization:
    """Small batches, for updates are what a few epochs lack. Twenty epochs of 9,000 small images are minutes; below
    eight too little is learned."""
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
    """At least 500 updates, however few the rows."""
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
        average=min(0.999, 1 - 10 / updates),  # over a tenth of the run where that is less than a thousand updates
        select="calibrated",
    )


def _table(facts: Facts) -> Optimization:
    """The one recipe for tables, whatever the door and the method; its steps are few, and so are its updates: from
    `TABLE_ROWS` rows on no more than `MOST_UPDATES`, by larger batches, and fewer than 20 epochs, so that time grows
    with the rows up to 200,000 of them, then hardly up to 800,000, and from there with the rows again. The epoch is the
    one with the lowest validation NLL, for what such a network over-fits is first of all its confidence. The average of
    the weights stands in for the end of the schedule, which a run that stops early never sees. Chosen on eight tables
    (docs/estimators.md); from 5,000 rows on, with a wider network and less decay, on three others
    (docs/archive/experiments.md). Few rows of a frozen encoder's features have a lower rate: they are closer to the
    answer than columns are, and at that of tables the best epoch was the second or third."""
    small, large = facts.few, facts.rows >= TABLE_ROWS and not facts.text
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
    """A batch of more than half of `most`, and no more than that, with the fewest rows left over in an epoch: a whole
    number of batches is made in each, and the rows that fill none would not be seen."""
    sizes = range(most // 2 + 1, most + 1)
    return max(sizes, key=lambda size: (rows // size * size, size)) if rows > most else rows


def unwatched_table(rows: int) -> dict[str, Any]:
    """What changes in it where no rows are kept aside to stop by: it ends before most small tables are over-fitted."""
    updates = rows // min(64, rows)
    return {"epochs": max(20, math.ceil(100 / updates))} if rows < TABLE_ROWS else {}
