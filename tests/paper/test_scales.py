from dataclasses import replace

import pytest
from rich.console import Console

from made_runs import bare_run as run
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Benchmark
from ricnet.studies.runner import take_given
from ricnet_paper import ITEMS
from ricnet_paper.kit import tabulate
from ricnet_paper.scales import GIVEN, SCALES, as_given


def test_the_scale_keeps_its_data_and_takes_the_seeds_that_are_there() -> None:
    scale = as_given(SCALES["paper"], [run("a", 4), run("b", 2)])
    assert (scale.name, scale.seeds, scale.changes, scale.dynamics) == (GIVEN, (2, 4), (), ())
    assert scale.benchmarks == SCALES["paper"].benchmarks


@pytest.mark.parametrize("item", ["fig5", "halting"])
def test_what_looks_at_one_benchmark_looks_at_the_last_that_there_are_runs_of(item: str) -> None:
    def asked(*runs: RunRecord) -> set[str]:
        return {one.benchmark.label for one in ITEMS[item].experiments(as_given(SCALES["paper"], runs))}

    assert asked(run("a")) == {"CIFAR-10"}
    assert asked(run("b", data="svhn"), run("a")) == {"SVHN"}
    assert asked(run("c", data="another")) == {"ImageWoof"}  # the scale's own


def test_rows_say_what_was_run_and_what_is_missing() -> None:
    runs = [run("a", 0), run("b", 1), run("sl", method="supervised")]
    scale = as_given(
        replace(SCALES["paper"], benchmarks=(Benchmark("CIFAR-10", "cifar10"), Benchmark("SVHN", "svhn"))), runs
    )
    asked = scale.experiments(["supervised", "ric"], scale.benchmarks)
    found, _ = take_given(asked, runs, Console(quiet=True))
    table = tabulate(scale, asked, found, lambda own: [{"quantity": "x", "value": 1.0} for _ in own])
    assert table[["seeds", "asked"]].to_numpy()[:2].tolist() == [[1, 1], [2, 2]]
    assert table["missing"].fillna("").tolist() == ["", "", *["not among the given runs"] * 2]
    assert table["epochs"][0] == 10
