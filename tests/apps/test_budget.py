"""Budgets in evaluate, predict, train, compare and estimators."""

import json
from pathlib import Path

import numpy as np
import pytest

import ricnet
from refusals import refusal
from ricnet.apps.cli import _dispatch, main
from ricnet.apps.estimators import RICClassifier
from ricnet.errors import RicnetError

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (2 * np.eye(5)[y] + random.normal(size=(240, 5))).astype(np.float32)
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(path, x=x, y=y)
    return path


@pytest.fixture(scope="module")
def run(rows: Path) -> Path:
    out = rows.parent / "run"
    ricnet.train(rows, out=out, epochs=3, batch_size=32, exits="stage", steps_per_exit=2, device="cpu")
    return out


def answer(command: str, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    main([command, *map(str, arguments), "--device", "cpu"])
    return capsys.readouterr().out


def test_evaluate_and_predict_keep_a_budget(run: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least = ricnet.load(run).budgets[0].mean_cost
    found = json.loads(answer("evaluate", capsys, run, "--budget", 0.9, "--json"))
    assert found["val"]["mean_cost"] <= 0.9
    all_leave = json.loads(answer("evaluate", capsys, run, "--budget", least, "--json"))
    assert all_leave["test"]["mean_cost"] == pytest.approx(least)
    assert "share of compute" in answer("evaluate", capsys, run)
    lines = answer("predict", capsys, run, rows, "--budget", least, "--json").splitlines()
    assert {json.loads(line)["steps"] for line in lines} == {1}
    assert {round(json.loads(line)["cost"], 6) for line in lines} == {round(least, 6)}
    assert answer("predict", capsys, run, rows, "--csv").startswith("input,answer,confidence,steps,cost\n")
    assert "compute" in answer("predict", capsys, run, rows)


def test_a_trace_says_why_it_ended(run: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.npz"
    with np.load(rows) as stored:
        np.savez(few, x=stored["x"][:12], y=stored["y"][:12])

    def ends(*flags: object) -> str:
        return answer("predict", capsys, run, few, "--trace", "--budget", 1, *flags)

    assert "◀ last exit" in ends()
    assert "◀ last step" in ends("--max-steps", 3)
    assert "◀ time's up" in ends("--max-ms", 1e-6)
    assert "last" not in ends("--max-ms", 1e-6, "--max-steps", 3)
    ricnet.train(rows, method="supervised", out=tmp_path / "at once", epochs=1, device="cpu")
    capsys.readouterr()
    assert "◀ stops" in answer("predict", capsys, tmp_path / "at once", few, "--trace", "--max-steps", 3)


def test_two_rules_or_a_budget_out_of_range_are_refused(run: Path, rows: Path) -> None:
    with refusal("--budget", "--halt-threshold"):
        _dispatch(["predict", str(run), str(rows), "--budget", "0.5", "--halt-threshold", "0"])
    with refusal("budget", 0.01):
        _dispatch(["evaluate", str(run), "--budget", "0.01"])


def test_compare_takes_a_budget_for_those_that_can_keep_it(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("--seeds", 1, "--epochs", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out", "--jobs", 1)
    text = answer("compare", capsys, rows, "--methods", "ric", "supervised", "--exits", "stage", "--budget", 0.9, *own)
    assert "compute" in text
    table = (tmp_path / "out" / "comparison.csv").read_text().splitlines()
    spent = {line.split(",")[0]: line for line in table if "mean_cost" in line}
    assert len(spent) == 2


def test_train_shows_the_share_of_compute_and_help_shows_exits(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = answer("train", capsys, rows, "--exits", "stage", "--budget", 0.9, "--epochs", 1, "--out", tmp_path / "run")
    assert "compute" in text
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert "--exits" in shown
    assert "--budget" in shown


def test_an_estimator_keeps_a_budget_and_needs_rows_aside_for_it(rows: Path) -> None:
    with np.load(rows) as stored:
        x, y = stored["x"], stored["y"]
    how = {"exits": "stage", "epochs": 2, "random_state": 0, "device": "cpu"}
    fitted = RICClassifier(**how, budget=0.9, validation_fraction=0.2).fit(x, y)
    cost = fitted.refine(x).cost
    assert cost is not None
    assert 0 < float(cost.mean()) < 1
    with refusal("budget", "validation_fraction", kind=ValueError):
        RICClassifier(**how, budget=0.9, validation_fraction=0.0).fit(x, y)
    with pytest.raises(RicnetError, match=r"budget=0.9 .* validation_fraction=0.1"):
        RICClassifier(**how, validation_fraction=0.0).fit(x, y).classifier_.with_budget(0.9)
