"""A tiny data set, and settings that learn it in a fraction of a second."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ricnet.data import Dataset, Split
from ricnet.models.config import Config
from ricnet.models.run import RunFolder
from ricnet.training.api import run
from ricnet.training.callbacks import Callback
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

CPU = torch.device("cpu")
PARTS = ("train", "val", "test")
MadeOnce = Callable[[str, Callable[[Path], object]], Path]
"""The fixture `made_once`: a name, and a function that fills a folder."""


def blobs(rows: int, seed: int) -> Split:
    """Three overlapping clouds in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    return Split(2 * torch.eye(4)[:3][labels] + torch.randn(rows, 4, generator=generator), labels)


def configured(dataset: Dataset, method: str = "ric-on-policy", **changes: Any) -> Config:
    """Three epochs of three updates of three steps."""
    steps = {} if method == "supervised" else {"horizon": 3}
    small = {"epochs": 3, "batch_size": 32, "width": 0.1, "baselines": False}
    return configure(dataset, method, "fast", **(small | steps | changes))


def trainer(dataset: Dataset, method: str = "supervised", **changes: Any) -> Trainer:
    """Without a folder."""
    return Trainer(configured(dataset, method, **changes), dataset, None, CPU)


def trained(dataset: Dataset, folder: Path, method: str = "supervised", **changes: Any) -> Any:
    return run(configured(dataset, method, **changes), dataset, RunFolder(folder), CPU)


def weighted(dataset: Dataset) -> Dataset:
    parts = {name: getattr(dataset, name) for name in ("train", "val")}
    heavy = {name: dataclasses.replace(part, weights=torch.arange(1.0, len(part) + 1)) for name, part in parts.items()}
    return dataclasses.replace(dataset, **heavy)


class EachEpoch(Callback):
    """Calls a function with each line of metrics.jsonl."""

    def __init__(self, act: Callable[[dict[str, Any]], object]) -> None:
        self.act = act

    def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
        self.act(line)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_weights(left: Path, right: Path) -> None:
    """Bit for bit."""
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """What each epoch left in metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def epochs(folder: Path) -> list[Any]:
    """All of that but clocks."""
    return [(line["epoch"], line["train"], line["val"]) for line in read_lines(folder)]


def read(path: Path) -> Any:
    return json.loads(path.read_text())
