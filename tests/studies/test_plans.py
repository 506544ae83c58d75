from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ricnet.errors import RicnetError
from ricnet.studies import plans
from ricnet.studies.plans import Shelf, dataset_of, plan_cell
from ricnet.training.run import RunFolder

CPU = torch.device("cpu")


def test_a_cell_becomes_one_plan_a_seed_with_all_its_settings(ask, data: Path) -> None:
    first, second = plan_cell(ask("ric-implied:gamma=0.9", seeds=2, label_noise=0.2), None)
    assert (first.config.seed, second.config.seed) == (0, 1)
    assert first.config.data == str(data)
    assert first.config.label_noise == 0.2
    assert (first.config.method.gamma, first.config.method.readout) == (0.9, "implied")
    assert first.config.optimization.epochs == 2
    assert first.derived
    assert first.base.config.method.readout == "mean"
    assert first.base.config.method.gamma == 0.9
    assert first.name == first.base.name == "blobs-ric-implied-gamma-0.9-seed0"
    (plain,) = plan_cell(ask("ric-implied"), None)
    assert (plain.name, plain.base.name) == ("blobs-ric-implied-seed0", "blobs-ric-seed0")


def test_systems_are_compared_raw_unless_their_name_says_otherwise(ask) -> None:
    """Whatever the preset would fit on validation data."""
    (raw,), (scaled,) = (plan_cell(ask(name), None) for name in ("ric", "ric-temperature"))
    assert (raw.config.preset, raw.config.calibration, raw.config.halt_rule) == ("fast", "none", "value")
    assert not raw.derived
    assert (scaled.config.calibration, scaled.config.halt_rule) == ("temperature", "value")
    assert scaled.base.config == raw.config
    (chosen,) = plan_cell(ask("ric:halt_rule=auto"), None)
    assert chosen.derived
    assert chosen.base.config == raw.config


def test_the_cells_own_settings_win(ask) -> None:
    (plan,) = plan_cell(replace(ask("ric:epochs=9"), changes=(("epochs", 3),)), None)
    assert plan.config.optimization.epochs == 3


def test_a_setting_the_method_does_not_have_is_refused(ask) -> None:
    with pytest.raises(RicnetError, match="rollouts: no such setting"):
        plan_cell(ask("supervised", rollouts=3), None)


def test_settings_of_the_data_may_stand_anywhere(ask) -> None:
    (plan,) = plan_cell(ask("supervised:label_noise=0.3"), None)
    (clean,) = plan_cell(ask("supervised"), None)
    assert plan.config.label_noise == 0.3
    assert plan.data["fingerprint"] != clean.data["fingerprint"]
    assert plan.data["rows"] == clean.data["rows"]


def test_runs_are_found_by_what_was_run_not_by_name(ask, tmp_path: Path) -> None:
    (plan,) = plan_cell(ask("supervised"), None)
    elsewhere = RunFolder(tmp_path / "runs" / "some-name")
    elsewhere.begin(plan.config, dataset_of(plan.config, None), CPU)
    (tmp_path / "runs" / "junk").mkdir()
    (tmp_path / "runs" / "junk" / "config.json").write_text("not JSON")
    shelf = Shelf(tmp_path / "runs")
    found = shelf.find(plan.config, plan.data)
    assert found is not None
    assert found.path == elsewhere.path
    assert shelf.find(replace(plan.config, seed=7), plan.data) is None
    assert shelf.place("some-name").path.name == "some-name-2"
    assert shelf.place("new", [tmp_path / "runs" / "new"]).path.name == "new-2"


def test_a_run_on_other_data_of_the_same_size_is_another_run(ask, data: Path, tmp_path: Path) -> None:
    (before,) = plan_cell(ask("supervised"), None)
    RunFolder(tmp_path / "runs" / "old").begin(before.config, dataset_of(before.config, None), CPU)
    with np.load(data) as stored:
        x, y = stored["x"], stored["y"]
    np.savez(data, x=x, y=np.roll(y, 1))
    plans._read_data.cache_clear()
    (after,) = plan_cell(ask("supervised"), None)
    assert after.config == before.config
    assert Shelf(tmp_path / "runs").find(after.config, after.data) is None


def test_a_derived_run_is_found_only_beside_the_weights_it_took(ask, tmp_path: Path) -> None:
    (plan,) = plan_cell(ask("supervised-temperature"), None)
    source, derived = RunFolder(tmp_path / "source"), RunFolder(tmp_path / "runs" / "derived")
    source.path.mkdir()
    source.model.write_bytes(b"weights")
    derived.begin(plan.config, dataset_of(plan.config, None), CPU, source)
    assert Shelf(tmp_path / "runs").find(plan.config, plan.data, source) is not None
    assert Shelf(tmp_path / "runs").find(plan.config, plan.data) is None  # trained so from the start: another thing
    source.model.write_bytes(b"weights of another training")
    assert Shelf(tmp_path / "runs").find(plan.config, plan.data, source) is None
