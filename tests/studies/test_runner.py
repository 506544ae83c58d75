from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.studies.experiments import Benchmark, Experiment
from ricnet.studies.runner import RunIndex, Runner, dataset_of, plan, read_data
from ricnet.training.run import RunFolder

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


def test_the_experiments_own_settings_win(ask) -> None:
    (one,) = plan(replace(ask("ric:epochs=9"), changes=(("epochs", 3),)), None)
    assert one.config.optimization.epochs == 3


def test_a_setting_the_method_does_not_have_is_refused(ask) -> None:
    with pytest.raises(RicnetError, match="rollouts: no such setting"):
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


def test_a_derived_run_is_found_only_beside_the_weights_it_took(ask, tmp_path: Path) -> None:
    (one,) = plan(ask("supervised-temperature"), None)
    source, derived = RunFolder(tmp_path / "source"), RunFolder(tmp_path / "runs" / "derived")
    source.path.mkdir()
    source.model.write_bytes(b"weights")
    derived.begin(one.config, dataset_of(one.config, None), CPU, source)
    assert RunIndex(tmp_path / "runs").find(one.config, one.data, source) is not None
    assert RunIndex(tmp_path / "runs").find(one.config, one.data) is None  # trained so from the start: another thing
    source.model.write_bytes(b"weights of another training")
    assert RunIndex(tmp_path / "runs").find(one.config, one.data, source) is None


def test_a_study_begun_on_another_device_goes_on_with_its_settings(tmp_path: Path) -> None:
    """Presets for images depend on the device; per data set, the settings of the runs that are there win."""
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
