"""The cost of an update: each method, eager, compiled and as a CUDA graph.

    python benchmarks/training.py [--json FILE]
    python benchmarks/training.py --tables [--json FILE]

`× SL` is the time relative to supervised learning that runs the same way. `of peak` is the FLOP/s of an update (matrix
products and convolutions, forward and backward) relative to those of a large matrix product on this device in the same
run (bf16 on a GPU, float32 on a CPU). `--tables` measures tables instead, by the recipes of `fast`, in CPU seconds; it
takes about two minutes on an idle core.
"""

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from common import (
    Row,
    Scale,
    argument_parser,
    make_trainer,
    peak_gigabytes,
    publish,
    random_images,
    random_table,
    scale_for,
    take_turns,
)
from ricnet.data import Dataset
from ricnet.models.classifier import build_model
from ricnet.training.trainer import Trainer

SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "supervised": ("supervised", {}),
    "ric": ("ric", {"rollouts": 2, "updates_per_snapshot": 10}),
    "ric, on-policy": ("ric-on-policy", {"rollouts": 2}),
    "anytime": ("anytime", {}),
    "act": ("act", {}),
    "pondernet": ("pondernet", {}),
}
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"cuda_graph": False, "compile": "off"},
    "compiled": {"cuda_graph": False, "compile": "on"},
    "graph": {"cuda_graph": True, "compile": "off"},
    "graph, compiled": {"cuda_graph": True, "compile": "on"},
}
IN_EVERY_WAY = ("supervised", "ric")
"""Systems that run in all ways; the others only in the fastest."""
PRODUCT = "a large product"


TABLES = {
    "2,500 rows, 3 classes": (2_500, 3),
    "4,500 rows, 3 classes": (4_500, 3),
    "4,500 rows, 10 classes": (4_500, 10),
    "20,000 rows, 10 classes": (20_000, 10),
    "60,000 rows, 10 classes": (60_000, 10),
    "500,000 rows, 10 classes": (500_000, 10),
    "20,000 rows, 1,000 classes": (20_000, 1_000),
}
TABLE_METHODS = ("supervised", "ric-on-policy", "ric-closed-form", "ric")
TABLE_TURNS, TABLE_UPDATES = 5, 10
"""Turns, and updates per turn; one update of each turn computes diagnostics."""


class Candidate(NamedTuple):
    system: str
    way: str


def candidates(device: torch.device) -> list[Candidate]:
    """On a CPU there are no graphs, and compiling would take longer than everything else."""
    ways = list(WAYS) if device.type == "cuda" else ["eager"]
    return [Candidate(s, w) for s in SYSTEMS for w in ways if s in IN_EVERY_WAY or w == ways[-1]]


def measure(device: torch.device, scale: Scale) -> list[Row]:
    dataset, (product, product_flops) = random_images(scale.side), large_product(device)
    trainers = {c: build(c, dataset, device, scale) for c in candidates(device)}
    turns: dict[str, Callable[[], object]] = {str(c): trainer._step for c, trainer in trainers.items()}
    seconds = take_turns(turns | {PRODUCT: product}, device, scale.turns, scale.calls)
    peak = product_flops / seconds[PRODUCT]
    flops = {s: flops_per_image(t, dataset) for s, t in {c.system: t for c, t in trainers.items()}.items()}
    return [
        {
            "method": c.system,
            "way": c.way,
            "ms": 1000 * (taken := seconds[str(c)]),
            "images/s": scale.batch / taken,
            "× SL": taken / seconds[str(Candidate("supervised", c.way))],
            "GFLOP/image": flops[c.system] / 1e9,
            "of peak": flops[c.system] * scale.batch / taken / peak,
            "peak GB": peak_gigabytes(trainer),
        }
        for c, trainer in trainers.items()
    ]


def build(candidate: Candidate, dataset: Dataset, device: torch.device, scale: Scale) -> Trainer:
    method, settings = SYSTEMS[candidate.system]
    way = WAYS[candidate.way]
    return make_trainer(method, dataset, device, **settings, **way, **scale.network, batch_size=scale.batch)


def flops_per_image(trainer: Trainer, dataset: Dataset) -> float:
    """Counted on two images with a new network, because FLOPs of compiled code cannot be counted."""
    config = trainer.config
    model, _ = build_model(config, dataset.input_shape, len(dataset.class_names))
    snapshot = model if trainer.snapshot is trainer.model else copy.deepcopy(model).requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        loss, _ = config.method.loss(model, snapshot, dataset.train.inputs[:2], dataset.train.labels[:2])
        loss.backward()
    return counter.get_total_flops() / 2


def measure_tables(device: torch.device) -> list[Row]:
    return [row for table in TABLES for row in measure_table(table, device)]


def measure_table(table: str, device: torch.device) -> list[Row]:
    trainers = {method: table_trainer(table, method, device) for method in TABLE_METHODS}
    flops = {method: flops_per_image(trainer, trainer.dataset) for method, trainer in trainers.items()}
    turns = {method: trainer._step for method, trainer in trainers.items()}
    seconds = take_turns(turns, device, TABLE_TURNS, TABLE_UPDATES, time.process_time)
    return [
        {"table": table, "method": method, **recipe(trainer)}
        | {"kFLOP/row": flops[method] / 1000, "FLOP × SL": flops[method] / flops["supervised"]}
        | {"CPU ms": 1000 * seconds[method], "× SL": seconds[method] / seconds["supervised"]}
        for method, trainer in trainers.items()
    ]


def table_trainer(table: str, method: str, device: torch.device) -> Trainer:
    return make_trainer(method, random_table(*TABLES[table]), device)


def recipe(trainer: Trainer) -> dict[str, int | float]:
    """Settings that determine the cost of an update."""
    steps, rollouts = (getattr(trainer.config.method, name, 1) for name in ("horizon", "rollouts"))
    return {"batch": trainer.batch_size, "width": trainer.config.network.width, "T": steps, "roll-outs": rollouts}


def large_product(device: torch.device) -> tuple[Callable[[], object], int]:
    """A matrix product that uses the device fully, and its FLOPs."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    return lambda: matrix @ matrix, 2 * size**3


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tables", action="store_true", help="measure tables instead of images")
    options = parser.parse_args()
    device, scale = options.device, scale_for(options.device)
    if options.tables:
        notes = [f"CPU time, medians over {TABLE_TURNS} turns of {TABLE_UPDATES} updates."]
        publish("An update of a table", measure_tables(device), notes, device, options.json)
        return
    rows = measure(device, scale)
    notes = ["ric: T = 20, 2 roll-outs, a snapshot every 10 updates; on-policy: the network itself."]
    if device.type != "cuda":
        notes.append("On a CPU: no graph, nothing compiled, memory not measured.")
    publish(f"An update: {scale}", rows, notes, device, options.json)


if __name__ == "__main__":
    main()
