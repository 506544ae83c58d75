from pathlib import Path

import numpy as np

from ricnet.studies.paper import RECIPES
from ricnet.studies.paper.rows import floats, pick
from ricnet.studies.scales import Scale

from .conftest import MakeRuns, draw, texts_of

FIG9 = RECIPES["fig9"]


def test_validation_curves_of_three_systems(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    full, ppo, normal = FIG9.cells(scale)
    runs = make_runs([full, ppo]) | make_runs([normal], only=1)
    rows = FIG9.tabulate(scale, runs)
    expected = np.mean([[entry["val"]["ece"] for entry in run.metrics] for run in runs[ppo]], axis=0)
    np.testing.assert_allclose(floats(pick(rows, system="RIC, PPO", quantity="ece"), "mean"), expected)
    figure = draw(FIG9, scale, runs, tmp_path)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["(a) normalised return", "(b) accuracy", "(c) ECE"]
    assert all(len(ax.lines) == 3 for ax in figure.axes)
    assert len({line.get_marker() for line in figure.axes[0].lines}) == 3
    assert "RIC, logistic-normal (1 of 3 seeds)" in texts_of(figure)
