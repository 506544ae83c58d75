import json
from pathlib import Path

import pytest

from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Runs
from ricnet.studies.controls import CONTROLS
from ricnet.studies.paper.rows import read_csv, write_csv
from ricnet.studies.scales import SCALES

from .conftest import MakeRun

SMOKE = SCALES["smoke"]


def text_of(name: str, runs: Runs, folder: Path) -> str:
    recipe = CONTROLS[name]
    assert recipe.write is not None
    write_csv(recipe.tabulate(SMOKE, runs), folder / "rows.csv")
    return recipe.write(read_csv(folder / "rows.csv"))["md"]


def all_runs(name: str, make_run: MakeRun, *, found: bool = True) -> dict:
    runs = {cell: [make_run(cell.system, seed) for seed in cell.seeds] for cell in CONTROLS[name].cells(SMOKE)}
    for run in (run for own in runs.values() for run in own if run.config["calibration"] == "temperature"):
        fit(run, found)
    return runs


def fit(run: RunRecord, found: bool) -> None:
    (run.path / "calibration.json").write_text(json.dumps({"temperature": 1.2, "found": found}))


def test_means_and_intervals_by_hand(make_run: MakeRun, tmp_path: Path) -> None:
    cell = CONTROLS["peers"].cells(SMOKE)[0]
    runs = [make_run("supervised", seed, accuracy=a, mean_steps=1.0) for seed, a in enumerate((0.90, 0.92, 0.94))]
    text = text_of("peers", {cell: runs}, tmp_path)
    # t(0.975; 2) · 0.02 / √3 = 0.0497
    assert (
        "| SL | 3 | 99.00 ± 0.00 | 92.00 ± 4.97 | 0.050 ± 0.000 | −0.050 ± 0.000 | 0.300 ± 0.000 | 1.0 ± 0.0 |" in text
    )
    assert "digits, test n = 1,000, ECE with 15 bins. Scale smoke: conv" in text
    assert "| evidential | 0 | – | – | – | – | – | – |" in text
    assert "evidential, confidence-cap, ric and ric-temperature on digits: no run finished." in text


def test_peers_are_described(make_run: MakeRun, tmp_path: Path) -> None:
    text = text_of("peers", all_runs("peers", make_run), tmp_path)
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert names == [
        *("SL", "SL + temperature", "SL, label smoothing", "SL, LogitNorm", "SL, evidential", "SL, confidence cap"),
        *("RIC", "RIC + temperature"),
    ]
    assert "softplus" in text
    assert "without annealing" in text
    assert "LogitNorm reports the softmax of the normalised logits" in text
    assert "stays at 1" not in text


def test_a_temperature_that_was_not_found_is_told(make_run: MakeRun, tmp_path: Path) -> None:
    runs = all_runs("peers", make_run)
    cell = next(cell for cell in runs if cell.system == "ric-temperature")
    for run in runs[cell][:2]:
        fit(run, found=False)
    text = text_of("peers", runs, tmp_path)
    assert "RIC + temperature: in 2 of 3 seeds no finite temperature is best" in text
    assert "SL + temperature: in" not in text


def test_ablations_and_controls_are_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    assert CONTROLS["ablations"].title == "RIC's ablations and controls"
    text = text_of("ablations", all_runs("ablations", make_run), tmp_path)
    assert "| RIC, readout mu | 3 |" in text
    assert "| ric:gamma=0.5 | 1 |" in text
    assert "it lacks the Dirichlet, sampling, the value and halting" in text
    assert "With rollouts=1 the leave-one-out part of the label baseline has no other roll-out" in text


@pytest.mark.parametrize("name", ["smoke", "small"])
def test_settings_are_tried_in_one_seed(name: str) -> None:
    cells = CONTROLS["ablations"].cells(SCALES[name])
    assert {len(cell.seeds) for cell in cells if ":" in cell.system} == {1}
    assert {"ric:rollouts=1", "ric:updates_per_snapshot=none"} <= {cell.system for cell in cells}


def test_what_the_paper_s_preset_already_has_is_no_ablation_of_it(make_run: MakeRun, tmp_path: Path) -> None:
    cells = CONTROLS["ablations"].cells(SCALES["paper"])
    settings = [cell.system for cell in cells if ":" in cell.system]
    assert settings == [
        *("ric:horizon=5", "ric:gae_lambda=0", "ric:gamma=0.5", "ric:gamma=0.95"),
        *("ric:c_max=3", "ric:c_max=100"),
    ]
    assert {len(cell.seeds) for cell in cells} == {5}
