from dataclasses import replace

import numpy as np
import pytest

from ricnet.report.reliability import over_seeds, reliability_figure
from ricnet.report.runs import RunGroup


def test_bars_of_one_run_are_its_accuracies(systems: list[RunGroup]) -> None:
    alone = [RunGroup(group.label, group.runs[:1]) for group in systems[:2]]
    figure = reliability_figure(alone)
    for group, ax in zip(alone, figure.axes[:2], strict=True):
        test = group.first.test
        bins = [entry for entry in test["reliability"] if entry["n"]]
        bars, gaps = ax.containers
        assert [bar.get_height() for bar in bars] == pytest.approx([entry["accuracy"] for entry in bins])
        assert [bar.get_x() for bar in bars] == pytest.approx([entry["lower"] for entry in bins])
        tops = [gap.get_y() + gap.get_height() for gap in gaps]
        assert tops == pytest.approx([entry["confidence"] for entry in bins])
        assert [text.get_text() for text in ax.texts] == [f"ECE {test['ece']:.3f} (15 bins)\nn = 450"]
        assert ax.get_title() == group.label


def with_bins(group: RunGroup, *seeds: list[tuple[int, float | None]]) -> RunGroup:
    """Two bins a seed: how many, and how accurate."""
    edges = ({"lower": 0.0, "upper": 0.5}, {"lower": 0.5, "upper": 1.0})
    tables = [
        [{**e, "n": n, "accuracy": a, "confidence": a} for e, (n, a) in zip(edges, s, strict=True)] for s in seeds
    ]
    runs = [replace(group.first, evaluation={"test": {**group.first.test, "reliability": table}}) for table in tables]
    return RunGroup("x", tuple(runs))


def test_bins_are_averaged_over_the_seeds_that_fill_them(systems: list[RunGroup]) -> None:
    group = with_bins(systems[0], [(1, 0.2), (3, 0.9)], [(5, 0.4), (5, 0.7)], [(0, None), (9, 0.8)])
    np.testing.assert_allclose(over_seeds(group, "accuracy"), [0.3, 0.8])
    diagram, histogram = reliability_figure([group]).axes
    assert [bar.get_height() for bar in diagram.containers[0]] == pytest.approx([0.3, 0.8])
    shares = [100 * (1 / 4 + 5 / 10 + 0) / 3, 100 * (3 / 4 + 5 / 10 + 1) / 3]
    assert [bar.get_height() for bar in histogram.containers[0]] == pytest.approx(shares)


def test_a_bin_empty_in_every_seed_has_no_bar(systems: list[RunGroup]) -> None:
    group = with_bins(systems[0], [(0, None), (3, 0.9)], [(0, None), (5, 0.7)])
    assert [bar.get_x() for bar in reliability_figure([group]).axes[0].containers[0]] == [0.5]


def test_seeds_and_the_spread_of_the_ece_are_told(systems: list[RunGroup]) -> None:
    figure = reliability_figure(systems)
    errors = [run.test["ece"] for run in systems[0].runs]
    half = 4.30265 * np.std(errors, ddof=1) / np.sqrt(3)
    facts = figure.axes[0].texts[0].get_text()
    assert facts == f"ECE {np.mean(errors):.3f} ± {half:.3f} (15 bins)\nn = 450, 3 seeds"
