import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from rich.console import Console

from refusals import refusal
from ricnet.data import load
from ricnet.methods import METHODS
from ricnet.studies import sweep as sweeping
from ricnet.studies.sweep import (
    Choice,
    Range,
    Sweep,
    default_space,
    finished,
    open_study,
    parse_space,
    search,
    values_of,
)
from ricnet.training.callbacks import Callback
from ricnet.training.console import Interrupted
from ricnet.training.recipes import TYPICAL, Facts, configure, preset

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def silent() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture
def sweep(data: Path, tmp_path: Path) -> Sweep:
    dataset = load(data)
    base = configure(dataset, "supervised", "fast", epochs=3, batch_size=32, width=0.1)
    space = parse_space(["lr=1e-4..1e-1:log", "activation=relu,silu", "batch_size=16..48"], "supervised")
    return Sweep(dataset, base, space, "nll", tmp_path / "runs", "cpu")


def open_at(folder: Path, sweep: Sweep, name: str = "sweep.db") -> optuna.Study:
    return open_study("test", f"sqlite:///{folder / name}", sweep.metric, sweep.base, sweep.space)


SIZES = {
    "table": Facts(rows=300, classes=3, side=0),
    "large table": Facts(rows=20_000, classes=3, side=0),
    "photographs": Facts(rows=300, classes=5, side=64, device="cpu"),
    "images": TYPICAL,
    "exits": replace(TYPICAL, exits=True),
}
PRESETS = [*((name, method) for name in ("fast", "paper") for method in METHODS), ("snapshots", "ric")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "method"), PRESETS)
def test_every_preset_lies_in_the_space_that_is_searched(name: str, method: str, size: str) -> None:
    config = preset(name, method, SIZES[size])
    space, values = default_space(config), values_of(config)
    assert {"lr", "weight_decay"} < space.keys()
    assert all(part.contains(values[key]) for key, part in space.items())
    for key in ("lr", "weight_decay"):
        part = space[key]
        assert isinstance(part, Range)
        assert part.low < values[key] / 5
        assert part.high > values[key] * 5


def test_what_is_given_is_not_searched(sweep: Sweep) -> None:
    assert default_space(sweep.base).keys() - default_space(sweep.base, {"lr": 0.1}).keys() == {"lr"}
    still = replace(sweep.base, optimization=replace(sweep.base.optimization, weight_decay=0.0))
    assert "weight_decay" not in default_space(still)
    with refusal("space"):
        default_space(sweep.base, ["lr", "weight_decay", "label_smoothing"])


def test_ranges_move_with_the_preset() -> None:
    assert Range(1e-3, 1e-1, False, True).around(1.0) == Range(0.1, 10.0, False, True)
    assert Range(1.0, 25.0, True, True).around(1) == Range(1.0, 5.0, True, True)
    assert Range(0.5, 0.95, False, False).around(0.8) == Range(0.5, 0.95, False, False)
    assert Range(0.5, 0.95, False, False).around(0.01) == Range(0.01, 0.95, False, False)


@pytest.mark.parametrize("method", ["supervised", "ric"])
def test_the_first_trial_is_the_preset(method: str, sweep: Sweep, tmp_path: Path) -> None:
    base = configure(sweep.dataset, method, "fast", epochs=1, batch_size=32, width=0.1)
    around = replace(sweep, base=base, space=default_space(base))
    study = open_at(tmp_path, around)
    study = open_at(tmp_path, around)  # opened again before its first trial: still once
    search(study, around, 2, QUIET)
    configs = [around.config(trial.params) for trial in study.trials]
    assert configs[0] == replace(base, baselines=False)
    assert configs[1] != configs[0]
    elsewhere = replace(around, space=parse_space(["lr=1e-6..1e-5:log"], method))
    assert not open_at(tmp_path, elsewhere, "elsewhere.db").trials


def test_ranges_and_choices_are_told_apart() -> None:
    space = parse_space(["lr=1e-4..1e-2:log", "rollouts=1..4", "horizon=5,20", "gamma=0.5..0.9"], "ric")
    assert space["lr"] == Range(1e-4, 1e-2, whole=False, log=True)
    assert space["rollouts"] == Range(1.0, 4.0, whole=True, log=False)
    assert space["horizon"] == Choice((5, 20))
    assert space["gamma"] == Range(0.5, 0.9, whole=False, log=False)


SENSELESS = "lr=high..low lr=2..1 lr=0..1:log speed=1..2 optimizer=adam..sgd optimizer=adam,lion lr seed=0,1 lr=1"


def test_a_trial_is_what_the_same_flags_train(sweep: Sweep) -> None:
    """A searched setting overrides the preset's, as in `ric train`."""
    facts = Facts(50_000, 3, 32)
    many = replace(sweep, base=preset("fast", None, facts))
    for given in ({"credit": "joint"}, {"head": "logistic-normal"}, {"objective": "expected"}):
        method = many.config(given).method
        assert method == replace(preset("fast", None, facts, given).method, **given)
        assert method.credit == "joint"
    closed = replace(sweep, base=preset("fast", "ric-closed-form", facts))
    assert closed.config({"gamma": 0.5}).method == replace(closed.base.method, gamma=0.5)


@pytest.mark.parametrize("text", SENSELESS.split())
def test_a_space_that_makes_no_sense_is_refused(text: str) -> None:
    with refusal("--space"):
        parse_space([text], "ric")


def test_a_sweep_tries_settings_and_remembers_the_best(sweep: Sweep, tmp_path: Path) -> None:
    study = open_at(tmp_path, sweep)
    search(study, sweep, 3, QUIET)
    assert finished(study) == 3
    best = study.best_trial
    config = sweep.config(best.params)
    assert config.optimization.lr == best.params["lr"]
    assert config.optimization.epochs == 3
    assert config.network.activation == best.params["activation"]
    assert best.value == min(trial.value for trial in study.trials if trial.value is not None)
    again = open_at(tmp_path, sweep)
    search(again, sweep, 3, QUIET)
    assert len(again.trials) == 3  # nothing left to do
    search(again, sweep, 4, QUIET)
    assert len(again.trials) == 4
    path = sweep.root / best.user_attrs["folder"] / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"raw": {"val": {sweep.metric: 7.0}}}))
    again.enqueue_trial(best.params)
    search(again, sweep, 5, QUIET)
    assert again.trials[4].value == 7  # before calibration, which has seen the validation data


def test_an_interrupted_trial_is_taken_up_again_where_it_stopped(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, run, seen = open_at(tmp_path, sweep), sweeping.run, []

    class Stop(Callback):
        def on_epoch_end(self, trainer, line):
            raise Interrupted("stopped")

    def interrupted(config, dataset, folder, device, **options):
        seen.append(config)
        return run(config, dataset, folder, device, **(options | {"callbacks": [Stop()]}))

    monkeypatch.setattr(sweeping, "run", interrupted)
    with pytest.raises(Interrupted):
        search(study, sweep, 1, QUIET)
    assert finished(study) == 0
    monkeypatch.setattr(sweeping, "run", run)
    search(open_at(tmp_path, sweep), sweep, 1, QUIET)
    done = open_at(tmp_path, sweep).best_trial
    assert sweep.config(done.params) == seen[0]
    assert done.user_attrs["folder"] == "trial-0000"


def test_a_diverging_trial_fails_alone(sweep: Sweep, tmp_path: Path) -> None:
    wild = replace(sweep, space=parse_space(["lr=1e29..1e30", "optimizer=sgd", "clip=none"], "supervised"))
    study = open_at(tmp_path, wild)
    search(study, wild, 2, QUIET)
    assert {trial.state.name for trial in study.trials} == {"FAIL"}
    assert finished(study) == 2


def test_a_trial_that_falls_behind_is_given_up(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda self: self.number == 1)
    study = open_at(tmp_path, sweep)
    search(study, sweep, 2, QUIET)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert len(study.trials[1].intermediate_values) == 1


def test_settings_that_do_not_go_together_fail_a_trial_and_not_the_sweep(sweep: Sweep, tmp_path: Path) -> None:
    odd = replace(sweep, space=parse_space(["objective=evidential", "label_smoothing=0.1,0.2"], "supervised"))
    study = open_at(tmp_path, odd)
    search(study, odd, 1, QUIET)
    assert "label-smoothing" in study.trials[0].user_attrs["failed"]


def test_a_new_study_does_not_take_the_old_ones_runs_for_its_own(sweep: Sweep, tmp_path: Path) -> None:
    """The database is gone, its run folders are not: trial-0001 is taken, and holds other settings. The first trial is
    the preset both times, and its run is found."""
    search(open_at(tmp_path, sweep), sweep, 2, QUIET)
    again = open_at(tmp_path, sweep, "fresh.db")
    search(again, sweep, 2, QUIET)
    assert [trial.user_attrs["folder"] for trial in again.trials] == ["trial-0000", "trial-0001-2"]


def test_a_study_about_something_else_and_a_storage_that_cannot_be_opened(sweep: Sweep, tmp_path: Path) -> None:
    open_at(tmp_path, sweep)
    changes = {"metric": "accuracy", "base": replace(sweep.base, seed=1), "space": {}}
    for name, value in changes.items():
        with refusal({"base": "config"}.get(name, name)):
            open_at(tmp_path, replace(sweep, **{name: value}))
    with refusal("--storage nothing:///x"):
        open_study("test", "nothing:///x", "nll", sweep.base, sweep.space)


@pytest.mark.slow
def test_two_processes_work_on_one_sweep(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ricnet", "sweep", str(data), "--method", "supervised", "--trials", "6"]
    command += ["--epochs", "3", "--width", "0.1", "--storage", f"sqlite:///{tmp_path / 'shared.db'}"]
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    both = [subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True) for home in homes]
    for process in both:
        _, words = process.communicate(timeout=300)
        assert process.returncode == 0, words
    counts = [len(list(home.glob("runs/*/trial-*"))) for home in homes]
    assert min(counts) >= 1
    assert 6 <= sum(counts) <= 7  # the last trial of each may overlap
