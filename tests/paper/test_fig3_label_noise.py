from pathlib import Path

import pandas as pd
import pytest

from ricnet_paper import ITEMS, fig3_label_noise
from ricnet_paper.fig3_label_noise import LOWEST, lowest
from ricnet_paper.scales import SCALES, Scale

from .conftest import MakeRuns, draw, pick, texts_of, with_curve

FIG3 = ITEMS["fig3"]


def track(ece: list[float | None]) -> pd.DataFrame:
    accuracy = [0.1, 0.44, 0.8, 0.9, 0.9]
    parts = {"accuracy": accuracy, "ece": ece}
    return pd.concat([pd.DataFrame({"epoch": range(1, 6), "mean": m, "quantity": q}) for q, m in parts.items()])


def test_the_lowest_error_of_a_classifier_that_has_learned() -> None:
    (best,) = lowest(track([0.001, 0.002, 0.3, 0.05, 0.06])).to_dict("records")
    assert best == {"epoch": 4, "mean": 0.05, "quantity": LOWEST}
    assert lowest(track([0.3, 0.2, 0.01, None, 0.06]))["epoch"].tolist() == [3]
    assert lowest(track([0.1, None, None, None, None])).empty


def test_test_and_validation_data_are_kept_apart(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(FIG3.experiments(scale), epochs=3)
    one = FIG3.experiments(scale)[0]
    runs[one] = [
        with_curve(with_curve(run, "test", "ece", [0.5, 0.1, 0.2]), "val", "ece", [0.5, 0.4, 0.3]) for run in runs[one]
    ]
    rows = pick(FIG3.tabulate(scale, runs), benchmark="digits", system="SL")
    assert pick(rows, split="test", quantity="ece")["mean"].tolist() == pytest.approx([0.5, 0.1, 0.2])
    found = {row.split: (row.epoch, row.mean) for row in pick(rows, quantity=LOWEST).itertuples()}
    assert found == {"test": (2, pytest.approx(0.1)), "validation": (3, pytest.approx(0.3))}
    figure = draw(FIG3, scale, runs, tmp_path)
    star = next(line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2, pytest.approx(0.1))
    assert "★ SL: 0.100 at epoch 2" in texts_of(figure)
    assert "n = 90" in texts_of(figure)


def test_a_long_name_leaves_the_panels_their_width(scale: Scale, make_runs: MakeRuns) -> None:
    table = FIG3.tabulate(scale, make_runs(FIG3.experiments(scale), epochs=3))
    long = table["system"].where(table["system"] == "SL", "RIC, on-policy, marginal credit")
    figure = fig3_label_noise.draw(table.assign(system=long))
    figure.draw_without_rendering()  # only now is the layout known
    assert figure.axes[0].get_position().width > 0.25
    assert "★ RIC: " in texts_of(figure)


def test_human_labels_that_are_not_here(make_runs: MakeRuns, tmp_path: Path) -> None:
    small = SCALES["small"]
    clean = [one for one in FIG3.experiments(small) if one.benchmark.data == "cifar10"]
    text = texts_of(draw(FIG3, small, make_runs(clean), tmp_path)).replace("\n", " ")
    assert text.count("cifar10n-aggregate is not here") == text.count("cifar10n-worst is not here") == 2
