"""Does it learn what it should? Minutes long: `make slow-test`."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ricnet
from ricnet.data import Dataset, load
from ricnet.errors import RicnetError

pytestmark = pytest.mark.slow


def evaluation(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits_with_the_fast_preset(seed: int, tmp_path: Path) -> None:
    """What `make demo` promises, for any seed."""
    ricnet.train("digits", seed=seed, out=tmp_path, device="cpu")
    test = evaluation(tmp_path)["test"]
    assert test["accuracy"] >= 0.975
    assert test["ece"] <= 0.05
    assert 2 <= test["mean_steps"] <= 18


def few_cifar_images(rows: int) -> Dataset:
    try:
        dataset = load("cifar10")
    except RicnetError as missing:
        pytest.skip(f"{missing} (RICNET_DATA={os.environ.get('RICNET_DATA')})")
    return replace(dataset, train=dataset.train.take(torch.arange(rows)), val=dataset.val.take(torch.arange(500)))


def test_ric_overfits_two_thousand_images(tmp_path: Path) -> None:
    """The learning signal is right if a small encoder can be driven to know its training images by heart."""
    dataset = few_cifar_images(2000)
    ricnet.train(dataset, encoder="conv", augment=False, weight_decay=0.0, select="nll", out=tmp_path, device="cpu")
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["train"]["accuracy"] > 0.95
