"""How the cost of an update grows with batch size, steps, roll-outs, classes and image size.

    python benchmarks/growth.py [--json FILE]

One quantity is varied at a time, and its values take turns. On a GPU updates are recorded as a CUDA graph; nothing is
compiled.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from common import (
    Row,
    Scale,
    argument_parser,
    make_trainer,
    peak_gigabytes,
    publish,
    random_images,
    scale_for,
    take_turns,
)
from ricnet.training.trainer import Trainer


@dataclass(frozen=True)
class Point:
    batch: int
    steps: int
    rollouts: int
    classes: int
    side: int


def usual(scale: Scale) -> Point:
    return Point(scale.batch, steps=20, rollouts=2, classes=10, side=scale.side)


def axes(scale: Scale) -> dict[str, Sequence[int]]:
    return {
        "batch": (scale.batch // 4, scale.batch, 4 * scale.batch),
        "steps": (5, 20, 80),
        "rollouts": (1, 2, 4, 8),
        "classes": (10, 100, 1000),
        "side": (scale.side, 2 * scale.side),
    }


def measure(device: torch.device, scale: Scale) -> list[Row]:
    rows: list[Row] = []
    for axis, values in axes(scale).items():
        rows += along(axis, values, device, scale)
        gc.collect()  # a reference cycle of trainer and recording holds the memory of the graph
        torch.cuda.empty_cache()
    return rows


def along(axis: str, values: Sequence[int], device: torch.device, scale: Scale) -> list[Row]:
    points = [replace(usual(scale), **{axis: value}) for value in values]
    ric = {
        point: build("ric", point, device, scale, horizon=point.steps, rollouts=point.rollouts, updates_per_snapshot=10)
        for point in points
    }
    supervised = {point: build("supervised", point, device, scale) for point in map(as_supervised, points)}
    turns = {str(point): trainer._step for point, trainer in (ric | supervised).items()}
    seconds = take_turns(turns, device, scale.turns, scale.calls)
    return [
        {
            "what": axis,
            "value": getattr(point, axis),
            "ms": 1000 * (taken := seconds[str(point)]),
            "µs/image": 1e6 * taken / point.batch,
            "× the usual": taken / seconds[str(usual(scale))],
            "SL, ms": 1000 * seconds[str(as_supervised(point))],
            "× SL": taken / seconds[str(as_supervised(point))],
            "peak GB": peak_gigabytes(ric[point]),
        }
        for point in points
    ]


def as_supervised(point: Point) -> Point:
    """The point with one step and one roll-out, as in supervised learning."""
    return replace(point, steps=1, rollouts=1)


def build(method: str, point: Point, device: torch.device, scale: Scale, **settings: Any) -> Trainer:
    dataset = random_images(point.side, point.classes)
    return make_trainer(method, dataset, device, **settings, **scale.network, batch_size=point.batch, compile="off")


def main() -> None:
    options = argument_parser(__doc__).parse_args()
    scale = scale_for(options.device)
    rows = measure(options.device, scale)
    notes = [f"The usual: {scale}, 10 classes, T = 20, 2 roll-outs, a snapshot every 10 updates. SL: supervised."]
    publish("RIC's update", rows, notes, options.device, options.json)


if __name__ == "__main__":
    main()
