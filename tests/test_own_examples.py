"""The examples are run as a reader runs them, as short as they can be."""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ricnet
from ricnet.apps.cli import main
from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.nets import encoders

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _what_examples_register_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(encoders, "_BUILDERS", dict(encoders._BUILDERS))
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


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
    assert [f"grower {answer['answer']}" in line for answer, line in zip(answers[::30], said, strict=True)] == [
        True
    ] * 6
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


def test_own_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "own_encoder.py", "--epochs", 1, "--out", tmp_path / "run")
    assert f"the encoder has {64 * 5 + 128 * (64 * 16 + 1):,}" in capsys.readouterr().out
    named = [
        "train",
        "digits",
        "--encoder",
        "patches",
        "--method",
        "supervised",
        "--epochs",
        "1",
        "--out",
        tmp_path / "named",
    ]
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "own_encoder.py", *named)
    assert end.value.code is None
    assert ricnet.load(tmp_path / "named").config.network.encoder == "patches"


def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    short = ["--focus", "3", "--epochs", "2", "--out", out, "--device", "cpu"]
    own = run(monkeypatch, "own_method.py", "train", "digits", "--method", "focal", *short)
    run(monkeypatch, "own_method.py", "evaluate", out, "--json")
    assert "accuracy" in capsys.readouterr().out
    stored = json.loads((out / "config.json").read_text())["config"]["method"]
    assert (stored["name"], stored["focus"]) == ("focal", 3.0)
    assert ricnet.load(out).method.focus == 3.0
    METHODS.pop("focal")
    with pytest.raises(RicnetError, match="the method 'focal' is unknown"):
        ricnet.load(out)

    class Still(torch.nn.Module):
        """Believes 1/4 of the first class, whatever it sees."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0.25, 0.75]]).log().expand(len(inputs), 2)

    loss, _ = own["Focal"](focus=2.0).loss(Still(), Still(), torch.zeros(3, 1), torch.tensor([0, 0, 1]))
    by_hand = (2 * 0.75**2 * -torch.tensor(0.25).log() + 0.25**2 * -torch.tensor(0.75).log()) / 3
    torch.testing.assert_close(loss, by_hand)
