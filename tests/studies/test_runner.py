import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import ricnet
from made_runs import bare_run
from refusals import refusal
from ricnet.evaluation.evaluate import read_predictions
from ricnet.models.locate import describe_encoder, find_encoder, weights_of
from ricnet.models.run import RunFolder
from ricnet.nets.encoders import EncoderOptions
from ricnet.report.runs import RunRecord
from ricnet.studies import runner as running
from ricnet.studies.experiments import Benchmark, Experiment
from ricnet.studies.runner import RunIndex, Runner, dataset_of, plan, read_data, read_given, take_given

CPU, QUIET = torch.device("cpu"), Console(quiet=True)


def test_an_experiment_becomes_one_plan_a_seed_with_all_its_settings(ask, data: Path) -> None:
    first, second = plan(ask("ric-implied:gamma=0.9", seeds=2, label_noise=0.2), None)
    assert (first.config.seed, second.config.seed) == (0, 1)
    assert first.config.data == str(data)
    assert first.config.label_noise == 0.2
    assert (first.config.method.gamma, first.config.method.readout) == (0.9, "implied")
    assert first.config.optimization.epochs == 2
    assert first.source.config.method.readout == "mean"
    assert first.source.config.method.gamma == 0.9
    assert first.name == first.source.name == "blobs-ric-implied-gamma-0.9-seed0"
    (plain,) = plan(ask("ric-implied"), None)
    assert (plain.name, plain.source.name) == ("blobs-ric-implied-seed0", "blobs-ric-seed0")


def test_systems_are_compared_raw_unless_their_name_says_otherwise(ask) -> None:
    """Whatever the preset would fit on validation data."""
    (raw,), (scaled,) = (plan(ask(name), None) for name in ("ric", "ric-temperature"))
    assert (raw.config.preset, raw.config.calibration, raw.config.halt_rule) == ("fast", "none", "value")
    assert raw.source is None
    assert (scaled.config.calibration, scaled.config.halt_rule) == ("temperature", "value")
    assert scaled.source.config == raw.config
    (chosen,) = plan(ask("ric:halt_rule=auto"), None)
    assert chosen.source.config == raw.config


def test_the_experiments_own_settings_win_if_the_method_has_them(ask) -> None:
    (one,) = plan(replace(ask("ric:epochs=9"), changes=(("epochs", 3),)), None)
    assert one.config.optimization.epochs == 3
    with refusal("rollouts"):
        plan(ask("supervised", rollouts=3), None)


def test_settings_of_the_data_may_stand_anywhere(ask) -> None:
    (one,) = plan(ask("supervised:label_noise=0.3"), None)
    (clean,) = plan(ask("supervised"), None)
    assert one.config.label_noise == 0.3
    assert one.data["fingerprint"] != clean.data["fingerprint"]
    assert one.data["rows"] == clean.data["rows"]


def test_runs_are_found_by_what_was_run_not_by_name(ask, tmp_path: Path) -> None:
    (one,) = plan(ask("supervised"), None)
    elsewhere = RunFolder(tmp_path / "runs" / "some-name")
    elsewhere.begin(one.config, dataset_of(one.config, None), CPU)
    (tmp_path / "runs" / "junk").mkdir()
    (tmp_path / "runs" / "junk" / "config.json").write_text("not JSON")
    index = RunIndex(tmp_path / "runs")
    found = index.find(one.config, one.data)
    assert found is not None
    assert found.path == elsewhere.path
    assert index.find(replace(one.config, seed=7), one.data) is None
    assert index.new("some-name").path.name == "some-name-2"
    assert [index.new("new").path.name for _ in range(2)] == ["new", "new-2"]


def test_a_run_on_other_data_of_the_same_size_is_another_run(ask, data: Path, tmp_path: Path) -> None:
    (before,) = plan(ask("supervised"), None)
    RunFolder(tmp_path / "runs" / "old").begin(before.config, dataset_of(before.config, None), CPU)
    with np.load(data) as stored:
        x, y = stored["x"], stored["y"]
    np.savez(data, x=x, y=np.roll(y, 1))
    read_data.cache_clear()
    (after,) = plan(ask("supervised"), None)
    assert after.config == before.config
    assert RunIndex(tmp_path / "runs").find(after.config, after.data) is None


def test_a_run_of_another_checkpoint_at_the_same_place_is_another_run(ask, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")
    from nets.checkpoints import save_checkpoint

    (one,) = plan(ask("supervised"), None)
    name = f"hf:{save_checkpoint(tmp_path / 'encoder')}"
    config = replace(one.config, network=EncoderOptions(name, freeze=True))
    described = describe_encoder(find_encoder(name))
    RunFolder(tmp_path / "runs" / "old").begin(config, dataset_of(one.config, None), CPU, encoder=described)
    assert RunIndex(tmp_path / "runs").find(config, one.data) is not None
    save_checkpoint(tmp_path / "encoder", "vit")
    find_encoder.cache_clear()  # as in another process
    weights_of.cache_clear()
    assert RunIndex(tmp_path / "runs").find(config, one.data) is None


def test_a_derived_run_is_found_only_beside_the_weights_it_took(ask, tmp_path: Path) -> None:
    (one,) = plan(ask("supervised-temperature"), None)
    source, derived = RunFolder(tmp_path / "source"), RunFolder(tmp_path / "runs" / "derived")
    source.path.mkdir()
    source.model.write_bytes(b"weights")
    derived.begin(one.config, dataset_of(one.config, None), CPU, source)
    assert RunIndex(tmp_path / "runs").find(one.config, one.data, source) is not None
    assert RunIndex(tmp_path / "runs").find(one.config, one.data) is None  # trained with this setting: another run
    source.model.write_bytes(b"weights of another training")
    assert RunIndex(tmp_path / "runs").find(one.config, one.data, source) is None


def test_a_study_begun_on_another_device_goes_on_with_its_settings(tmp_path: Path) -> None:
    """Presets for images depend on the device; existing runs of a data set decide which settings are used."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 3, 20, 20), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(60) % 3)
    asked = Experiment("ric", Benchmark("images", str(tmp_path / "images.npz")), (0, 1))
    runner = Runner(tmp_path / "runs", device="cpu")
    here, elsewhere = (plan(asked, None, device) for device in ("cpu", "cuda"))
    assert [one.config for one in here] != [one.config for one in elsewhere]
    assert runner._plan([asked], QUIET)[0] == {asked: here}
    for one, name in ((elsewhere[1], "gpu"), (here[0], "cpu")):
        RunFolder(tmp_path / "runs" / name).begin(one.config, dataset_of(one.config, None), CPU)
        assert runner._plan([asked], QUIET)[0] == {asked: elsewhere if name == "gpu" else here}


def stamps(root: Path) -> dict[str, float]:
    return {path.parent.name: path.stat().st_mtime_ns for path in root.glob("*/evaluation.json")}


def test_runs_are_made_once(ask, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "runs", jobs=1)
    asked = [ask("supervised", seeds=2), ask("supervised-temperature", seeds=2)]
    first, problems = runner.run(asked, QUIET)
    assert not problems
    assert [len(first[one]) for one in asked] == [2, 2]
    before = stamps(runner.root)
    assert len(before) == 4
    plain, scaled = (first[one] for one in asked)
    assert [run.config["seed"] for run in scaled] == [0, 1]
    assert (scaled[0].path / "model.safetensors").read_bytes() == (plain[0].path / "model.safetensors").read_bytes()
    again, _ = runner.run([*asked, ask("label-smoothing")], QUIET)
    assert len(again[ask("label-smoothing")]) == 1
    assert {name: stamp for name, stamp in stamps(runner.root).items() if name in before} == before


def test_two_workers_give_the_same_numbers_as_one(ask, tmp_path: Path) -> None:
    ric = ask("ric", seeds=2)
    one, two = (Runner(tmp_path / str(jobs), jobs=jobs).run([ric], QUIET)[0][ric] for jobs in (1, 2))
    for left, right in zip(one, two, strict=True):
        np.testing.assert_array_equal(read_predictions(left.path).log_beliefs, read_predictions(right.path).log_beliefs)


def test_data_that_is_not_here_and_runs_that_fail_stop_no_other(ask, tmp_path: Path) -> None:
    absent = Experiment("supervised", Benchmark("SVHN", "svhn"), (0,))
    wild = ask("supervised:lr=1e30,optimizer=sgd,clip=none")
    good = ask("supervised")
    runner = Runner(tmp_path / "runs", tmp_path / "nothing", jobs=1)
    runs, problems = runner.run([absent, wild, good], QUIET)
    assert len(runs[good]) == 1
    assert absent not in runs
    assert runs[wild] == []
    assert any("svhn is not here yet" in problem for problem in problems)
    assert any("diverged" in problem for problem in problems)


def test_an_interrupted_run_goes_on(ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, runner = ask("supervised", epochs=3), Runner(tmp_path / "runs", jobs=1)
    run = running.run

    class Stop(ricnet.Callback):
        def on_epoch_end(self, trainer, line):
            if line["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    def stop_early(*args, **kwargs):
        return run(*args, **kwargs, callbacks=[Stop()])

    monkeypatch.setattr(running, "run", stop_early)
    with refusal("same command"):
        runner.run([one], QUIET)
    monkeypatch.setattr(running, "run", run)
    (finished,) = runner.run([one], QUIET)[0][one]
    (whole,) = Runner(tmp_path / "whole", jobs=1).run([one], QUIET)[0][one]
    assert [line["epoch"] for line in finished.metrics] == [1, 2, 3]
    assert (finished.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def start_long_comparison(data: Path, folder: Path, seeds: int) -> subprocess.Popen[str]:
    """Start runs of several hours, two at once; return when both have begun."""
    settings = ["--epochs", "100000", "--batch-size", "32", "--width", "0.1", "--patience", "None"]
    command = [sys.executable, "-m", "ricnet", "compare", str(data), "--methods", "supervised", "--seeds", str(seeds)]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--runs", str(folder / "runs"), *settings],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until(lambda: len(list((folder / "runs").glob("*/metrics.jsonl"))) >= 2)
    return process


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds:.0f} s"
        time.sleep(0.2)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_ctrl_c_stops_all_workers_politely_and_begins_nothing_more(data: Path, tmp_path: Path) -> None:
    """As in a terminal: every worker saves its state, runs in the queue are not started, no traceback is shown."""
    process = start_long_comparison(data, tmp_path, seeds=6)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert "nothing is lost" in words
    assert "Traceback" not in words
    begun = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/config.json"))
    assert begun == ["blobs-supervised-seed0", "blobs-supervised-seed1"]
    assert len(list((tmp_path / "runs").glob("*/state.pt"))) == 2
    assert not list((tmp_path / "runs").glob("*/evaluation.json"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="tells processes by /proc")
def test_workers_whose_parent_was_killed_save_their_state_and_stop(data: Path, tmp_path: Path) -> None:
    process = start_long_comparison(data, tmp_path, seeds=2)
    children = workers_of(process)
    assert len(children) == 2
    process.kill()
    process.wait(timeout=60)
    until(lambda: len(list((tmp_path / "runs").glob("*/state.pt"))) == 2, seconds=30)  # before the regular checkpoint
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    assert process.stderr is not None
    process.stderr.close()


def test_an_error_that_is_nobodys_mistake_stops_no_other_run(
    ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running.run

    def fails_for_seed_0(config, *args, **kwargs):
        if config.seed == 0:
            raise RuntimeError("CUDA out of memory\nwith details")
        return run(config, *args, **kwargs)

    monkeypatch.setattr(running, "run", fails_for_seed_0)
    one = ask("supervised", seeds=2)
    runs, problems = Runner(tmp_path / "runs", jobs=1).run([one], QUIET)
    assert problems == ["blobs-supervised-seed0: CUDA out of memory"]
    assert [record.config["seed"] for record in runs[one]] == [1]


# Finished runs instead of new ones; these are made up, nothing is trained

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
    plain, ppo = bare_run("a", **algorithm), bare_run("ppo", objective="ppo")
    assert taken(Experiment("ric", CIFAR, SEEDS), plain, ppo) == ["a"]
    assert taken(Experiment("ric-ppo", CIFAR, SEEDS), plain, ppo) == ["ppo"]


def test_a_run_belongs_where_its_system_and_its_data_do() -> None:
    runs = [
        bare_run("a", 1),
        bare_run("b", 0),
        bare_run("sl", method="supervised"),
        bare_run("svhn", data="svhn"),
        bare_run("mu", readout="mu"),
        bare_run("ppo", objective="ppo"),
        bare_run("noisy", label_noise=0.4),
        bare_run("seed 7", 7),
        bare_run("sl t", method="supervised", calibration="temperature"),
        bare_run("cap", method="supervised", uniform_mix=0.01),
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
    adam, sgd = bare_run("adam", optimizer="adam"), bare_run("sgd", optimizer="sgd")
    assert taken(Experiment("ric", CIFAR, SEEDS, (("optimizer", "sgd"),)), adam, sgd) == ["sgd"]
    assert taken(Experiment("ric:gamma=0.9", CIFAR, SEEDS), bare_run("g", gamma=0.9), bare_run("h", 1)) == ["g"]


def test_two_recipes_of_one_system_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    one = Experiment("ric", CIFAR, SEEDS)
    found, problems = take_given(
        [one], [bare_run("short", epochs=10), bare_run("long", 1, epochs=90)], Console(soft_wrap=True)
    )
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
