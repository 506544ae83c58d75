"""Sentences about systems whose log-scores we choose."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from archive_results import archive_run, log_scores
from claims import claims, sentences
from ricnet.report.runs import RunGroup, group_seeds, read_runs

from .systems import write_system


def groups_of(root: Path, seeds: int, ric: float, sl: float = 1.0, n: int = 400) -> list[RunGroup]:
    """More skill is less NLL; SL + temperature comes with SL's own settings and a temperature."""
    paths = write_system(root, "ric", seeds, skill=ric, n=n, data="x")
    paths += write_system(root, "supervised", seeds, skill=sl, n=n, data="x", calibration="temperature")
    return group_seeds(read_runs([archive_run(path, root / "results") for path in paths]))


def test_both_intervals_are_those_of_scipy(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, 3, ric=3.0)
    (claim,) = claims(groups)
    ours, theirs = ([run.test["nll"] for run in group.runs] for group in groups)
    test = stats.ttest_rel(ours, theirs)
    assert claim.seeds.p_value == pytest.approx(test.pvalue)
    gaps = np.mean(
        [log_scores(b) - log_scores(a) for a, b in zip(groups[0].runs, groups[1].runs, strict=True)],  # type: ignore[operator]
        axis=0,
    )
    assert claim.examples is not None
    assert claim.examples.mean == pytest.approx(claim.seeds.mean, abs=1e-4)
    half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps))
    assert claim.examples.half_width == pytest.approx(half)


def test_better_is_said_from_five_seeds_on(tmp_path: Path) -> None:
    (shown,) = sentences(groups_of(tmp_path / "five", 5, ric=4.0))
    assert "RIC is better than SL + temperature." in shown
    assert "over 5 seeds" in shown
    assert "over the 400 test examples" in shown
    (few,) = sentences(groups_of(tmp_path / "three", 3, ric=4.0))
    assert "is better" not in few
    assert "but 3 seeds are fewer than the 5" in few
    (worse,) = sentences(groups_of(tmp_path / "worse", 5, ric=1.0, sl=4.0))
    assert "RIC is worse than SL + temperature." in worse


def test_equal_systems_show_nothing(tmp_path: Path) -> None:
    (equal,) = sentences(groups_of(tmp_path / "equal", 5, ric=2.0, sl=2.0))
    assert "No difference is shown." in equal
    (one,) = sentences(groups_of(tmp_path / "one", 1, ric=4.0))
    assert "One seed says nothing" in one


def test_examples_that_were_not_kept_support_nothing(tmp_path: Path) -> None:
    paths = write_system(tmp_path, "ric", 5, skill=4.0) + write_system(
        tmp_path, "supervised", 5, skill=1.0, calibration="temperature"
    )
    for path in paths:
        (path / "predictions.npz").unlink()
    (claim,) = claims(group_seeds(read_runs(paths)))
    assert claim.examples is None
    (text,) = sentences(group_seeds(read_runs(paths)))
    assert "No difference is shown." in text


def test_without_a_rival_nothing_is_claimed(tmp_path: Path) -> None:
    groups = group_seeds(read_runs(write_system(tmp_path, "ric", 2)))
    assert sentences(groups) == [
        "Nothing is claimed of RIC here: there are no runs of SL + temperature with the same seeds to hold it against."
    ]
    assert sentences(group_seeds(read_runs(write_system(tmp_path, "supervised", 2)))) == []
