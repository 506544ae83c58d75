"""Which finished runs belong to an experiment; all runs are made up, nothing is trained."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made_runs import bare_run as run
from refusals import refusal
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Benchmark, Experiment
from ricnet.studies.given import read_given, take_given

CIFAR, NOISY = Benchmark("CIFAR-10", "cifar10"), Benchmark("noisy", "cifar10", (("label_noise", 0.4),))
SEEDS = (0, 1)


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


def test_only_finished_runs_are_read(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    with refusal("--from-runs", tmp_path):
        read_given([tmp_path])
    with refusal("--from-runs", "does not exist", tmp_path / "elsewhere"):
        read_given([tmp_path, tmp_path / "elsewhere"])
