from pathlib import Path

import numpy as np

from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES, Scale

from .conftest import MakeRuns, draw, pick, texts_of

FIG2 = ITEMS["fig2"]


def test_train_and_validation_curves(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(FIG2.experiments(scale))
    rows = FIG2.tabulate(scale, runs)
    sl = runs[FIG2.experiments(scale)[0]]
    for split, key in (("train", "train_eval"), ("validation", "val")):
        expected = np.mean([[entry[key]["normalized_return"] for entry in run.metrics] for run in sl], axis=0)
        own = pick(rows, system="SL", split=split, quantity="normalized_return")
        np.testing.assert_allclose(own["mean"], expected)
    figure = draw(FIG2, scale, runs, tmp_path)
    assert [ax.get_title(loc="left")[:3] for ax in figure.axes] == ["(a)", "(b)", "(c)"]
    assert [len(ax.lines) for ax in figure.axes] == [4, 4, 3]
    assert len({str(line.get_linestyle()) for line in figure.axes[0].lines}) == 2
    assert "SL (3 seeds)" in texts_of(figure)


def test_seeds_that_diverged_are_counted_out(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    sl, ric = FIG2.experiments(scale)
    assert "RIC (2 of 3 seeds)" in texts_of(draw(FIG2, scale, make_runs([sl]) | make_runs([ric], only=2), tmp_path))
    assert texts_of(draw(FIG2, scale, make_runs([sl]), tmp_path)).count("missing: RIC (no run finished)") == 3
    assert {dict(one.changes)["epochs"] for one in FIG2.experiments(SCALES["paper"])} == {1000}
