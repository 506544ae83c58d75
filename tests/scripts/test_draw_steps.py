"""Figure 5 (b) and (c) from archived runs: numbers agree with the files for any number of seeds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draw_steps import draw_folder, figure_of, measured
from refusals import refusal
from ricnet.report.runs import read_run
from ricnet.report.statistics import mean_interval

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results" / "imagewoof-half-resnet18-paper" / "ric-seed0.json"


def test_curves_are_those_of_the_file() -> None:
    run = read_run(RUN)
    table = measured([run])
    ece = table[table.quantity == "ece"]
    assert ece["mean"].tolist() == [entry["ece"] for entry in run.test["per_step"]]
    assert ece["half_width"].isna().all()
    for name in ("right", "wrong"):
        own = table[table.quantity == name]
        assert own["mean"].sum() == pytest.approx(1)
    members = table["members"].dropna().unique()
    assert sum(members) == run.test["n"]
    assert len(figure_of(table).axes) == 3


def test_further_seeds_give_intervals() -> None:
    run = read_run(RUN)
    runs = [run, replace(run, evaluation=run.evaluation | {"test": run.test | {"mean_steps": 9.0}})]
    table = measured(runs)
    halt = table[table.quantity == "halt"].iloc[0]
    expected = mean_interval([run.test["mean_steps"], 9.0])
    np.testing.assert_allclose([halt["mean"], halt["half_width"]], [expected.mean, expected.half_width])
    assert "2 seeds" in figure_of(table).axes[2].get_title(loc="left")


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with refusal("ric-seed"):
        draw_folder(tmp_path)
