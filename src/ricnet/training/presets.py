"""Settings to start from, given what there is to learn.

`paper` holds the paper's settings, and common practice where it is silent. `fast` is ours. Each method knows its own
hyper-parameters in either (see `Method.fast`); here is what all methods share.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ricnet.errors import RicnetError, what_else
from ricnet.methods import METHODS
from ricnet.nets.encoders import TINY_IMAGE, EncoderOptions
from ricnet.training.config import Config, Optimization

Preset = Literal["fast", "paper"]
FEW_ROWS = 5_000


@dataclass(frozen=True)
class Facts:
    """What a preset needs to know of the training data."""

    rows: int
    classes: int
    side: int
    """Of an image, in pixels; 0 for tables."""


TYPICAL = Facts(rows=50_000, classes=10, side=32)
"""For help texts, before any data has been read."""


def preset(name: str, method: str, facts: Facts) -> Config:
    if method not in METHODS:
        raise RicnetError(f"--method {method} is unknown; {what_else(method, sorted(METHODS))}")
    if facts.rows < 2:
        raise RicnetError(f"there is {facts.rows} training row to learn from; training needs at least 2.")
    if name == "paper":
        return _paper(method, facts)
    if name == "fast":
        return _fast(method, facts)
    raise RicnetError(f"--preset {name} is unknown; {what_else(name, get_args(Preset))}")


def _paper(method: str, facts: Facts) -> Config:
    """Of what the paper swept: Adam, batch 256, ReLU."""
    return Config(
        preset="paper",
        method=METHODS[method](),
        network=EncoderOptions("resnet34" if facts.side else "mlp"),
        optimization=Optimization(
            epochs=METHODS[method].paper_epochs,
            batch_size=min(256, facts.rows),
            optimizer="adam",
            lr=3e-4,
            weight_decay=1e-3,
            schedule="constant",
            clip=0.5,
        ),
    )


def _fast(method: str, facts: Facts) -> Config:
    if not facts.side and facts.rows < FEW_ROWS:
        return _small_table(method, facts)
    return Config(
        preset="fast",
        method=METHODS[method].fast(facts.rows, facts.classes),
        network=_fast_network(facts),
        optimization=_few_rows(facts) if facts.rows < FEW_ROWS else _many_rows(facts),
    )


def _fast_network(facts: Facts) -> EncoderOptions:
    """For few images a small one, which a CPU can train too."""
    small = facts.rows < FEW_ROWS and facts.side > TINY_IMAGE
    return EncoderOptions("resnet10", width=0.5) if small else EncoderOptions()


def _few_rows(facts: Facts) -> Optimization:
    """At least 500 updates, however few the rows."""
    batch_size = min(128, facts.rows)
    epochs = max(60, math.ceil(500 / (facts.rows // batch_size)))
    return Optimization(epochs=epochs, batch_size=batch_size, lr=3e-3, clip=0.5)


def _many_rows(facts: Facts) -> Optimization:
    """Strong decay suits the normalised encoders of images, whose weights have no scale of their own: it sets how fast
    they turn. The MLP of tables has a scale."""
    if not facts.side:
        return Optimization(epochs=120, lr=2e-3, clip=None)
    cutout = facts.side // 4 if facts.side > TINY_IMAGE else 0
    return Optimization(epochs=80, lr=4e-3, weight_decay=0.5, warmup_epochs=2.0, clip=None, cutout=cutout)


def _small_table(method: str, facts: Facts) -> Config:
    """The one recipe for tables below 5,000 rows, whatever the door and the method: a small network, few steps, and the
    epoch with the lowest validation NLL, for what such a network over-fits is first of all its confidence. The average
    of the weights stands in for the end of the schedule, which a run that stops early never sees. Chosen on eight
    tables (docs/estimators.md)."""
    usual = METHODS[method].fast(facts.rows, facts.classes)
    few_steps: dict[str, Any] = {"horizon": 5} if hasattr(usual, "horizon") else {}
    batch_size = min(64, facts.rows)
    updates = facts.rows // batch_size
    return Config(
        preset="fast",
        method=replace(usual, **few_steps),
        network=EncoderOptions(width=0.5),
        optimization=Optimization(
            epochs=min(100, max(20, math.ceil(1_000 / updates))),
            batch_size=batch_size,
            lr=4e-3,
            weight_decay=1.0,
            average=0.98,
            select="nll",
            patience=15,
        ),
    )


def unwatched_table(rows: int) -> dict[str, Any]:
    """What changes in it where no rows are kept aside to stop by: it ends before most tables are over-fitted."""
    updates = rows // min(64, rows)
    return {"epochs": max(20, math.ceil(100 / updates))} if rows < FEW_ROWS else {}
