from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.evaluation.metrics import area_under_risk_coverage
from ricnet.report.risk import COVERAGE, risk_at, risk_figure, risk_of, with_predictions
from ricnet.report.runs import RunGroup

SURENESS = np.array([0.6, 0.9, 0.8, 0.7])
CORRECT = np.array([False, True, False, True])


def test_risk_by_hand() -> None:
    """The surest first: right, wrong, right, wrong."""
    np.testing.assert_allclose(risk_at(np.array([0.25, 0.5, 0.75, 1]), SURENESS, CORRECT), [0, 1 / 2, 1 / 3, 1 / 2])
    np.testing.assert_allclose(risk_at(np.array([0.01, 0.26, 0.74]), SURENESS, CORRECT), [0, 1 / 2, 1 / 3])


def test_equally_sure_answers_share_their_error() -> None:
    np.testing.assert_allclose(risk_at(np.array([1 / 3, 2 / 3, 1]), np.ones(3), np.array([True, False, True])), 1 / 3)


def test_a_share_that_floats_call_a_little_more_is_no_more() -> None:
    sureness, correct = -np.arange(100.0), np.arange(100) != 7
    assert 0.07 * 100 > 7
    assert risk_at(np.array([0.07]), sureness, correct) == 0


@given(st.lists(st.tuples(st.sampled_from([0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=40))
def test_its_mean_is_the_aurc(answers: list[tuple[float, bool]]) -> None:
    sureness, correct = (np.array(column) for column in zip(*answers, strict=True))
    everywhere = risk_at(np.arange(1, len(correct) + 1) / len(correct), sureness, correct)
    area = area_under_risk_coverage(torch.tensor(sureness), torch.tensor(correct))
    assert everywhere.mean() == pytest.approx(area)
    assert everywhere[-1] == pytest.approx(1 - correct.mean())


def test_lines_are_means_over_seeds_and_end_at_the_error(systems: list[RunGroup]) -> None:
    (ax,) = risk_figure(systems).axes
    assert len(ax.lines) == len(ax.collections) == 3
    for group, line in zip(systems, ax.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.mean([risk_of(run) for run in group.runs], axis=0))
        assert line.get_ydata()[-1] == pytest.approx(1 - np.mean([run.test["accuracy"] for run in group.runs]))
    assert len(COVERAGE) == len(ax.lines[0].get_xdata())


def test_runs_without_predictions_are_told(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    old = replace(ric.runs[1], path=tmp_path)
    mixed = RunGroup("RIC", (ric.runs[0], old))
    gone = RunGroup("SL", (replace(sl.first, path=tmp_path),))
    kept, missing = with_predictions([mixed, gone])
    assert [group.runs for group in kept] == [(ric.runs[0],)]
    assert missing == [old, gone.first]
