"""The scripts in examples/ run, with short settings."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import ricnet
from refusals import refusal
from ricnet.apps.cli import main
from ricnet.data import load
from ricnet.data.registry import DATASETS
from ricnet.errors import RicnetError
from ricnet.methods import METHODS, RIC, ClosedForm, register_method
from ricnet.methods.ric import Rollout
from ricnet.nets import encoders
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads
from ricnet.training.recipes import Facts, preset

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _what_examples_register_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(encoders, "_BUILDERS", dict(encoders._BUILDERS))
    with patch.dict(METHODS), patch.dict(DATASETS):
        yield


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "own_images.py", "--epochs", 1, "--out", tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("0/0.png: ")


def test_own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "own_table.py", "--epochs", 20, "--out", tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [f"line {row}" for row in range(2, 180, 30)]
    main(["predict", str(tmp_path / "run"), str(tmp_path / "wines.csv"), "--json"])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(f"grower {answer['answer']}" in line for answer, line in zip(answers[::30], said, strict=True))
    truth = [row.split(",")[-1] for row in (tmp_path / "wines.csv").read_text().splitlines()[1:]]
    assert sum(answer["answer"] == label for answer, label in zip(answers, truth, strict=True)) > 0.6 * len(truth)


def test_wrong_labels_are_judged_by_their_scores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "wrong_labels.py", "--tables", 1, "--rows", 100, "--epochs", 1)
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.startswith("1  ")]
    assert len(rows) == 4
    log_loss = {row[1]: float(row[-4]) for row in rows}  # by the first word of the system's name
    wins = int(log_loss["RIC,"] < log_loss["gradient"])
    assert f"a lower log-loss than gradient boosting on {wins} of 1 tables" in said
    assert "stops" in said
    assert "the last step" in said


def test_calibration_error_of_the_example_by_hand() -> None:
    example = runpy.run_path(str(EXAMPLES / "wrong_labels.py"))
    beliefs = np.array([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])
    score = example["judge"](beliefs, np.array([0, 1, 1]), np.array([0, 0, 0]))
    assert score["ECE"] == pytest.approx((abs(1 - 1.8) + abs(1 - 0.5)) / 3)
    assert score["truth"] == pytest.approx(2 / 3)


def test_early_exits_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "early_exits.py", "--epochs", 1, "--budget", 0.6)
    said, told = capsys.readouterr()
    (threshold,) = re.findall(r"leave once V < (\S+), ", said)
    assert f"halting: at V < {threshold}, at most 3 steps; " in told
    rows = [line.split() for line in said.splitlines() if re.match(r" +\d +\d+% ", line) and line.endswith("%")]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert sum(float(row[2].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.2)
    right = sum(float(row[2].rstrip("%")) * float(row[3].rstrip("%").replace("–", "0")) for row in rows) / 100
    stopped, cost = re.search(r"Accuracy ([\d.]+)% with (\d+)% of compute", said).groups()
    assert float(stopped) == pytest.approx(right, abs=0.3)
    assert float(cost) <= 70  # kept on validation digits, about so on others


def test_own_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "own_encoder.py", "--epochs", 1, "--out", tmp_path / "run")
    assert f"the encoder has {64 * 5 + 128 * (64 * 16 + 1):,}" in capsys.readouterr().out
    named = "train digits --encoder patches --method supervised --epochs 1 --out"
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "own_encoder.py", *named.split(), tmp_path / "named")
    assert end.value.code is None
    assert ricnet.load(tmp_path / "named").config.network.encoder == "patches"


TINY = ["--epochs", 1, "--width", 0.1, "--device", "cpu"]


def compared(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, data: str, *systems: str) -> str:
    """The CSV of `ric compare` as the example's own command line makes it."""
    monkeypatch.chdir(folder)
    run(monkeypatch, name, "compare", data, "--methods", *systems, "--seeds", 1, "--jobs", 1, "--out", "table", *TINY)
    return (folder / "table" / "comparison.csv").read_text()


def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    own = run(monkeypatch, "own_method.py", "train", "digits", "--method", "focal", "--focus", 3, "--out", out, *TINY)
    run(monkeypatch, "own_method.py", "evaluate", out, "--json")
    assert "accuracy" in capsys.readouterr().out
    stored = json.loads((out / "config.json").read_text())["config"]["method"]
    assert (stored["name"], stored["focus"]) == ("focal", 3.0)
    assert ricnet.load(out).method.focus == 3.0
    assert ricnet.FocalClassifier(focus=3.0).method is METHODS["focal"]
    METHODS.pop("focal")
    with refusal("'focal'"):
        ricnet.load(out)

    class Still(torch.nn.Module):
        """Believes 1/4 of the first class, whatever it sees."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0.25, 0.75]]).log().expand(len(inputs), 2)

    loss, _ = own["Focal"](focus=2.0).loss(Still(), Still(), torch.zeros(3, 1), torch.tensor([0, 0, 1]))
    by_hand = (2 * 0.75**2 * -torch.tensor(0.25).log() + 0.25**2 * -torch.tensor(0.75).log()) / 3
    torch.testing.assert_close(loss, by_hand)


def test_own_method_is_in_comparison_and_report_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = compared(monkeypatch, tmp_path, "own_method.py", "digits", "focal", "supervised")
    assert "\nFocal loss," in table
    assert "Focal loss" in (tmp_path / "table" / "report.html").read_text()


def test_own_callback_stops_and_lists_what_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "own_callback.py", "--target", 0.5, "--out", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    accuracies = [line["val"]["accuracy"] for line in lines]
    assert max(accuracies[:-1], default=0) < 0.5 <= accuracies[-1]
    best = [i for i, accuracy in enumerate(accuracies) if accuracy > max(accuracies[:i], default=-1)]
    assert capsys.readouterr().out.splitlines() == [f"epoch {i + 1}: {accuracies[i]:.1%}" for i in best]


@pytest.mark.usefixtures("no_pages")
def test_own_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    table = compared(monkeypatch, tmp_path, "own_dataset.py", "spirals", "supervised")
    assert ",spirals,accuracy,0,test,300," in table
    run(monkeypatch, "own_dataset.py", "data")
    assert "spirals" in capsys.readouterr().out
    dataset = load("spirals")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (540, 60, 300)
    assert dataset.class_names == ("red", "green", "blue")


@pytest.mark.usefixtures("no_pages")
def test_own_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = compared(monkeypatch, tmp_path, "own_reward.py", "digits", "quadratic")
    assert "RIC with the quadratic score" in table
    beliefs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    scores = METHODS["quadratic"]().score(beliefs.log(), torch.tensor([0, 0]))
    torch.testing.assert_close(scores, torch.tensor([2 * 0.5 - 0.25 - 0.09 - 0.04, -1.0]))


def test_the_advantages_of_own_rewards_are_those_of_its_scores() -> None:
    """One roll-out of two steps with γ = λ = 1 and values of 0: an advantage is what is still to be gained."""
    method = runpy.run_path(str(EXAMPLES / "own_reward.py"))["Quadratic"](
        horizon=2, gamma=1.0, gae_lambda=1.0, normalize_advantages=False
    )
    actions = torch.tensor([[[[0.5, 0.5]]], [[[0.75, 0.25]]]])
    heads = Heads(torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))
    rollout = Rollout(actions.log(), method.policy(heads), torch.zeros(3, 1, 1))
    first, last = 2 * 0.5 - 0.5, 2 * 0.75 - 0.75**2 - 0.25**2
    advantages = method.estimate_advantages(rollout, torch.tensor([0])).advantages.flatten()
    torch.testing.assert_close(advantages, torch.tensor([last - first, last - first]))


def test_own_rewards_are_sampled_and_not_clipped_whatever_the_data() -> None:
    quadratic = register_method(runpy.run_path(str(EXAMPLES / "own_reward.py"))["Quadratic"])
    for facts in (Facts(2_000, 101, 8), Facts(2_000, 10, 8), Facts(2_000, 25, 0, freeze=True)):
        for exits in (False, True):
            settled = preset("fast", "quadratic", replace(facts, exits=exits)).method
            assert (settled.credit, settled.reward_floor, settled.rollouts == 16) == ("joint", None, exits)
    assert preset("fast", None, Facts(2_000, 101, 8)).method.credit == "marginal"
    for refused in ({"reward_floor": 1e-4}, {"objective": "expected"}, {"credit": "marginal"}):
        with pytest.raises(RicnetError, match="quadratic"):
            quadratic(**refused)
    with pytest.raises(RicnetError, match="overrides score"):
        type("Exact", (ClosedForm,), {"score": quadratic.score})()


def test_own_objective_is_what_is_maximised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "own_objective.py", "train", "digits", "--method", "truncated", "--out", tmp_path / "run", *TINY)
    method = METHODS["truncated"](horizon=2, rollouts=2, epsilon=0.25, value_coef=0.0, log_ratio_clamp=None)
    ratio, advantages = torch.tensor([0.5, 1.1, 2.0]), torch.tensor([1.0, -2.0, 3.0])
    torch.testing.assert_close(method.surrogate(ratio, advantages), torch.tensor([0.5, -2.2, 3.75]))
    model, old = (method.build(Backbone(torch.nn.Linear(3, 4), (3,)), 3).double() for _ in range(2))
    inputs, labels = torch.randn(5, 3).double(), torch.tensor([0, 1, 2, 0, 1])
    rollout = method.roll_out(old, old.context(inputs))
    monkeypatch.setattr(RIC, "roll_out", lambda *_: rollout)
    estimates = method.estimate_advantages(rollout, labels)
    policy = method.policy(method.replay(model, model.context(inputs), rollout.log_actions))
    ratio = policy.log_ratio(rollout.policy, rollout.log_actions).exp()
    assert (ratio > 1.25).any()
    loss, _ = method.loss(model, old, inputs, labels)
    torch.testing.assert_close(loss, -(estimates.advantages * ratio.clamp(max=1.25)).mean())
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["method"]
    assert "objective" not in stored
    assert ricnet.load(tmp_path / "run").method.name == "truncated"


def test_own_policy_has_its_own_number_of_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "own_policy.py", "train", "digits", "--method", "per-class", "--out", tmp_path / "run", *TINY)
    model = ricnet.load(tmp_path / "run")
    assert model.model.refiner.concentration.out_features == 10
    method = METHODS["per-class"](horizon=2, rollouts=2)
    heads = Heads(torch.zeros(1, 2), torch.tensor([[-50.0, 50.0]]), torch.zeros(1))
    torch.testing.assert_close(method.policy(heads).alpha, torch.tensor([[0.5 * 1 + 0.01, 0.5 * 10 + 0.01]]))
    network = method.build(Backbone(torch.nn.Linear(3, 4), (3,)), 3)
    loss, metrics = method.loss(network, network, torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1]))
    loss.backward()
    assert network.refiner.concentration.weight.grad.abs().sum(1).min() > 0
    assert metrics["ratio_deviation"] < 1e-4


def test_own_halting_rule_stops_where_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    run(monkeypatch, "own_halting.py", "train", "digits", "--method", "sure", "--sure", 0.2, "--out", out, *TINY)
    model, inputs = ricnet.load(out), load("digits").test.inputs[:200]
    assert model.method.sure == 0.2
    median = float(model.refine(inputs, halt=False).log_beliefs.exp().amax(-1).median())
    model = replace(model, method=replace(model.method, sure=median))
    full, halted = model.refine(inputs, halt=False), model.refine(inputs)
    sure = full.log_beliefs.exp().amax(-1) >= model.method.sure
    expected = [int(row.int().argmax()) + 1 if row.any() else full.steps for row in sure.t()]
    assert len(set(expected)) > 1
    assert halted.halt_step.tolist() == full.halt_step.tolist() == expected
    torch.testing.assert_close(halted.final, full.final)
