"""Figures from runs as they are found; made-up runs will do, for nothing is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from refusals import refusal
from ricnet.apps.commands.reproduce import as_given, read_given, take_given
from ricnet.methods.archive import modern_method
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import GIVEN, SCALES, Benchmark, Experiment
from ricnet.studies.paper import ITEMS
from ricnet.studies.paper.kit import tabulate

CIFAR, NOISY = Benchmark("CIFAR-10", "cifar10"), Benchmark("noisy", "cifar10", (("label_noise", 0.4),))
SEEDS = (0, 1)


def run(name: str, seed: int = 0, data: str = "cifar10", method: str = "ric", **settings: Any) -> RunRecord:
    own = {
        key: settings.pop(key)
        for key in ("gamma", "readout", "objective", "uniform_mix", "updates_per_snapshot", "exact_gain")
        if key in settings
    }
    optimization = {"epochs": settings.pop("epochs", 10), "optimizer": settings.pop("optimizer", "adamw")}
    config = {
        "data": data,
        "seed": seed,
        "preset": "fast",
        "method": modern_method({"name": method, "gamma": 0.8, **own}),
        **settings,
    }
    config |= {"optimization": optimization, "network": {"encoder": "resnet34", "width": 1.0}}
    evaluation = {"test": {"n": 100, "accuracy": 0.9}}
    return RunRecord(Path(name), "", "0", config, {"input_shape": [3, 32, 32]}, {}, [], evaluation, None)


def taken(one: Experiment, *runs: RunRecord) -> list[str]:
    found, problems = take_given([one], runs, Console(quiet=True))
    assert problems == []
    return [str(record.path) for record in found[one]]


@pytest.mark.parametrize(
    "algorithm", [{}, {"updates_per_snapshot": 1}, {"updates_per_snapshot": 1, "exact_gain": True}]
)
def test_a_run_of_any_algorithm_is_one_of_ric(algorithm: dict[str, Any]) -> None:
    plain, ppo = run("a", **algorithm), run("ppo", objective="ppo")
    assert taken(Experiment("ric", CIFAR, SEEDS), plain, ppo) == ["a"]
    assert taken(Experiment("ric-ppo", CIFAR, SEEDS), plain, ppo) == ["ppo"]


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
        Experiment("ric", CIFAR, SEEDS): ["b", "a"],
        Experiment("ric-mu", CIFAR, SEEDS): ["mu"],
        Experiment("ric-ppo", CIFAR, SEEDS): ["ppo"],
        Experiment("ric", NOISY, SEEDS): ["noisy"],
        Experiment("supervised", CIFAR, SEEDS): ["sl"],
        Experiment("supervised-temperature", CIFAR, SEEDS): ["sl t"],
        Experiment("confidence-cap", CIFAR, SEEDS): ["cap"],
        Experiment("act", CIFAR, SEEDS): [],
    }
    for one, names in expected.items():
        assert taken(one, *runs) == names, one


def test_settings_that_an_experiment_names_must_agree() -> None:
    adam, sgd = run("adam", optimizer="adam"), run("sgd", optimizer="sgd")
    assert taken(Experiment("ric", CIFAR, SEEDS, (("optimizer", "sgd"),)), adam, sgd) == ["sgd"]
    assert taken(Experiment("ric:gamma=0.9", CIFAR, SEEDS), run("g", gamma=0.9), run("h", 1)) == ["g"]


def test_two_recipes_of_one_system_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    one = Experiment("ric", CIFAR, SEEDS)
    found, problems = take_given([one], [run("short", epochs=10), run("long", 1, epochs=90)], Console(soft_wrap=True))
    assert found[one] == []
    assert ["short and long" in problem for problem in problems] == [True]
    assert "missing: ric on CIFAR-10" in capsys.readouterr().out


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
    scale = as_given(replace(SCALES["paper"], benchmarks=(CIFAR, Benchmark("SVHN", "svhn"))), runs)
    asked = scale.experiments(["supervised", "ric"], scale.benchmarks)
    found, _ = take_given(asked, runs, Console(quiet=True))
    table = tabulate(scale, asked, found, lambda own: [{"quantity": "x", "value": 1.0} for _ in own])
    assert table[["seeds", "asked"]].to_numpy()[:2].tolist() == [[1, 1], [2, 2]]
    assert table["missing"].fillna("").tolist() == ["", "", *["not among the given runs"] * 2]
    assert table["epochs"][0] == 10


def test_only_finished_runs_are_read(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    with refusal("--from-runs", tmp_path):
        read_given([tmp_path])
    with refusal("--from-runs", "there is no", tmp_path / "elsewhere"):
        read_given([tmp_path, tmp_path / "elsewhere"])
