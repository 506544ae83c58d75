"""The time of an answer: RIC with halting, RIC with all steps, and one pass of supervised learning.

    python benchmarks/inference.py [RUN] [--data-dir DIR] [--json FILE]

RUN is a run of `ric train --method ric`, measured on its test images; without one, RIC is first trained on digits,
because halting needs a trained model. Supervised learning has the same encoder; its time does not depend on its
weights. `refining` is the time without the encoder. There `× faster`, full / halted, should be at least `wanted`:
0.6 × the steps of a full run / `cells`, the mean number of cell evaluations of an example. On a GPU everything is
measured eagerly and recorded as CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

import ricnet
from common import Row, argument_parser, publish, run_or_digits, take_turns
from ricnet import Classifier
from ricnet.core.trajectory import Trajectory
from ricnet.data import load as load_data
from ricnet.methods import Supervised
from ricnet.methods.ric import RIC
from ricnet.models.recorded import Recordings
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.optimization import tensor_cores

BATCHES = (1, 32, 1024)
GPU_BATCH = 65_536
"""Batch size at which the time of a step depends on its rows, not on launching kernels."""
SINGLES = 32
"""Inputs per turn at batch 1, because inputs differ in their steps."""
TURNS, TURNS_OF_LARGE = 9, 3
EPOCHS = 30

Refine = Callable[..., object]


class WithoutEncoder(RecurrentClassifier):
    """Its inputs are contexts, outputs of the encoder."""

    def __init__(self, model: RecurrentClassifier) -> None:
        size = model.refiner.size
        super().__init__(Backbone(nn.Identity(), (size,)), size, model.classes)
        self.refiner = model.refiner

    def context(self, inputs: Tensor) -> Tensor:
        return inputs


def measure(classifier: Classifier, inputs: Tensor, device: torch.device) -> list[Row]:
    """Batches are taken from the inputs in order, cyclically."""
    rows: list[Row] = []
    for batch in (*BATCHES, *([len(inputs), GPU_BATCH] if device.type == "cuda" else [])):
        some = inputs[torch.arange(max(SINGLES, batch), device=inputs.device) % len(inputs)]
        rows += compare(classifier, some, batch, device)
        if device.type == "cuda":
            rows += compare(classifier, some, batch, device, Recordings())
    return rows


@torch.no_grad()
def compare(
    classifier: Classifier, inputs: Tensor, batch: int, device: torch.device, recordings: Recordings | None = None
) -> list[Row]:
    """Answer all inputs in batches; times are per batch."""
    method, model = cast(RIC, classifier.method), cast(RecurrentClassifier, classifier.model)
    refiner, contexts = WithoutEncoder(model), method.start(model, inputs).context
    supervised = Supervised()
    one_pass = supervised.build(cast(Backbone, model.backbone), model.classes).to(device).eval()

    def answer(system: RIC | Supervised, network: nn.Module, rows: Tensor, halt: bool) -> None:
        refine: Refine = system.refine if recordings is None else partial(recordings.refine, system)
        for part in rows.split(batch):
            refine(network, part, halt=halt)

    candidates = {
        "halted": partial(answer, method, model, inputs, True),
        "full": partial(answer, method, model, inputs, False),
        "supervised": partial(answer, supervised, one_pass, inputs, False),
        "refining, halted": partial(answer, method, refiner, contexts, True),
        "refining, full": partial(answer, method, refiner, contexts, False),
    }
    turns = TURNS if batch <= max(BATCHES) else TURNS_OF_LARGE
    seconds = {name: taken * batch / len(inputs) for name, taken in take_turns(candidates, device, turns).items()}
    evaluations = method.refine(model, inputs, halt=True).cell_evaluations.double().mean().item()
    wanted = 0.6 * method.horizon / evaluations
    what = {"batch": batch, "graphs": None if recordings is None else "yes", "cells": evaluations}
    return [
        {"what": "answer", **what, **times(seconds, "", batch), "wanted": None},
        {"what": "refining", **what, **times(seconds, "refining, ", batch), "wanted": wanted},
    ]


def times(seconds: dict[str, float], prefix: str, batch: int) -> dict[str, float | None]:
    halted, full, supervised = seconds[prefix + "halted"], seconds[prefix + "full"], seconds.get(prefix + "supervised")
    return {
        "SL ms": None if supervised is None else 1000 * supervised,
        "full ms": 1000 * full,
        "halted ms": 1000 * halted,
        "halted/s": batch / halted,
        "× faster": full / halted,
    }


@torch.no_grad()
def agreement(classifier: Classifier, inputs: Tensor, labels: Tensor) -> str:
    """Whether halting changes answers."""
    halted, full = classifier.refine(inputs), classifier.refine(inputs, halt=False)
    same = halted.final.argmax(-1) == full.final.argmax(-1)
    right = [(path.final.argmax(-1) == labels).double().mean().item() for path in (halted, full)]
    last = (full.log_beliefs[-1].argmax(-1) == labels).double().mean().item()
    return (
        f"Accuracy {right[0]:.2%} halted, {right[1]:.2%} if the steps after the halt are computed and ignored "
        f"({same.double().mean().item():.2%} the same answer, {nearness(halted, full)}), {last:.2%} at the last step."
    )


@torch.no_grad()
def precision(classifier: Classifier, inputs: Tensor) -> list[str]:
    """Differences due to recording, and to recording with TF32 products in the refiner."""
    method, model = cast(RIC, classifier.method), cast(RecurrentClassifier, classifier.model)
    refiner, contexts = WithoutEncoder(model), method.start(model, inputs).context
    eager = method.refine(refiner, contexts, halt=True)
    recorded = Recordings().refine(method, refiner, contexts, halt=True)
    with tensor_cores():
        rounded = Recordings().refine(method, refiner, contexts, halt=True)
    return [f"Recorded: {nearness(recorded, eager)}.", f"Recorded with TF32 products: {nearness(rounded, eager)}."]


def nearness(ours: Trajectory, theirs: Trajectory) -> str:
    same = ours.halt_step == theirs.halt_step
    apart = (ours.final.exp() - theirs.final.exp())[same].abs().max().item()
    return f"{same.double().mean().item():.2%} at the same step, their beliefs at most {apart:.1g} apart"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="folder of a run of RIC")
    parser.add_argument("--data-dir", type=Path, help="folder of named data sets")
    options = parser.parse_args()
    device = options.device
    with run_or_digits(options.run, device, epochs=EPOCHS) as run:
        classifier = ricnet.load(run, str(device))
        if not isinstance(classifier.method, RIC):
            parser.error(f"{options.run} is a run of {classifier.method.name}; give a run of ric.")
        classifier = replace(classifier, method=replace(classifier.method, feedback="mean"))
        config = classifier.config
        how = {"resolution": config.resolution, "oversize": config.oversize}
        test = load_data(config.data, data_dir=options.data_dir, **how).test
        inputs, labels = test.inputs.to(device), test.labels.to(device)
        rows = measure(classifier, inputs, device)
        notes = [f"The test set has {len(inputs):,} inputs.", agreement(classifier, inputs, labels)]
        notes += precision(classifier, inputs) if device.type == "cuda" else []
        publish(f"Answers of RIC on {config.data}", rows, notes, device, options.json)


if __name__ == "__main__":
    main()
