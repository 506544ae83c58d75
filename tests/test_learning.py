"""Methods learn real data to a minimum accuracy. Takes minutes: `make slow-test`."""

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
    """For any seed."""
    ricnet.train("digits", seed=seed, out=tmp_path, device="cpu")
    test = evaluation(tmp_path)["test"]
    assert test["accuracy"] >= 0.975
    assert test["ece"] <= 0.05
    assert 2 <= test["mean_steps"] <= 18


def test_the_papers_algorithm_learns_and_its_ece_peaks_and_falls(tmp_path: Path) -> None:
    """Algorithm 1 as published, but for a stand-in small enough for a CPU (conv encoder, digits, batches of 64, 100
    epochs): accuracy runs ahead of confidence, so that ECE peaks, and falls as confidence follows."""
    published = {"optimizer": "adamw", "lr": 3e-4, "weight_decay": 1e-3, "schedule": "constant", "clip": 0.5}
    stand_in = {"encoder": "conv", "width": 0.5, "batch_size": 64, "epochs": 100, "augment": False}
    ricnet.train("digits", preset="paper", out=tmp_path, device="cpu", **published, **stand_in)
    method = json.loads((tmp_path / "config.json").read_text())["config"]["method"]
    assert (method["passes_per_snapshot"], method["updates_per_snapshot"], method["rollouts"]) == (5, None, 1)
    assert (method["name"], method["objective"]) == ("ric", "spo")
    course = [json.loads(line)["val"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    accuracy, ece, confidence = (
        [sum(entry[key] for entry in course[start : start + 10]) / 10 for start in range(0, 100, 10)]
        for key in ("accuracy", "ece", "mean_confidence")
    )
    assert accuracy[-1] > 0.95
    assert confidence == sorted(confidence)
    # All of it is too little confidence, but for a bin with a single image that is surer than right.
    gap = [right - sure for right, sure in zip(accuracy, confidence, strict=True)]
    assert ece == pytest.approx(gap, abs=0.005)
    peak = ece.index(max(ece))
    assert 0 < peak < 7
    assert ece[peak] > 0.7
    assert ece[-1] < ece[peak] - 0.02


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
