"""Gradients of a minibatch in parts (over processes: test_distributed.py), optimizers and learning rates."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from problems import CPU, assert_same_weights, trained, trainer
from refusals import refusal
from ricnet.data import Dataset
from ricnet.distributed import Processes, Shard
from ricnet.methods import METHODS
from ricnet.models.config import Optimization
from ricnet.models.run import RunFolder
from ricnet.nets.backbone import Backbone
from ricnet.training.optimization import (
    clip_gradient,
    compiles,
    make_optimizer,
    rate_factor,
    refuse_thin_parts,
    restore_optimizer,
    set_rate,
)
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

SYSTEMS: dict[str, dict[str, Any]] = {
    **{method: {} for method in sorted(METHODS)},
    "ric, with longer rounds": {"updates_per_snapshot": 3, "reward_floor": None},
    "ric, logistic-normal": {"head": "logistic-normal"},
}


def updated(system: str, dataset: Dataset, parts: int) -> Trainer:
    method = system.split(",")[0]
    own = {} if method == "supervised" else {"horizon": 3}
    settings = {"batch_size": 15, "width": 0.1, "accumulate": parts} | own | SYSTEMS[system]
    trainer = Trainer(configure(dataset, method, "fast", **settings), dataset, None, CPU)
    for _ in range(2):
        trainer._step()
    return trainer


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_batch_in_parts_gives_the_update_of_the_whole(system: str, dataset: Dataset) -> None:
    """15 rows in 4 parts, which are not equally large. Explained variance alone is a mean over the parts."""
    if system in ("ric", "supervised"):
        train = replace(dataset.train, weights=torch.linspace(0.1, 2, len(dataset.train)))
        dataset = replace(dataset, train=train)
    torch.set_default_dtype(torch.float64)
    try:
        whole, parts = (updated(system, dataset, parts) for parts in (1, 4))
    finally:
        torch.set_default_dtype(torch.float32)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], tensor, atol=1e-10, rtol=1e-10)
    for name in whole.sums.keys() - {"explained_variance"}:
        assert float(parts.sums[name]) == pytest.approx(float(whole.sums[name]), rel=1e-5, abs=1e-6), name


def test_parts_that_are_too_thin_are_refused() -> None:
    refuse_thin_parts(Shard(1), 1)
    refuse_thin_parts(Processes(0, 2).shard(16), 4)
    with refusal(15, "2 processes", "4 parts", "batch_size"):
        refuse_thin_parts(Processes(0, 2).shard(15), 4)
    with refusal("accumulate"):
        refuse_thin_parts(Shard(5), 3)


def test_the_rate_warms_up_and_falls_by_a_cosine_to_lr_end() -> None:
    factors = [rate_factor(u, total=12, warmup=2, schedule="cosine") for u in range(12)]
    assert factors[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert factors[7] == pytest.approx(0.5)
    assert 0 < factors[-1] < 0.03
    assert factors[2:] == sorted(factors[2:], reverse=True)
    short = [rate_factor(u, total=4, warmup=100, schedule="cosine") for u in range(4)]
    assert short == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert rate_factor(0, total=1, warmup=100, schedule="cosine") == 1.0
    factors = [rate_factor(u, total=1000, warmup=0, schedule="cosine", end=0.2) for u in (0, 500, 999)]
    assert factors == pytest.approx([1.0, 0.6, 0.2], abs=1e-3)
    assert {rate_factor(u, 10, 0, "constant") for u in range(10)} == {1.0}
    line = [rate_factor(u, total=12, warmup=2, schedule="linear", end=0.2) for u in (0, 1, 2, 7, 12)]
    assert line == pytest.approx([0.5, 1.0, 1.0, 0.6, 0.2])


def test_optimizers_by_name_and_all_but_those_of_the_paper_spare_vectors() -> None:
    kinds = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "nesterov": "SGD", "muon": "Muon"}
    made = {name: make_optimizer(nn.Linear(2, 2), Optimization(optimizer=name), CPU) for name in kinds}
    assert {name: type(optimizer).__name__ for name, optimizer in made.items()} == kinds
    assert [made[name].param_groups[0]["nesterov"] for name in ("sgd", "nesterov")] == [False, True]
    decays = {
        name: {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        for name, optimizer in made.items()
    }
    spared, all_alike = {2: Optimization().weight_decay, 1: 0.0}, dict.fromkeys((1, 2), Optimization().weight_decay)
    assert decays == {name: all_alike if name in ("adam", "sgd") else spared for name in kinds}


def test_muon_updates_the_matrices_of_the_encoder_only() -> None:
    backbone = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2))
    model = nn.Sequential(backbone, nn.Linear(3, 2))
    groups = make_optimizer(model, Optimization(optimizer="muon", weight_decay=0.1), CPU).param_groups
    found = [(group["muon"], group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in groups]
    assert found == [(True, 0.1, [(3, 4)]), (False, 0.1, [(2, 3)]), (False, 0.0, [(3,), (2,)])]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "nesterov", "muon"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_restored_optimizer_takes_the_same_step(name: str, begun: bool) -> None:
    """Into a fresh optimizer, and into one that has made its state already, as after recording a CUDA graph."""
    settings = Optimization(optimizer=name, lr=0.1)
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, settings, CPU)

    def step(network: nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        network(torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()

    for seed in range(3):
        step(model, optimizer, seed)
    twin = copy.deepcopy(model)
    other = make_optimizer(twin, settings, CPU)
    if begun:
        step(twin, other, 99)
    twin.load_state_dict(model.state_dict())
    restore_optimizer(other, copy.deepcopy(optimizer.state_dict()))
    set_rate(optimizer, 0.01)
    set_rate(other, 0.01)
    step(model, optimizer, 7)
    step(twin, other, 7)
    assert torch.equal(model.weight, twin.weight)


def test_a_state_saved_on_a_gpu_is_restored_with_the_settings_of_a_cpu() -> None:
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, Optimization(), CPU)
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        group.update(capturable=True, lr=torch.tensor(3.0))
    other = make_optimizer(model, Optimization(), CPU)
    restore_optimizer(other, saved)
    other.step()
    assert not any(group["capturable"] for group in other.param_groups)
    assert {group["lr"] for group in other.param_groups} == {Optimization().lr}


Finished = Callable[[str], RunFolder]


def test_by_default_only_long_recorded_runs_are_compiled(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = trainer(dataset, "ric")
    for worth, recorded, expected in ((9, True, True), (9, False, False), (10, True, False)):
        monkeypatch.setattr("ricnet.training.optimization.WORTH_COMPILING", worth)
        assert compiles(learner, recorded) == expected


def test_compiled_training_is_the_same_and_leaves_evaluation_alone(
    dataset: Dataset, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for torch.compile, which takes too long here; what it makes of the network is a GPU's matter."""
    calls = list[int]()

    def compile_(plain: Any, dynamic: bool) -> Any:
        assert not dynamic
        return lambda *inputs, **options: (calls.append(1), plain(*inputs, **options))[1]

    monkeypatch.setattr(torch, "compile", compile_)
    trained(dataset, tmp_path / "off", epochs=1, compile="off")
    assert not calls
    trained(dataset, tmp_path / "on", "ric-on-policy", compile="on")
    assert_same_weights(tmp_path / "on", finished("ric-on-policy").path)
    assert len(calls) == 9 * (1 + 3 + 2)  # encoder, steps, advantages and loss of each update; no evaluation


@pytest.mark.parametrize("limit", [1e-3, 1e3, None])
def test_a_clipped_gradient_is_torchs(limit: float | None) -> None:
    ours, theirs = ([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3, 2))] for _ in range(2))
    unused = nn.Parameter(torch.ones(1))
    for parameters in (ours, theirs):
        for parameter in parameters:
            parameter.grad = torch.arange(parameter.numel()).view_as(parameter).float()
    norm = clip_gradient([*ours, unused], limit)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, math.inf if limit is None else limit))
    for own, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, reference.grad)
