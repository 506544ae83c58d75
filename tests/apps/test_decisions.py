"""Prediction sets, costs and limits of risk at the command line, and `ric calibrate`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ricnet
from made_runs import draw_no_pages
from problems import MadeOnce
from ricnet.apps.cli import main
from ricnet.apps.commands.decisions import Decisions
from ricnet.core.trajectory import Trajectory
from ricnet.data import load as load_data
from ricnet.evaluation import risk
from ricnet.evaluation.conformal import Score, SetRule
from ricnet.evaluation.costs import Weights, costs_of
from ricnet.models.guarantees import set_rule

from .conftest import Refused, RunRic


@pytest.fixture(scope="module")
def run(made_once: MadeOnce) -> Path:
    return made_once("decisions", train_and_price) / "run"


def train_and_price(folder: Path) -> None:
    """A run on digits, new examples beside it, and a table of costs."""
    with pytest.MonkeyPatch.context() as patch:
        draw_no_pages(patch)
        how = ["--epochs", "4", "--horizon", "4", "--device", "cpu", "--calibration-fraction", "0.3"]
        main(["train", "digits", "--out", str(folder / "run"), *how])
    test = load_data("digits").test
    np.savez(folder / "new.npz", x=test.inputs[:40].numpy(), y=test.labels[:40].numpy())
    names = [str(k) for k in range(10)]
    rows = [[name, *(str(int(name != other)) for other in names), "0.2"] for name in names]
    with (folder / "costs.csv").open("w") as file:
        csv.writer(file).writerows([["", *names, "abstain"], *rows])


def test_predict_gives_sets(run: Path, run_ric: RunRic) -> None:
    said = run_ric("predict", run, run.parent / "new.npz", "--coverage", 0.9, "--json", "--trace")
    assert "sets contain the true class with probability 0.9 on average over inputs drawn like" in said.err
    for record in said.records:
        assert record["set"][0] == record["answer"]
        assert len(record["sets"]) == len(record["beliefs"])
        assert record["set"] == sorted(record["set"], key=lambda k: -record["beliefs"][record["steps"] - 1][int(k)])
    table = run_ric("predict", run, run.parent / "new.npz", "--coverage", 0.99)
    assert table.out.splitlines()[0].split() == ["input", "answer", "confidence", "steps", "set"]
    rows = list(
        csv.DictReader(run_ric("predict", run, run.parent / "new.npz", "--coverage", 0.9, "--csv").out.splitlines())
    )
    assert [row["set"].split("|") for row in rows] == [record["set"] for record in said.records]


def test_evaluate_measures_sets(run: Path, run_ric: RunRic) -> None:
    found = json.loads(run_ric("evaluate", run, "--coverage", 0.9, "--json", "--set-score", "raps").out)
    sets = found["test"]["sets"]
    assert sets["measured"]["coverage"]["n"] == found["test"]["n"]
    assert sets["measured"]["coverage"]["share"] > 0.85
    assert sets["rule"]["score"]["name"] == "raps"
    assert "sets" not in found["val"]
    assert "(measured)" in run_ric("evaluate", run, "--coverage", 0.9, "--per-class").out


def test_costs_decide(run: Path, run_ric: RunRic) -> None:
    costs = run.parent / "costs.csv"
    records = run_ric("predict", run, run.parent / "new.npz", "--costs", costs, "--json", "--top", 10).records
    for record in records:
        likely = record["top"][0]
        wanted = "unsure" if 1 - likely["probability"] > 0.2 else likely["class"]
        assert record["answer"] == wanted
        assert record["expected_cost"] == pytest.approx(min(0.2, 1 - likely["probability"]), abs=1e-6)
    found = json.loads(run_ric("evaluate", run, "--costs", costs, "--json").out)["test"]
    assert found["costs"]["most_likely"] == pytest.approx(1 - found["accuracy"])
    assert found["costs"]["saved"] == pytest.approx(found["costs"]["most_likely"] - found["costs"]["decided"])


def test_decisions_by_hand() -> None:
    beliefs = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], [[0.6, 0.4], [0.9, 0.1], [0.25, 0.75]]]).double()
    path, names = Trajectory(beliefs.log(), torch.tensor([2, 2, 2])), ("a", "b")
    sets = SetRule(0.9, Score(), (0.8,), ((0.3,), (0.95,)), 20)  # by 1 − p, at the halt and after each step
    costs = costs_of([[0, 1], [10, 0]], names)
    tied = risk.Tested(0.75, 0.01, 0.0, 20, True)
    found = Decisions(sets, costs).answers(path, "xyz", names, trace=True)
    assert [one["set"] for one in found] == [["a", "b"], ["a"], ["b", "a"]]
    assert found[1]["sets"] == [["a"], ["a", "b"]]  # the most likely class, then both
    assert [one["answer"] for one in found] == ["b", "b", "b"]
    assert [one["confidence"] for one in found] == pytest.approx([0.4, 0.1, 0.75])
    assert [one["expected_cost"] for one in found] == pytest.approx([0.6, 0.9, 0.25])
    kept = Decisions(answered=tied).measured(beliefs[1].numpy(), np.array([1, 0, 0]))["abstention"]
    assert (kept["answered"]["share"], kept["measured"]["share"]) == (pytest.approx(2 / 3), 0.5)


def test_sets_hold_for_the_steps_that_are_made(run: Path, run_ric: RunRic) -> None:
    said = run_ric("predict", run, run.parent / "new.npz", "--coverage", 0.9, "--max-steps", 1)
    assert "halting after 1 step." in said.err


def test_limits_of_risk(run: Path, run_ric: RunRic) -> None:
    said = run_ric("evaluate", run, "--max-loss", 0.05, "--probability", 0.9, "--json")
    assert "stopping early costs at most 0.05 (answers lost), with probability 0.9" in said.err
    exits = json.loads(said.out)["test"]["exits"]
    assert exits["chosen"]["p_value"] <= 0.1
    assert exits["mean_steps"] <= 4
    said = run_ric("evaluate", run, "--max-error", 0.1, "--json")
    rule = json.loads(said.out)["test"]["abstention"]
    assert rule["rule"]["p_value"] <= 0.05
    answers = run_ric("predict", run, run.parent / "new.npz", "--max-error", 0.1, "--json").records
    assert all((r["answer"] == "unsure") == (r["confidence"] < rule["rule"]["threshold"]) for r in answers)


def test_calibrate_takes_other_data(run: Path, run_ric: RunRic, refused: Refused, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert "calibrated with 40 examples" in run_ric("calibrate", copy, run.parent / "new.npz").err
    assert run_ric("predict", copy, run.parent / "new.npz", "--coverage", 0.9).code == 0
    assert "at most 0.9756" in run_ric("calibrate", copy, run.parent / "new.npz").err
    refused(("--coverage 0.99", "at least 99", "there are 40"), "predict", copy, "--coverage", 0.99)
    refused(("--max-loss 0.01", "at least 299"), "predict", copy, "--max-loss", 0.01)
    refused(("digits was used to train the run", "--calibration-fraction"), "calibrate", copy, "digits")
    (copy / "guarantees.npz").unlink()
    (copy / "manifest.json").unlink()
    for flag in ("--coverage", "--max-loss", "--max-error"):
        said = run_ric("predict", copy, flag, 0.9)
        assert said.code == 2
        assert f"{flag} 0.9 needs calibration examples" in said.err
        assert "ric calibrate RUN DATA" in said.err


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        ("--coverage 1.5", ("--coverage", 1.5)),
        ("--probability 1.0", ("--max-loss", 0.1, "--probability", 1)),
        ("--coverage and --max-loss", ("--coverage", 0.9, "--max-loss", 0.1)),
        ("--max-loss and --max-steps", ("--max-loss", 0.1, "--max-steps", 2)),
        ("--costs and --abstain-below", ("--costs", "c.csv", "--abstain-below", 0.5)),
        ("--coverage and --max-ms", ("--coverage", 0.9, "--max-ms", 5)),
        ("c.csv does not exist", ("--costs", "c.csv")),
    ],
)
def test_bad_flags_get_one_sentence(run: Path, refused: Refused, names: str, flags: tuple[object, ...]) -> None:
    refused(names, "predict", run, run.parent / "new.npz", *flags)


def test_monitor_notices_corrupted_digits(
    run: Path, run_ric: RunRic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = load_data("digits").test
    x, y = test.inputs.numpy(), test.labels.numpy()
    noise = np.random.default_rng(0).integers(0, 200, x.shape)
    np.savez(tmp_path / "same.npz", x=x, y=y)
    np.savez(tmp_path / "noisy.npz", x=np.clip(x.astype(int) // 2 + noise, 0, 255).astype(np.uint8), y=y)
    same = run_ric("monitor", run, tmp_path / "same.npz")
    assert "No difference is shown on 449 new examples" in same.out
    noisy = run_ric("monitor", run, tmp_path / "noisy.npz")
    assert "Guarantees are doubtful: confidence" in noisy.out
    monkeypatch.setenv("COLUMNS", "80")
    shown = run_ric("monitor", run, tmp_path / "noisy.npz", "--labels").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    monkeypatch.delenv("COLUMNS")
    found = json.loads(run_ric("monitor", run, tmp_path / "noisy.npz", "--labels", "--coverage", 0.9, "--json").out)
    assert found["labelled"]["coverage"]["0.9"]["high"] < 0.9
    assert found["comparisons"][0]["new"] < found["comparisons"][0]["old"]
    how = ("--labels", "--coverage", 0.9, "--max-steps", 1, "--json")
    found = json.loads(run_ric("monitor", run, tmp_path / "same.npz", *how).out)
    assert (found["comparisons"][1]["old"], found["comparisons"][1]["new"]) == (1, 1)
    model = ricnet.load(run)
    beliefs = model.refine(test.inputs, 1).final.double().softmax(-1).numpy()
    sets = set_rule(model, 0.9, max_steps=1).sets(beliefs, allow_empty=False)
    assert found["labelled"]["coverage"]["0.9"]["share"] == sets[np.arange(len(y)), y].mean()
    assert found["labelled"]["accuracy"]["high"] < 0.8
    honest = run_ric("monitor", run, tmp_path / "same.npz", "--labels")
    assert "coverage of sets for 0.95" in honest.out


def test_monitor_notices_a_shifted_table(tmp_path: Path, run_ric: RunRic, refused: Refused) -> None:
    rng = np.random.default_rng(0)

    def write(name: str, n: int, shift: float) -> Path:
        kind = rng.integers(0, 2, n)
        height = rng.normal(10 + 4 * kind + shift, 2)
        lines = [f"{h:.3f},{('small', 'tall')[k]}" for h, k in zip(height, kind, strict=True)]
        (tmp_path / name).write_text("\n".join(["height,kind", *lines]))
        return tmp_path / name

    how = ("--target", "kind", "--epochs", 8, "--horizon", 4, "--lr", 0.02, "--device", "cpu", "--width", 0.2)
    trained = run_ric("train", write("my.csv", 500, 0), "--out", tmp_path / "run", *how)
    assert trained.code == 0, trained.err
    refused("ric monitor needs calibration examples", "monitor", tmp_path / "run", tmp_path / "my.csv")
    assert run_ric("calibrate", tmp_path / "run", write("cal.csv", 300, 0)).code == 0
    assert "No difference" in run_ric("monitor", tmp_path / "run", write("same.csv", 300, 0)).out
    assert "Guarantees are doubtful" in run_ric("monitor", tmp_path / "run", write("other.csv", 300, 3)).out


def test_tuned_weights_change_the_answers_and_what_is_measured() -> None:
    tuned = Weights((0.4, 1.6), 0.6, 0.8, 0.01, True, "balanced_accuracy")
    beliefs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    path = Trajectory(beliefs.log()[None], torch.ones(4, dtype=torch.int64))
    entries = Decisions(weights=tuned).answers(path, "wxyz", ("no", "yes"))
    assert [entry["answer"] for entry in entries] == ["no", "yes", "yes", "yes"]  # .36/.16, .28/.48, .08/1.28, .24/.64
    assert [entry["confidence"] for entry in entries] == pytest.approx([0.9, 0.3, 0.8, 0.4])
    found = Decisions(weights=tuned).measured(beliefs.numpy(), np.array([0, 0, 1, 1]))["weights"]["measured"]
    assert found == {"weighted": pytest.approx((1 / 2 + 2 / 2) / 2), "most_likely": pytest.approx((2 / 2 + 1 / 2) / 2)}


def test_tune_uses_the_validation_data_of_the_run(run: Path, run_ric: RunRic, refused: Refused) -> None:
    said = run_ric("predict", run, run.parent / "new.npz", "--tune", "macro_f1", "--json")
    assert "class weights" in said.err
    assert "macro f1" in said.err
    measured = json.loads(run_ric("evaluate", run, "--tune", "macro_f1", "--json").out)["test"]["weights"]
    assert measured["rule"]["target"] == "macro_f1"
    costs = run.parent / "costs.csv"
    refused(("--tune and --costs", "cannot be combined"), "predict", run, "--tune", "macro_f1", "--costs", costs)
