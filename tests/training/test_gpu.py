"""Tests that need a GPU: `pytest -m gpu`."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ricnet.data import Dataset, load
from ricnet.methods import METHODS
from ricnet.models.run import RunFolder
from ricnet.training.api import run
from ricnet.training.optimization import tensor_cores
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GPU = torch.device("cuda")


@pytest.fixture
def digits() -> Dataset:
    return load("digits")


def final_losses(dataset: Dataset, folder: Path, method: str, **changes: Any) -> list[float]:
    config = configure(dataset, method, "fast", epochs=3, precision="float32", **changes)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "this update cannot be recorded")
        run(config, dataset, RunFolder(folder), GPU)
    return [json.loads(line)["train"]["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_alike(ours: list[float], theirs: list[float]) -> None:
    """Same random numbers, same arithmetic; kernels may be chosen differently, so losses agree to a few digits."""
    assert ours == pytest.approx(theirs, rel=0.05)
    assert ours[0] == pytest.approx(theirs[0], rel=5e-3)


@pytest.mark.parametrize(
    ("optimizer", "weighted"), [("adam", False), ("adamw", False), ("sgd", False), ("adamw", True)]
)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_recorded_update_is_the_eager_one(
    digits: Dataset, method: str, optimizer: str, weighted: bool, tmp_path: Path
) -> None:
    weights = torch.linspace(0.1, 1.9, len(digits.train)) if weighted else None
    data = dataclasses.replace(digits, train=dataclasses.replace(digits.train, weights=weights))
    graph = final_losses(data, tmp_path / "graph", method, optimizer=optimizer, lr=1e-3)
    eager = final_losses(data, tmp_path / "eager", method, optimizer=optimizer, lr=1e-3, cuda_graph=False)
    assert_alike(graph, eager)


@pytest.mark.parametrize("method", ["ric", "ric-on-policy"])
def test_marginal_credit_is_recorded_too(digits: Dataset, method: str, tmp_path: Path) -> None:
    graph = final_losses(digits, tmp_path / "graph", method, credit="marginal", lr=1e-3)
    eager = final_losses(digits, tmp_path / "eager", method, credit="marginal", lr=1e-3, cuda_graph=False)
    assert_alike(graph, eager)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_with_exits_too(digits: Dataset, method: str, tmp_path: Path) -> None:
    graph = final_losses(digits, tmp_path / "graph", method, exits="stage", lr=1e-3)
    assert_alike(graph, final_losses(digits, tmp_path / "eager", method, exits="stage", lr=1e-3, cuda_graph=False))


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_gpu_that_is_fed_from_the_host_learns_the_same(
    digits: Dataset, cuda_graph: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = final_losses(digits, tmp_path / "resident", "ric-on-policy", lr=1e-3, cuda_graph=cuda_graph)
    monkeypatch.setattr("ricnet.training.trainer.fits", lambda *_: False)
    assert_alike(final_losses(digits, tmp_path / "fed", "ric-on-policy", lr=1e-3, cuda_graph=cuda_graph), resident)


@pytest.mark.parametrize("method", ["ric", "ric-on-policy", "supervised"])
def test_a_batch_in_parts_is_recorded_too(digits: Dataset, method: str, tmp_path: Path) -> None:
    whole = final_losses(digits, tmp_path / "whole", method, lr=1e-3, encoder="mlp")
    assert_alike(final_losses(digits, tmp_path / "parts", method, lr=1e-3, encoder="mlp", accumulate=4), whole)


def test_resuming_a_recorded_run_goes_on_from_its_state(digits: Dataset, tmp_path: Path) -> None:
    config = configure(digits, "ric", "fast", epochs=2)
    folder = RunFolder(tmp_path / "run")
    folder.begin(config, digits, GPU)
    trainer = Trainer(config, digits, folder, GPU)
    for _ in range(5):
        trainer._step()
    trainer.checkpoint()
    saved = folder.read_state()
    trainer._step()
    other = Trainer(config, digits, folder, GPU)
    other.load_state_dict(saved)  # random numbers too, which both trainers draw from the device's one generator
    other._step()
    for name, tensor in trainer.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["ric", "ric-on-policy", "supervised"])
def test_the_same_seed_begins_the_same(digits: Dataset, method: str, tmp_path: Path) -> None:
    """Bit by bit nothing is promised on a GPU; the order of the data, the noise and the first weights are the same."""
    first, again, other = (
        final_losses(digits, tmp_path / name, method, lr=1e-3, seed=seed)
        for name, seed in {"first": 0, "again": 0, "other": 1}.items()
    )
    assert first == pytest.approx(again, rel=0.02)
    assert first[0] != pytest.approx(other[0], rel=1e-4)


def test_ratio_is_one_after_a_snapshot_with_a_bf16_encoder(digits: Dataset, tmp_path: Path) -> None:
    config = configure(digits, "ric", "fast", encoder="resnet10", width=0.25)
    trainer = Trainer(config, digits, RunFolder(tmp_path), GPU)
    trainer.snapshot.load_state_dict(trainer.model.state_dict())
    rows = trainer._next_rows()
    with tensor_cores():
        _, metrics = trainer.method.loss(trainer.model, trainer.snapshot, *trainer.batches(rows))
    assert metrics["ratio_deviation"].item() < 1e-4


def test_halted_inference_equals_the_masked_version(digits: Dataset, tmp_path: Path) -> None:
    config = configure(digits, "ric", "fast", epochs=3)
    run(config, digits, RunFolder(tmp_path), GPU)
    model = Trainer(config, digits, RunFolder(tmp_path / "new"), GPU).model.eval()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    method = dataclasses.replace(config.method, halt_threshold=0.02)
    inputs = digits.test.inputs.to(GPU)
    full, halted = method.refine(model, inputs).frozen(), method.refine(model, inputs, halt=True)
    agree = full.halt_step == halted.halt_step  # a value within rounding of the threshold may fall either way
    assert agree.float().mean() > 0.99
    torch.testing.assert_close(full.final[agree], halted.final[agree], rtol=1e-3, atol=1e-3)
