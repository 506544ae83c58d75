"""What an answer costs: RIC that halts, RIC that always takes all its steps, and one pass of supervised learning.

    python benchmarks/inference.py [RUN] [--data-dir DIR] [--json FILE]

RUN is a folder of `ric train --method ric`, measured on the test images it names; without one, RIC first learns digits,
for halting needs a model with something to say. Supervised learning has the same encoder; its time does not depend on
its weights. `refining` is the same without the encoder, from contexts that were made before the clock started. There
`× faster`, full / halted, shall be at least `wanted`: 0.6 × the steps of a full run / `cells`, the mean number of cell
evaluations of an example. On a GPU everything is measured both eagerly and recorded as CUDA graphs.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

import ricnet
from common import Row, publish, take_turns
from ricnet import Classifier
from ricnet.core.trajectory import Trajectory
from ricnet.data import load as load_data
from ricnet.methods import Supervised
from ricnet.methods.ric import RIC
from ricnet.models.recorded import Recordings
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.api import pick_device
from ricnet.training.optimization import tensor_cores

BATCHES = (1, 32, 1024)
GPU_BATCH = 65_536
"""Large enough that a step's time should depend on its rows, and not on the launching of its kernels."""
SINGLES = 32
"""How many inputs a turn answers one after the other at batch 1: their steps differ, and so do their times."""
TURNS, TURNS_OF_LARGE = 9, 3
EPOCHS = 30

Refine = Callable[..., object]


class WithoutEncoder(RecurrentClassifier):
    """Takes contexts, which an encoder has made, for inputs."""

    def __init__(self, model: RecurrentClassifier) -> None:
        size = model.refiner.size
        super().__init__(Backbone(nn.Identity(), (size,)), size, model.classes)
        self.refiner = model.refiner

    def context(self, inputs: Tensor) -> Tensor:
        return inputs


def measure(classifier: Classifier, inputs: Tensor, device: torch.device) -> list[Row]:
    """Batches are taken from the inputs in their order, from the first again where there are too few."""
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
    """All inputs, a batch at a time; times are those of one batch."""
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
    """That halting saves time and changes no answer."""
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
    """What recording changes, and what it would change to round the refiner's products to TF32, too."""
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


@contextmanager
def run_or_digits(run: Path | None, device: torch.device) -> Iterator[Classifier]:
    if run is not None:
        yield ricnet.load(run, str(device))
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield ricnet.train("digits", out=Path(scratch) / "run", epochs=EPOCHS, device=str(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a RIC run")
    parser.add_argument("--data-dir", type=Path, help="where named data sets lie")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:0")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    options = parser.parse_args()
    device = pick_device(options.device)
    with run_or_digits(options.run, device) as classifier:
        if not isinstance(classifier.method, RIC):
            parser.error(f"{options.run} is a run of {classifier.method.name}; give one of ric.")
        classifier = replace(classifier, method=replace(classifier.method, feedback="mean"))
        config = classifier.config
        test = load_data(config.data, data_dir=options.data_dir, resolution=config.resolution).test
        inputs, labels = test.inputs.to(device), test.labels.to(device)
        rows = measure(classifier, inputs, device)
        notes = [f"The test set has {len(inputs):,} inputs.", agreement(classifier, inputs, labels)]
        notes += precision(classifier, inputs) if device.type == "cuda" else []
        publish(f"Answers of RIC on {config.data}", rows, notes, device, options.json)


if __name__ == "__main__":
    main()
