from dataclasses import replace
from pathlib import Path

import pytest

from ricnet.errors import RicnetError
from ricnet.studies.plans import Shelf, dataset_of, plan_cell
from ricnet.training.run_folder import RunFolder


def test_a_cell_becomes_one_plan_a_seed_with_all_its_settings(ask, data: Path) -> None:
    first, second = plan_cell(ask("ric-implied:gamma=0.9", seeds=2, label_noise=0.2), None)
    assert (first.config.seed, second.config.seed) == (0, 1)
    assert first.config.data == str(data)
    assert first.config.label_noise == 0.2
    assert (first.config.method.gamma, first.config.method.readout) == (0.9, "implied")
    assert first.config.optimization.epochs == 2
    assert first.derived
    assert first.base.method.readout == "mean"
    assert first.base.method.gamma == 0.9
    assert first.name == "blobs-ric-implied-gamma-0.9-seed0"


def test_the_cells_own_settings_win(ask) -> None:
    (plan,) = plan_cell(replace(ask("ric:epochs=9"), changes=(("epochs", 3),)), None)
    assert plan.config.optimization.epochs == 3


def test_a_setting_the_method_does_not_have_is_refused(ask) -> None:
    with pytest.raises(RicnetError, match="rollouts: no such setting"):
        plan_cell(ask("supervised", rollouts=3), None)


def test_runs_are_found_by_what_was_run_not_by_name(ask, tmp_path: Path) -> None:
    (plan,) = plan_cell(ask("supervised"), None)
    dataset = dataset_of(plan.config, None)
    import torch

    elsewhere = RunFolder(tmp_path / "runs" / "some-name")
    elsewhere.begin(plan.config, dataset, torch.device("cpu"))
    (tmp_path / "runs" / "junk").mkdir()
    (tmp_path / "runs" / "junk" / "config.json").write_text("not JSON")
    shelf = Shelf(tmp_path / "runs")
    found = shelf.find(plan.config, False, dataset)
    assert found is not None
    assert found.path == elsewhere.path
    assert shelf.find(replace(plan.config, seed=7), False, dataset) is None
    assert shelf.find(plan.config, True, dataset) is None  # a derived run is another thing
    other = replace(dataset, class_names=("x", "y", "z"))
    assert shelf.find(plan.config, False, other) is None  # so is one on other data
    assert shelf.place("some-name", []).path.name == "some-name-2"
    assert shelf.place("new", [tmp_path / "runs" / "new"]).path.name == "new-2"
