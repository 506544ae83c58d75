import json
from pathlib import Path

import numpy as np
import pytest

from ricnet.apps.cli import main
from ricnet.evaluation.evaluate import read_predictions


def test_classes_and_confusions_are_named(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(digits_run), "--json", "--device", "cpu"])
    test = json.loads(capsys.readouterr().out)["test"]
    kept = read_predictions(digits_run)
    answers = kept.log_beliefs.argmax(axis=1)
    assert [entry["class"] for entry in test["classes"]] == [str(k) for k in range(10)]
    for k, entry in enumerate(test["classes"]):
        mine, said = kept.labels == k, answers == k
        assert entry["n"] == mine.sum()
        assert entry["recall"] == pytest.approx((mine & said).sum() / mine.sum())
        assert entry["precision"] == (pytest.approx((mine & said).sum() / said.sum()) if said.any() else None)
        assert entry["answers"] == {str(j): int(n) for j, n in enumerate(np.bincount(answers[mine])) if n}
    main(["evaluate", str(digits_run), "--device", "cpu"])
    shown = capsys.readouterr().out
    assert "test, by class" in shown
    assert " taken for " in shown


def test_a_run_is_measured_as_its_evaluation_says(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopping as was chosen, with a row for every step that it was trained to make."""
    main(["evaluate", str(digits_run), "--json", "--device", "cpu"])
    measured, stored = json.loads(capsys.readouterr().out), json.loads((digits_run / "evaluation.json").read_text())
    for split in ("train", "val", "test"):
        assert measured[split]["nll"] == pytest.approx(stored[split]["nll"], abs=1e-5)
        assert measured[split]["mean_cell_evaluations"] == pytest.approx(stored[split]["mean_cell_evaluations"])
        assert len(measured[split]["per_step"]) == len(stored[split]["per_step"]) == 4
    main(["evaluate", str(digits_run), "--json", "--device", "cpu", "--halt-threshold", "0"])
    raw = json.loads(capsys.readouterr().out)
    assert raw["test"]["mean_steps"] == pytest.approx(stored.get("raw", stored)["test"]["mean_steps"])


def test_the_end_of_training_says_what_was_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--epochs", "1", "--width", "0.1", "--horizon", "3", "--device", "cpu"]
    main(["train", "--out", str(tmp_path / "run"), *tiny])
    shown = " ".join(capsys.readouterr().out.split())
    assert "chosen on 135 validation examples" in shown
    assert "temperature " in shown
    main(["train", "--out", str(tmp_path / "raw"), *tiny, "--halt-rule", "value", "--calibration", "none"])
    assert "validation examples" not in capsys.readouterr().out


def test_no_help_promises_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert "are calibrated" not in capsys.readouterr().out
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert "are calibrated" not in project
