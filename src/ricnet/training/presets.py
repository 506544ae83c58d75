"""Settings to start from, given what there is to learn, and on what device.

`paper` holds the paper's settings, and common practice where it is silent. `fast` is ours. RIC has three more:
`on-policy`, which `fast` is with many rows, but for exits; `closed-form`, which it is with them; and `snapshots`
(Algorithm 1 with short rounds). Each method knows its own hyper-parameters (see `Method.fast`); here is what all of
them share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ricnet.errors import RicnetError, setting, what_else
from ricnet.methods import METHODS
from ricnet.methods.ric import FEW_ROWS as FEW_ROWS
from ricnet.nets.encoders import TINY_IMAGE, EncoderOptions, is_pretrained
from ricnet.training.config import Config, Optimization

Preset = Literal["fast", "paper", "on-policy", "snapshots", "closed-form"]
VERY_FEW_ROWS = 1_000
TABLE_ROWS = 50_000
"""From so many rows of a table on, batches grow and epochs become fewer; rows of features have another recipe."""
MOST_VISITS, MOST_UPDATES = 4_000_000, 8_000
"""Rows that a large table is learned from, over all epochs unless that would be fewer than `LEAST_EPOCHS`; and
updates."""
LEAST_EPOCHS = 5


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
    def is_table(self) -> bool:
        """Or texts; also few rows of features."""
        return not self.side and (self.text or not self.frozen or self.rows < TABLE_ROWS)


TYPICAL = Facts(rows=50_000, classes=10, side=32)
"""For help texts, before any data has been read."""


def preset(name: str, method: str, facts: Facts) -> Config:
    if method not in METHODS:
        raise RicnetError(f"{setting('method', method)} is unknown; {what_else(method, sorted(METHODS))}")
    if facts.rows < 2:
        raise RicnetError(f"there is {facts.rows} training row to learn from; training needs at least 2.")
    if facts.frozen:  # what is learned from are rows of features then
        facts = replace(facts, side=0, rows=facts.rows * (1 + facts.copies), freeze=True)
    if name == "paper":
        return _paper(method, facts)
    if name in get_args(Preset):
        return _fast(name, method, facts)
    raise RicnetError(f"{setting('preset', name)} is unknown; {what_else(name, get_args(Preset))}")


def making_room(config: Config, given: Mapping[str, Any], classes: int) -> Config:
    """A preset without what would contradict the settings that a user gives. Who asks for the closed form by name means
    it."""
    if config.preset == "closed-form":
        if given.get("credit") == "marginal":
            raise RicnetError(
                f"{setting('preset', 'closed-form')} and {setting('credit', 'marginal')} exclude each other: in closed "
                "form the gain of a step is not drawn; leave one of them out."
            )
        return config
    return replace(config, method=config.method.making_room(given, classes))


def _paper(method: str, facts: Facts) -> Config:
    """Of what the paper swept: Adam, batch 256, ReLU. Its weight decay is read as decoupled: coupled to the gradient,
    RIC stalls at 57 % on CIFAR-10 (docs/experiments.md)."""
    return Config(
        preset="paper",
        method=METHODS[method](),
        network=EncoderOptions("resnet34" if facts.side else "words" if facts.text else "mlp"),
        optimization=Optimization(
            epochs=METHODS[method].paper_epochs,
            batch_size=min(256, facts.rows),
            optimizer="adamw",
            lr=3e-4,
            weight_decay=1e-3,
            schedule="constant",
            clip=0.5,
        ),
    )


def _fast(name: str, method: str, facts: Facts) -> Config:
    few_images = facts.few and facts.side > TINY_IMAGE
    kinds = {
        "for_exits": facts.exits,
        "for_features": facts.frozen,
        "for_few_images": few_images,
        "for_tables": facts.is_table,
        "fast": True,
    }
    fast = next(kind for kind, holds in kinds.items() if holds)
    choose = getattr(METHODS[method], fast if name == "fast" else name.replace("-", "_"), None)
    if choose is None:
        raise RicnetError(
            f"{setting('preset', name)} is for {setting('method', 'ric')}, not for {method}; use "
            f"{setting('preset', 'fast')}, in ric compare with ric-{name}."
        )
    settings, optimization = choose(facts.rows, facts.classes), _optimization(facts)
    if facts.is_table and hasattr(settings, "horizon"):
        settings = replace(settings, horizon=5)
    if facts.exits:  # few validation rows tell accuracies apart badly, and each exit has one of its own
        optimization = replace(optimization, select="calibrated")
    if name == "snapshots":  # a ratio far from 1 makes a gradient like its square
        optimization = replace(optimization, clip=0.5)
    return Config(
        preset=name,
        calibration="auto",
        halt_rule="auto",
        method=settings,
        network=_network(facts),
        optimization=optimization,
    )


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
    accuracies apart badly (docs/experiments.md)."""
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
    (docs/experiments.md). Few rows of a frozen encoder's features have a lower rate: they are closer to the answer than
    columns are, and at that of tables the best epoch was the second or third."""
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
