"""Figures from runs as they are found; made-up runs will do, for nothing is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Benchmark, Cell
from ricnet.studies.gathering import as_given, gather, read_given
from ricnet.studies.paper.conditions import GIVEN
from ricnet.studies.paper.samples import tabulate_cells
from ricnet.studies.scales import SCALES

CIFAR, NOISY = Benchmark("CIFAR-10", "cifar10"), Benchmark("noisy", "cifar10", (("label_noise", 0.4),))
SEEDS = (0, 1)


def run(name: str, seed: int = 0, data: str = "cifar10", method: str = "ric", **settings: Any) -> RunRecord:
    own = {
        key: settings.pop(key)
        for key in ("gamma", "readout", "objective", "uniform_mix", "updates_per_snapshot", "exact_gain")
        if key in settings
    }
    optimization = {"epochs": settings.pop("epochs", 10), "optimizer": settings.pop("optimizer", "adamw")}
    config = {"data": data, "seed": seed, "preset": "fast", "method": {"name": method, "gamma": 0.8, **own}, **settings}
    config |= {"optimization": optimization, "network": {"encoder": "resnet34", "width": 1.0}}
    evaluation = {"test": {"n": 100, "accuracy": 0.9}}
    return RunRecord(Path(name), "", "0", config, {"input_shape": [3, 32, 32]}, {}, [], evaluation, None)


def gathered(cell: Cell, *runs: RunRecord) -> list[str]:
    found = gather([cell], runs, Console(quiet=True))
    assert found.problems == []
    return [str(record.path) for record in found.runs[cell]]


@pytest.mark.parametrize(
    "algorithm", [{}, {"updates_per_snapshot": 1}, {"updates_per_snapshot": 1, "exact_gain": True}]
)
def test_a_run_of_any_algorithm_is_one_of_ric(algorithm: dict[str, Any]) -> None:
    plain, ppo = run("a", **algorithm), run("ppo", objective="ppo", **algorithm)
    assert gathered(Cell("ric", CIFAR, SEEDS), plain, ppo) == ["a"]
    assert gathered(Cell("ric-ppo", CIFAR, SEEDS), plain, ppo) == ["ppo"]


def test_a_run_belongs_where_its_system_and_its_data_do() -> None:
    runs = [
        run("a", 1),
        run("b", 0),
        run("sl", method="supervised"),
        run("svhn", data="svhn"),
        run("mu", readout="mu"),
        run("ppo", objective="ppo"),
        run("noisy", label_noise=0.4),
        run("seed 7", 7),
        run("sl t", method="supervised", calibration="temperature"),
        run("cap", method="supervised", uniform_mix=0.01),
    ]
    expected = {
        Cell("ric", CIFAR, SEEDS): ["b", "a"],
        Cell("ric-mu", CIFAR, SEEDS): ["mu"],
        Cell("ric-ppo", CIFAR, SEEDS): ["ppo"],
        Cell("ric", NOISY, SEEDS): ["noisy"],
        Cell("supervised", CIFAR, SEEDS): ["sl"],
        Cell("supervised-temperature", CIFAR, SEEDS): ["sl t"],
        Cell("confidence-cap", CIFAR, SEEDS): ["cap"],
        Cell("act", CIFAR, SEEDS): [],
    }
    for cell, names in expected.items():
        assert gathered(cell, *runs) == names, cell


def test_settings_that_a_cell_names_must_agree() -> None:
    adam, sgd = run("adam", optimizer="adam"), run("sgd", optimizer="sgd")
    assert gathered(Cell("ric", CIFAR, SEEDS, (("optimizer", "sgd"),)), adam, sgd) == ["sgd"]
    assert gathered(Cell("ric:gamma=0.9", CIFAR, SEEDS), run("g", gamma=0.9), run("h", 1)) == ["g"]


def test_two_recipes_of_one_system_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell("ric", CIFAR, SEEDS)
    found = gather([cell], [run("short", epochs=10), run("long", 1, epochs=90)], Console(soft_wrap=True))
    assert found.runs[cell] == []
    assert found.problems == [
        "ric on CIFAR-10 was run with different settings (short and long): leave all but one out."
    ]
    assert "missing: ric on CIFAR-10" in capsys.readouterr().out


def test_the_scale_keeps_its_data_and_takes_the_seeds_that_are_there() -> None:
    scale = as_given(SCALES["paper"], [run("a", 4), run("b", 2)])
    assert (scale.name, scale.seeds, scale.changes, scale.dynamics) == (GIVEN, (2, 4), (), ())
    assert scale.benchmarks == SCALES["paper"].benchmarks


def test_rows_say_what_was_run_and_what_is_missing() -> None:
    runs = [run("a", 0), run("b", 1), run("sl", method="supervised")]
    scale = as_given(replace(SCALES["paper"], benchmarks=(CIFAR, Benchmark("SVHN", "svhn"))), runs)
    cells = scale.cells(["supervised", "ric"], scale.benchmarks)
    found = gather(cells, runs, Console(quiet=True))
    rows = tabulate_cells(scale, cells, found.runs, lambda own: [{"quantity": "x"}])
    assert [(row["seeds"], row["asked"]) for row in rows[:2]] == [(1, 1), (2, 2)]
    assert [row.get("missing") for row in rows] == [None, None, *["not among the given runs"] * 2]
    assert rows[0]["epochs"] == 10


def test_only_finished_runs_are_read(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    with pytest.raises(RicnetError, match="--from-runs: there are no finished runs in"):
        read_given([tmp_path])
