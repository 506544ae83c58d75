"""The study of choices on validation data: its tables agree with its file, and its rules with their definitions."""

import json
from pathlib import Path

import torch

from study_choices import MARKED, picks, tables

ROOT = Path(__file__).parents[2]


def test_the_tables_are_what_the_file_gives() -> None:
    entry = json.loads((ROOT / "results" / "choices.json").read_text())
    found = MARKED.search((ROOT / "docs" / "questions" / "choices.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found[0].removeprefix(found[1]).removesuffix(found[2]) == tables(entry)


def test_each_rule_keeps_its_epoch() -> None:
    """Three epochs: calibrated and half right; all right; all right and overconfident in two wrong answers."""
    labels = torch.tensor([0, 1] * 20)
    sure = torch.nn.functional.one_hot(labels, 2).float()
    first = torch.zeros(40, 2)
    second = 2 * sure
    third = 9 * sure
    third[:2] = third[:2].flip(1)
    run = {"epochs": [{"val": each.log_softmax(-1)} for each in (first, second, third)], "labels": {"val": labels}}
    assert picks(run) == {"nll": 1, "accuracy": 1, "last": 2, "calibrated": 1}
