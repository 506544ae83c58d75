import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ricnet.methods import RIC
from ricnet.nets.encoders import Backbone
from ricnet.studies.experiments import Experiment, find_system
from ricnet.training.recipes import Facts, preset
from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES, Scale

from .conftest import MakeRuns, draw, pick, texts_of

FIG9 = ITEMS["fig9"]


def test_validation_curves_of_three_systems(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    full, ppo, normal = FIG9.experiments(scale)
    runs = make_runs([full, ppo]) | make_runs([normal], only=1)
    rows = FIG9.tabulate(scale, runs)
    expected = np.mean([[entry["val"]["ece"] for entry in run.metrics] for run in runs[ppo]], axis=0)
    np.testing.assert_allclose(pick(rows, system="RIC, PPO", quantity="ece")["mean"], expected)
    figure = draw(FIG9, scale, runs, tmp_path)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["(a) normalised return", "(b) accuracy", "(c) ECE"]
    assert all(len(ax.lines) == 3 for ax in figure.axes)
    assert len({line.get_marker() for line in figure.axes[0].lines}) == 3
    assert "RIC, logistic-normal (1 of 3 seeds)" in texts_of(figure)


def method_of(one: Experiment, rows: int) -> Any:
    settings = {**find_system(one.system).changes, **dict(one.changes)}
    system = find_system(one.system)
    facts = Facts(rows, 10, 8 if rows < 5_000 else 32)
    method = preset(system.preset or one.preset, system.method, facts, settings).method
    return replace(method, **{f.name: settings[f.name] for f in fields(method) if f.name in settings})


def gradient(method: RIC) -> torch.Tensor:
    """Of the loss of a network that has left its snapshot."""
    torch.manual_seed(0)
    method = replace(method, horizon=3)
    model = method.build(Backbone(nn.Linear(5, 8), (5,)), 10).double()
    snapshot = copy.deepcopy(model)
    with torch.no_grad():
        model.refiner.policy.weight.add_(0.3 * torch.randn_like(model.refiner.policy.weight))
    loss, _ = method.loss(model, snapshot, torch.randn(12, 5).double(), torch.arange(12) % 10)
    loss.backward()
    assert model.refiner.policy.weight.grad is not None
    return model.refiner.policy.weight.grad


@pytest.mark.parametrize(("name", "rows"), [("smoke", 1_213), ("small", 45_000), ("paper", 45_000)])
def test_spo_and_ppo_are_compared_where_they_differ(name: str, rows: int) -> None:
    spo, ppo, normal = (method_of(one, rows) for one in FIG9.experiments(SCALES[name]))
    assert replace(ppo, objective="spo") == spo
    assert replace(normal, head="dirichlet") == spo
    assert not torch.allclose(gradient(spo), gradient(ppo), rtol=0.01)


def test_the_figure_says_how_long_a_snapshot_lasts(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(FIG9.experiments(scale))
    for run in (run for found in runs.values() for run in found):
        run.config["method"]["updates_per_snapshot"] = 5
    assert "A snapshot every 5 updates" in texts_of(draw(FIG9, scale, runs, tmp_path))
