from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ricnet.studies.cells import Benchmark
from ricnet.studies.paper.samples import summaries, summary, tabulate_cells
from ricnet.studies.scales import Scale
from ricnet.studies.systems import SYSTEMS

from .conftest import MakeRuns, record


def test_summary_by_hand() -> None:
    row = summary([0.90, 0.92, None, 0.94, np.nan])
    # s = 0.02, t(0.975; 2) = 4.30265
    assert row == {
        "mean": pytest.approx(0.92),
        "half_width": pytest.approx(4.30265 * 0.02 / np.sqrt(3), rel=1e-5),
        "n": 3,
    }
    assert summary([0.5]) == {"mean": 0.5, "half_width": None, "n": 1}
    assert summary([None]) == {"mean": None, "half_width": None, "n": 0}


def test_summaries_at_every_place() -> None:
    rows = summaries(np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.inf]]))
    assert rows[0] == {"mean": 2.0, "half_width": pytest.approx(12.7062, rel=1e-5), "n": 2}  # s/√2 = 1
    assert rows[1] == {"mean": 5.0, "half_width": None, "n": 1}
    assert rows[2] == {"mean": None, "half_width": None, "n": 0}


def test_rows_carry_their_cell_and_how_many_seeds_finished(scale: Scale, make_runs: MakeRuns) -> None:
    cells = scale.cells(["supervised", "ric"], scale.benchmarks[:1])
    runs = make_runs(cells[:1]) | make_runs(cells[1:], only=2)
    rows = tabulate_cells(scale, cells, runs, lambda found: [{"quantity": "runs", "mean": len(found)}])
    assert [(row["system"], row["seeds"], row["asked"], row["mean"]) for row in rows] == [
        ("SL", 3, 3, 3),
        ("RIC", 2, 3, 2),
    ]
    assert {(row["benchmark"], row["scale"], row["epochs"]) for row in rows} == {("digits", "smoke", 12)}


def test_systems_are_called_as_the_report_calls_their_runs(scale: Scale, make_runs: MakeRuns) -> None:
    systems = ["ric-ppo", "supervised-temperature", "ric-mu", "ric:gamma=0.9", "act"]
    cells = scale.cells(systems, scale.benchmarks[:1])
    elsewhere = scale.cells(["ric-ppo"], scale.benchmarks[1:2])
    rows = tabulate_cells(scale, [*cells, *elsewhere], make_runs(cells[:-1]), lambda _: [{}])
    assert [row["system"] for row in rows] == [
        *("RIC, PPO", "SL + temperature", "RIC, readout mu"),
        "ric:gamma=0.9",  # which shows its settings
        "act",  # of which there is no run
        "RIC, PPO",  # of which there is one elsewhere, so that a table has one line for both
    ]


def test_no_two_systems_are_called_alike(tmp_path: Path) -> None:
    """They would share a line of a table."""
    distinct = [name for name, system in SYSTEMS.items() if system.preset is None]  # those with one differ in more
    names = [record(tmp_path, system).method for system in distinct]
    assert len(set(names)) == len(distinct)


def test_why_a_cell_is_missing(scale: Scale, make_runs: MakeRuns) -> None:
    svhn = replace(scale, benchmarks=(Benchmark("SVHN", "svhn"),))
    sl, ric = svhn.cells(["supervised", "ric"], svhn.benchmarks)

    def reasons(runs: dict) -> list:
        return [row.get("missing") for row in tabulate_cells(svhn, [sl, ric], runs, lambda _: [{}])]

    assert reasons({}) == ["svhn is not here", "svhn is not here"]
    assert reasons(make_runs([sl])) == [None, "no run finished"]
    assert reasons({sl: [], ric: []}) == ["no run finished", "no run finished"]
