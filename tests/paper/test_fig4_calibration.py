from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ricnet.report.runs import RunRecord
from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES, Scale

from .conftest import MakeRuns, draw, pick, texts_of

FIG4 = ITEMS["fig4"]


def binned(run: RunRecord, low: tuple[int, float | None], high: tuple[int, float | None]) -> RunRecord:
    """A run whose answers lie in two bins, with numbers of answers and of right answers."""
    bins = [
        {
            "lower": lower,
            "upper": lower + 0.5,
            "n": n,
            "accuracy": accuracy,
            "confidence": None if n == 0 else lower + 0.4,
        }
        for lower, (n, accuracy) in ((0.0, low), (0.5, high))
    ]
    test = {**run.test, "reliability": bins, "n": low[0] + high[0], "ece": 0.1, "ece_bins": 2}
    return replace(run, evaluation={"test": test})


def test_bins_are_averaged_over_the_seeds_that_have_answers_there(scale: Scale, make_runs: MakeRuns) -> None:
    sl, ric = FIG4.experiments(scale)
    runs = make_runs([sl, ric])
    one, two, three = runs[sl]
    runs[sl] = [binned(one, (0, None), (10, 0.8)), binned(two, (5, 0.2), (5, 0.9)), binned(three, (5, 0.4), (5, 1.0))]
    rows = pick(FIG4.tabulate(scale, runs), system="SL")
    low, high = pick(rows, quantity="bin accuracy").to_dict("records")
    assert (low["mean"], low["n"]) == (pytest.approx(0.3), 2)
    assert low["half_width"] == pytest.approx(12.7062 * 0.1, rel=1e-5)
    assert (high["mean"], high["n"]) == (pytest.approx(0.9), 3)
    assert pick(rows, quantity="share")["mean"].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert pick(rows, quantity="bin confidence")["mean"].tolist() == pytest.approx([0.4, 0.9])
    (ece,) = pick(rows, quantity="ece").to_dict("records")
    assert (ece["mean"], ece["half_width"]) == (pytest.approx(0.1), pytest.approx(0))


def test_bars_reach_the_accuracy_and_gaps_the_confidence(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(FIG4.experiments(scale))
    rows = pick(FIG4.tabulate(scale, runs), system="RIC")
    figure = draw(FIG4, scale, runs, tmp_path)
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "(a) confidence",
        "(b) reliability of SL",
        "(c) reliability of RIC",
    ]
    bars, gaps = figure.axes[2].containers
    accuracy, confidence = (pick(rows, quantity=f"bin {name}")["mean"].dropna() for name in ("accuracy", "confidence"))
    np.testing.assert_allclose([bar.get_height() for bar in bars], accuracy)
    np.testing.assert_allclose([gap.get_y() + gap.get_height() for gap in gaps], confidence)
    assert "test n = 90, 15 bins" in texts_of(figure)


@pytest.mark.parametrize(("name", "index"), [("fig4", 0), ("fig7", 1), ("fig8", 2)])
def test_one_benchmark_a_figure(name: str, index: int) -> None:
    for scale in SCALES.values():
        assert {one.benchmark for one in ITEMS[name].experiments(scale)} == {scale.benchmarks[index]}
