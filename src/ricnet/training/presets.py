"""Settings to start from, given what there is to learn, and on what device.

`paper` holds the paper's settings, and common practice where it is silent. `fast` is ours. Each method knows its own
hyper-parameters in either (see `Method.fast`); here is what all methods share.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ricnet.errors import RicnetError, what_else
from ricnet.methods import METHODS
from ricnet.nets.encoders import TINY_IMAGE, EncoderOptions
from ricnet.training.config import Config, Optimization

Preset = Literal["fast", "paper"]
FEW_ROWS, VERY_FEW_ROWS = 5_000, 1_000


@dataclass(frozen=True)
class Facts:
    """What a preset needs to know of the training data."""

    rows: int
    classes: int
    side: int
    """Of an image, in pixels; 0 for tables."""
    device: str = "cuda"
    """cpu or cuda. On a CPU `fast` takes networks and epochs for images that it can train in minutes."""


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
    return Config(
        preset="fast",
        method=METHODS[method].fast(facts.rows, facts.classes),
        network=_fast_network(facts),
        optimization=_fast_optimization(facts),
    )


def _fast_network(facts: Facts) -> EncoderOptions:
    """For few images a small one, on a CPU one that soon halves its images: time is better spent on updates."""
    if facts.side <= TINY_IMAGE:
        return EncoderOptions()
    if facts.device == "cpu" and facts.side <= 32:
        return EncoderOptions("conv", width=0.5)
    if facts.device == "cpu":
        return EncoderOptions("resnet10", width=0.25, stem="original")
    return EncoderOptions("resnet10", width=0.5) if facts.rows < FEW_ROWS else EncoderOptions()


def _fast_optimization(facts: Facts) -> Optimization:
    if facts.side > TINY_IMAGE and facts.rows < FEW_ROWS:
        return _few_images(facts)
    if facts.side > TINY_IMAGE and facts.device == "cpu":
        return _many_images_on_a_cpu(facts)
    return _few_rows(facts) if facts.rows < FEW_ROWS else _many_rows(facts)


def _few_images(facts: Facts) -> Optimization:
    """Averaged weights, and an epoch chosen by NLL: few validation images tell accuracies apart badly. Found on
    photographs (docs/experiments.md)."""
    batch_size = even_batch(facts.rows, 32)
    epochs = min(100, max(30, math.ceil(800 / (facts.rows // batch_size))))
    return Optimization(
        epochs=epochs, batch_size=batch_size, lr=3e-3, weight_decay=0.5, average=0.98, select="nll", clip=0.5
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
        select="nll",
        clip=None,
    )


def even_batch(rows: int, most: int) -> int:
    """A batch of more than half of `most`, and no more than that, with the fewest rows left over in an epoch: a whole
    number of batches is made in each, and the rows that fill none would not be seen."""
    sizes = range(most // 2 + 1, most + 1)
    return max(sizes, key=lambda size: (rows // size * size, size)) if rows > most else rows


def _few_rows(facts: Facts) -> Optimization:
    """At least 500 updates, however few the rows."""
    batch_size = even_batch(facts.rows, 128) if facts.rows < VERY_FEW_ROWS else 128
    epochs = max(60, math.ceil(500 / (facts.rows // batch_size)))
    return Optimization(epochs=epochs, batch_size=batch_size, lr=3e-3, clip=0.5)


def _many_rows(facts: Facts) -> Optimization:
    """Strong decay suits the normalised encoders of images, whose weights have no scale of their own: it sets how fast
    they turn. The MLP of tables has a scale."""
    if not facts.side:
        return Optimization(epochs=120, lr=2e-3, clip=None)
    cutout = facts.side // 4 if facts.side > TINY_IMAGE else 0
    return Optimization(epochs=80, lr=4e-3, weight_decay=0.5, warmup_epochs=2.0, clip=None, cutout=cutout)


def small_table(rows: int, batch_size: int | None) -> dict[str, Any]:
    """What takes the place of `fast` for estimators below 5,000 rows: small batches, few epochs and much decay, found
    on parts of wine, breast cancer and digits (docs/experiments.md)."""
    if rows >= FEW_ROWS:
        return {}
    batch_size = min(batch_size or 32, rows)
    return {
        "batch_size": batch_size,
        "epochs": max(20, math.ceil(100 / (rows // batch_size))),
        "lr": 3e-3,
        "weight_decay": 3.0 if rows < VERY_FEW_ROWS else 1.0,
        "width": 0.5 if rows < VERY_FEW_ROWS else 1.0,
        "horizon": 10,
    }
