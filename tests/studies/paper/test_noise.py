from pathlib import Path

import pytest

from ricnet.studies.paper import RECIPES
from ricnet.studies.paper.noise import LOWEST, lowest
from ricnet.studies.paper.rows import Rows, pick
from ricnet.studies.scales import SCALES, Scale

from .conftest import MakeRuns, draw, texts_of, with_curve

FIG3 = RECIPES["fig3"]


def track(*means: float | None) -> Rows:
    return [{"epoch": epoch, "mean": mean, "quantity": "ece"} for epoch, mean in enumerate(means, start=1)]


def test_the_lowest_error_of_a_classifier_that_has_learned() -> None:
    accuracy = track(0.1, 0.44, 0.8, 0.9, 0.9)
    assert lowest(track(0.001, 0.002, 0.3, 0.05, 0.06), accuracy) == [{"epoch": 4, "mean": 0.05, "quantity": LOWEST}]
    assert lowest(track(0.3, 0.2, 0.01, None, 0.06), accuracy)[0]["epoch"] == 3
    assert lowest([], accuracy) == []


def test_test_and_validation_data_are_kept_apart(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(FIG3.cells(scale), epochs=3)
    cell = FIG3.cells(scale)[0]
    runs[cell] = [
        with_curve(with_curve(run, "test", "ece", [0.5, 0.1, 0.2]), "val", "ece", [0.5, 0.4, 0.3]) for run in runs[cell]
    ]
    rows = pick(FIG3.tabulate(scale, runs), benchmark="digits", system="SL")
    assert [row["mean"] for row in pick(rows, split="test", quantity="ece")] == pytest.approx([0.5, 0.1, 0.2])
    found = {row["split"]: (row["epoch"], row["mean"]) for row in pick(rows, quantity=LOWEST)}
    assert found == {"test": (2, pytest.approx(0.1)), "validation": (3, pytest.approx(0.3))}
    figure = draw(FIG3, scale, runs, tmp_path)
    star = next(line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2, pytest.approx(0.1))
    assert "★ SL: 0.100 at epoch 2" in texts_of(figure)
    assert "n = 90" in texts_of(figure)


def test_human_labels_that_are_not_here(make_runs: MakeRuns, tmp_path: Path) -> None:
    small = SCALES["small"]
    clean = [cell for cell in FIG3.cells(small) if cell.benchmark.data == "cifar10"]
    text = texts_of(draw(FIG3, small, make_runs(clean), tmp_path)).replace("\n", " ")
    assert text.count("cifar10n-aggregate is not here") == text.count("cifar10n-worst is not here") == 2
