"""The cost of an update: each method, eager, compiled and as a CUDA graph.

    python benchmarks/training.py [--json FILE]

`× SL` is the time relative to supervised learning that runs the same way. `of peak` is the FLOP/s of an update (matrix
products and convolutions, forward and backward) relative to those of a large matrix product on this device in the same
run (bf16 on a GPU, float32 on a CPU).
"""

import copy
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


def large_product(device: torch.device) -> tuple[Callable[[], object], int]:
    """A matrix product that uses the device fully, and its FLOPs."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    return lambda: matrix @ matrix, 2 * size**3


def main() -> None:
    options = argument_parser(__doc__).parse_args()
    device, scale = options.device, scale_for(options.device)
    rows = measure(device, scale)
    notes = ["ric: T = 20, 2 roll-outs, a snapshot every 10 updates; on-policy: the network itself."]
    if device.type != "cuda":
        notes.append("On a CPU: no graph, nothing compiled, memory not measured.")
    publish(f"An update: {scale}", rows, notes, device, options.json)


if __name__ == "__main__":
    main()
