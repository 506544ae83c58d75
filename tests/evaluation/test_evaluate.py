import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from made_runs import rewrite_arrays
from refusals import refusal
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.data import Split
from ricnet.evaluation import evaluate
from ricnet.evaluation.evaluate import (
    Outcome,
    Reading,
    observe,
    pool_size,
    read_predictions,
    report,
    save_predictions,
    select_validation,
    summarize,
    validation_sentence,
)
from ricnet.methods import Supervised

BELIEFS = torch.tensor(
    [
        [[0.6, 0.4], [0.3, 0.7], [0.5, 0.5]],
        [[0.9, 0.1], [0.1, 0.9], [0.2, 0.8]],
    ]
)

VALUES = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])

LABELS = torch.tensor([0, 1, 0])


class Scripted(Supervised):
    """A method with given answers; its inputs are row numbers."""

    modes: ClassVar[list[bool]] = []

    def refine(self, model: nn.Module, inputs: Tensor, max_steps: int | None = None, halt: bool = False) -> Trajectory:
        self.modes.append(model.training)
        rows = inputs[:, 0].long()
        return Trajectory(BELIEFS[:, rows].log(), halting_step(VALUES[:, rows]), VALUES[:, rows])


def test_a_reading_sets_temperature_and_halts() -> None:
    values = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 0.2], [1.0, 1.0]])
    path = Trajectory(torch.randn(4, 2, 3).log_softmax(-1), halting_step(values), values)
    halts = {
        Reading(): [1, 4],
        Reading(max_steps=3): [1, 3],
        Reading(halt_threshold=0.5): [1, 2],
        Reading(halt_threshold=-2.0, max_steps=2): [2, 2],
        Reading(step=3): [3, 3],
    }
    assert {reading: reading.read(path).halt_step.tolist() for reading in halts} == halts
    softer = Reading(2.0).read(path).log_beliefs
    torch.testing.assert_close(softer, (path.log_beliefs / 2).log_softmax(-1))


def test_report_has_scores_at_the_halt_costs_and_scores_per_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers (0.9, 0.1), (0.3, 0.7), (0.2, 0.8): right, right, wrong. Scores per step are without halting."""
    model, scores = nn.Linear(1, 1).train(), [math.log(0.9), math.log(0.7), math.log(0.2)]
    monkeypatch.setattr(evaluate, "pool_size", lambda _: 2)
    entry = report(observe(Scripted(), model, Split(torch.arange(3).float().unsqueeze(1), LABELS)))
    assert (Scripted.modes[-2:], model.training) == ([False, False], True)
    by_hand = {
        "accuracy": 2 / 3,
        "mean_confidence": (0.9 + 0.7 + 0.8) / 3,
        "ece_signed": 0.8 - 2 / 3,
        "ece_signed_error": statistics.stdev([-0.1, -0.3, 0.8]) / math.sqrt(3),
        "nll": -sum(scores) / 3,
        "normalized_return": 1 + sum(scores) / 3 / math.log(2),
        "brier": (2 * 0.1**2 + 2 * 0.3**2 + 2 * 0.8**2) / 3,
        "ece": (0.1 + 0.3 + 0.8) / 3,
        "n": 3,
        "ece_bins": 15,
        "mean_steps": (2 + 1 + 2) / 3,
        "mean_cell_evaluations": (2 + 2 + 2) / 3,
        "mean_steps_correct": 1.5,
        "mean_steps_wrong": 2,
    }
    assert {name: entry[name] for name in by_hand} == pytest.approx(by_hand, abs=1e-6)
    assert entry["halting"] == [{"step": 1, "correct": 1, "wrong": 0}, {"step": 2, "correct": 1, "wrong": 1}]
    assert [row["mean_confidence"] for row in entry["per_step"]] == pytest.approx([0.6, 2.6 / 3])
    assert entry["per_step"][1]["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.9) + math.log(0.2)) / 3)
    documented = by_hand.keys() | {"ece_classwise", "aurc", "auroc_correctness", "per_step"}
    assert documented <= json.loads(json.dumps(entry, allow_nan=False)).keys()


def test_all_right_has_no_wrong_steps_and_no_auroc_and_pools_shrink_as_classes_grow() -> None:
    outcome = observe(Scripted(), nn.Linear(1, 1), Split(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)))
    assert (report(outcome)["mean_steps_wrong"], report(outcome)["auroc_correctness"]) == (None, None)
    assert summarize(outcome)["accuracy"] == 1
    assert [pool_size(classes) for classes in (2, 100, 256, 1000, 10_000)] == [8192, 8192, 4096, 1048, 512]


def outcome(with_values: bool) -> Outcome:
    values = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    beliefs = torch.tensor([[[0.6, 0.4], [0.3, 0.7]], [[0.9, 0.1], [0.5, 0.5]]])
    path = Trajectory(beliefs.log(), halting_step(values), values if with_values else None)
    return Outcome.of(path, torch.tensor([0, 0]))


def test_saved_predictions_are_read_back(tmp_path: Path) -> None:
    save_predictions({"val": outcome(False), "test": outcome(True)}, tmp_path / "predictions.npz")
    test = read_predictions(tmp_path)
    np.testing.assert_array_equal(test.labels, [0, 0])
    np.testing.assert_array_equal(test.halt_step, [2, 1])
    np.testing.assert_array_equal(test.cell_evaluations, [2, 2])
    np.testing.assert_allclose(test.log_beliefs.exp(), [[0.9, 0.1], [0.3, 0.7]], rtol=1e-6)
    np.testing.assert_allclose(test.step_scores.exp(), [[0.6, 0.3], [0.9, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(test.step_confidence, [[0.6, 0.7], [0.9, 0.5]], rtol=1e-6)
    np.testing.assert_array_equal(test.step_correct[0], [True, False])
    entropy = -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    np.testing.assert_allclose(test.step_entropy[0, 0], entropy, rtol=1e-6)
    np.testing.assert_array_equal(test.values, [[1, 1], [1, -1]])
    assert read_predictions(tmp_path, "val").values is None


@pytest.mark.parametrize(
    "changes",
    [
        {"test_labels": np.zeros(3, dtype=np.int64)},
        {"test_step_correct": np.zeros((3, 2), dtype=bool)},
        {"test_values": np.zeros((2, 3), dtype=np.float32)},
        {"test_halt_step": None},
        {"test_halt_step": np.array([1, 3])},
        {"test_labels": np.zeros(2)},
        {"test_costs": np.ones(3)},
        {"test_colour": np.zeros(2)},
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, changes: dict[str, np.ndarray | None]) -> None:
    path = tmp_path / "predictions.npz"
    save_predictions({"test": outcome(True)}, path)
    rewrite_arrays(path, **changes)
    with refusal("predictions.npz") as caught:
        read_predictions(tmp_path)
    # Checked by the reader itself, because jaxtyping checks types and shapes only in tests.
    assert isinstance(caught.value.__cause__, TypeError if "test_colour" in changes else (ValueError, KeyError))


@pytest.mark.parametrize("content", [None, b"", b"no archive"], ids=["missing", "empty", "no archive"])
def test_invalid_prediction_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "predictions.npz").write_bytes(content)
    with refusal(tmp_path, "predictions.npz"):
        read_predictions(tmp_path)


CONFIDENCE = torch.tensor([[0.4, 0.6, 0.5, 0.9], [0.7, 0.8, 0.95, 0.95]], dtype=torch.float64)

CORRECT = torch.tensor([[True, False, False, True], [True, True, False, True]])

FOUND = Outcome(
    labels=torch.zeros(4, dtype=torch.int64),
    log_beliefs=torch.zeros(4, 2),
    halt_step=torch.tensor([2, 1, 2, 1]),
    cell_evaluations=torch.ones(4, dtype=torch.int64),
    step_scores=torch.zeros(2, 4),
    step_confidence=CONFIDENCE,
    step_correct=CORRECT,
    step_entropy=torch.zeros(2, 4),
)
"""At their own halts: 0.7 right, 0.6 wrong, 0.95 wrong, 0.9 right."""


@pytest.mark.parametrize(
    ("threshold", "answered", "wrong"), [(0.5, 4, 2), (0.6, 4, 2), (0.61, 3, 1), (0.95, 1, 1), (0.96, 0, 0)]
)
def test_answers_are_counted_at_each_halt(threshold: float, answered: int, wrong: int) -> None:
    assert select_validation(FOUND, threshold) == (answered, wrong)


def test_fewer_steps_are_taken_into_account() -> None:
    """After one step: 0.4 right, 0.6 wrong, 0.5 wrong, 0.9 right."""
    assert select_validation(FOUND, 0.5, 1) == (3, 2)
    assert select_validation(FOUND, 0.5, 9) == select_validation(FOUND, 0.5)


def test_thresholds_are_compared_in_single_precision() -> None:
    single = replace(FOUND, step_confidence=torch.full((2, 4), 0.9))
    assert select_validation(single, float(np.float32(0.9)))[0] == 4


def save(folder: Path, found: Outcome) -> None:
    save_predictions({"val": found}, folder / "predictions.npz")


def test_validation_sentence_has_coverage_and_risk(tmp_path: Path) -> None:
    save(tmp_path, FOUND)
    said = validation_sentence(tmp_path, 0.61, None)
    assert all(fact in said for fact in ("3 of 4", "0.61", "75.0%", "1 of them", "33.3%"))
    assert "all 4" in validation_sentence(tmp_path, 1.0, None)
    save(tmp_path, replace(FOUND, step_correct=torch.ones(2, 4, dtype=torch.bool)))
    assert "risk 0.0%" in validation_sentence(tmp_path, 0.61, None)


def test_validation_sentence_without_predictions(tmp_path: Path) -> None:
    assert "are unknown" in validation_sentence(tmp_path, 0.9, None)
