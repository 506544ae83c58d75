import copy

import pytest
import torch
from torch import nn

from ricnet.training.config import Optimization
from ricnet.training.schedule import make_optimizer, rate_factor, restore_optimizer, set_rate

CPU = torch.device("cpu")


def test_cosine_goes_from_one_to_zero_after_the_warm_up() -> None:
    factors = [rate_factor(u, total=12, warmup=2, schedule="cosine") for u in range(12)]
    assert factors[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert factors[7] == pytest.approx(0.5)
    assert 0 < factors[-1] < 0.03
    assert factors[2:] == sorted(factors[2:], reverse=True)


def test_cosine_ends_where_it_is_told() -> None:
    short = [rate_factor(u, total=4, warmup=100, schedule="cosine") for u in range(4)]
    assert short == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert rate_factor(0, total=1, warmup=100, schedule="cosine") == 1.0
    factors = [rate_factor(u, total=1000, warmup=0, schedule="cosine", end=0.2) for u in (0, 500, 999)]
    assert factors == pytest.approx([1.0, 0.6, 0.2], abs=1e-3)


def test_constant_stays() -> None:
    assert {rate_factor(u, 10, 0, "constant") for u in range(10)} == {1.0}


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD")])
def test_optimizers_by_name(name: str, kind: str) -> None:
    optimizer = make_optimizer(nn.Linear(2, 2), Optimization(optimizer=name), CPU)  # type: ignore[arg-type]
    assert type(optimizer).__name__ == kind


def test_adamw_spares_vectors() -> None:
    groups = make_optimizer(nn.Linear(2, 3), Optimization(weight_decay=0.1), CPU).param_groups
    assert [(group["weight_decay"], [p.ndim for p in group["params"]]) for group in groups] == [(0.1, [2]), (0.0, [1])]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_restored_optimizer_takes_the_same_step(name: str, begun: bool) -> None:
    """Into a fresh optimizer, and into one that has made its state already, as after recording a CUDA graph."""
    settings = Optimization(optimizer=name, lr=0.1)  # type: ignore[arg-type]
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
        group.update(capturable=True, fused=True, lr=torch.tensor(3.0))
    other = make_optimizer(model, Optimization(), CPU)
    restore_optimizer(other, saved)
    other.step()
    assert not any(group["capturable"] or group["fused"] for group in other.param_groups)
    assert {group["lr"] for group in other.param_groups} == {Optimization().lr}
