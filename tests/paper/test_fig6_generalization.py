from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ricnet_paper import ITEMS
from ricnet_paper.fig6_generalization import generalization, levels_note
from ricnet_paper.kit import over_seeds
from ricnet_paper.scales import Scale

from .conftest import MakeRuns, draw, pick, record, texts_of, with_curve


def test_epochs_are_compared_at_equal_training_accuracy(tmp_path: Path) -> None:
    first, second = (record(tmp_path / str(seed), seed=seed, epochs=3) for seed in (0, 1))
    first = with_curve(
        with_curve(first, "train_eval", "accuracy", [0.5, 0.91, 0.919]), "val", "accuracy", [0.4, 0.8, 0.9]
    )
    second = with_curve(
        with_curve(second, "train_eval", "accuracy", [0.7, 0.905, 1.0]), "val", "accuracy", [0.6, 0.75, 0.95]
    )
    rows = over_seeds(generalization([first, second]))
    levels = {round(row["train"], 4): row for row in pick(rows, quantity="level").to_dict("records")}
    assert list(levels) == [0.5, 0.7, 0.9113, 1.0]
    middle = levels[0.9113]  # two epochs of the first seed, one of the second
    assert middle["mean"] == pytest.approx((0.85 + 0.75) / 2)
    assert middle["half_width"] == pytest.approx(12.7062 * 0.05, rel=1e-5)
    assert (levels[1.0]["mean"], levels[1.0]["n"]) == (0.95, 1)
    assert np.isnan(levels[1.0]["half_width"])
    point = pick(rows, quantity="epoch").iloc[0]
    assert (point["epoch"], point["train"], point["mean"]) == (1, pytest.approx(0.6), pytest.approx(0.5))


def test_a_shorter_run_leaves_no_wrong_levels(tmp_path: Path) -> None:
    rows = over_seeds(generalization([record(tmp_path / "a", epochs=6), record(tmp_path / "b", seed=1, epochs=3)]))
    assert np.isfinite(rows["train"]).all()
    assert pick(rows, quantity="epoch")["n"].tolist() == [2, 2, 2, 1, 1, 1]


def test_three_panels(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    item = ITEMS["fig6"]
    figure = draw(item, scale, make_runs(item.experiments(scale)), tmp_path)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["(a) digits", "(b) digits, 9 % flipped", "(c) digits, 40 % flipped"]
    assert all(len(ax.lines) == 3 for ax in figure.axes)  # SL, RIC and the diagonal
    assert "bands: with all seeds; dots: epochs" in texts_of(figure)
    assert "at least two seeds" not in levels_note(pd.DataFrame({"seeds": [1]}), "Lines")
    assert "with at least two seeds" in levels_note(pd.DataFrame({"seeds": [1, 3]}), "(c) lines")


def test_a_panel_with_a_collapsed_run_is_marked(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    item = ITEMS["fig6"]
    runs = make_runs(item.experiments(scale))
    ric = item.experiments(scale)[-1]
    runs[ric][0] = replace(runs[ric][0], collapses=({"epoch": 9, "accuracy": 0.3, "best_accuracy": 0.8},))
    figure = draw(item, scale, runs, tmp_path)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["(a) digits", "(b) digits, 9 % flipped", "(c) digits, 40 % flipped †"]
    assert "RIC † (3 seeds)" in texts_of(figure).replace("RIC, on-policy", "RIC")
    words = " ".join(texts_of(figure).split())
    assert f"† Training collapsed: {runs[ric][0].path.name} (epoch 9: training accuracy 30.0 %" in words
    assert "SL (3 seeds)" in words
