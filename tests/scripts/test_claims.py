"""Sentences of scripts/claims.py for systems with chosen log-scores."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from archive_results import archive_run, log_scores
from claims import _verdict, claims, sentences
from made_runs import groups_of, write_system
from ricnet.report.runs import RunGroup


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, float], list[Path]]:
    """Five archived seeds of a system; more skill gives a lower NLL."""

    @cache
    def made(method: str, skill: float) -> list[Path]:
        root = tmp_path_factory.mktemp(method)
        settings = {"calibration": "temperature"} if method == "supervised" else {}
        paths = write_system(root, method, 5, skill=skill, **settings)
        return [archive_run(path, root / "results") for path in paths]

    return made


Archive = Callable[[str, float], list[Path]]


def two_systems(archive: Archive, seeds: int, ric: float, sl: float = 2.0) -> list[RunGroup]:
    """RIC and SL + temperature with these skills."""
    return groups_of(*archive("ric", ric)[:seeds], *archive("supervised", sl)[:seeds])


def test_both_intervals_are_those_of_scipy(archive: Archive) -> None:
    groups = two_systems(archive, 3, ric=3.0)
    (claim,) = claims(groups)
    ours, theirs = ([run.test["nll"] for run in group.runs] for group in groups)
    assert claim.seeds.p_value == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    pairs = zip(groups[0].runs, groups[1].runs, strict=True)
    gaps = np.mean([log_scores(theirs) - log_scores(ours) for ours, theirs in pairs], axis=0)
    assert claim.examples.mean == pytest.approx(claim.seeds.mean, abs=1e-4)
    half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps))
    assert claim.examples.half_width == pytest.approx(half)


@pytest.mark.parametrize(
    ("seeds", "ric", "sl", "said"),
    [
        (5, 3.0, 2.0, "RIC is better than SL + temperature."),
        (5, 2.0, 3.0, "RIC is worse than SL + temperature."),
        (5, 2.0, 2.0, "No difference is shown."),
        (3, 3.0, 2.0, "3 seeds are fewer than the 5"),
        (1, 3.0, 2.0, "One seed says nothing"),
    ],
)
def test_better_is_said_from_five_seeds_on(archive: Archive, seeds: int, ric: float, sl: float, said: str) -> None:
    (text,) = sentences(two_systems(archive, seeds, ric, sl))
    assert said in text
    assert ("is better" in text or "is worse" in text) == (said.startswith("RIC is"))
    assert seeds == 1 or (f"over {seeds} seeds" in text and "over the 300 test examples" in text)


def test_it_is_said_where_only_the_correction_takes_a_difference_away(archive: Archive) -> None:
    (claim,) = claims(two_systems(archive, 5, ric=3.0))
    assert _verdict(claim) == "RIC is better than SL + temperature."
    assert _verdict(replace(claim, p_corrected=0.06)).startswith("Corrected for all comparisons here (Holm)")
    wide = replace(claim.seeds, half_width=2 * abs(claim.seeds.mean))
    assert _verdict(replace(claim, p_corrected=0.06, seeds=wide)) == "No difference is shown."


def test_examples_that_were_not_kept_support_nothing(tmp_path: Path) -> None:
    paths = write_system(tmp_path, "ric", 5) + write_system(
        tmp_path, "supervised", 5, skill=2.0, calibration="temperature"
    )
    for path in paths:
        (path / "predictions.npz").unlink()
    groups = groups_of(*paths)
    assert [claim.examples for claim in claims(groups)] == [None]
    assert ["No difference is shown." in text for text in sentences(groups)] == [True]


def test_without_a_rival_nothing_is_claimed(tmp_path: Path) -> None:
    (text,) = sentences(groups_of(*write_system(tmp_path, "ric", 2)))
    assert text.startswith("Nothing is claimed of RIC here")
    assert sentences(groups_of(*write_system(tmp_path, "supervised", 2))) == []
