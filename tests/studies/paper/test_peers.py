import json
from pathlib import Path

import pytest

from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import SCALES, Runs
from ricnet.studies.paper import ITEMS

from .conftest import MakeRuns, record, scored, through_csv

SMOKE = SCALES["smoke"]


def text_of(name: str, runs: Runs, folder: Path) -> str:
    item = ITEMS[name]
    assert item.write is not None
    return item.write(through_csv(item.tabulate(SMOKE, runs), folder))["md"]


def all_runs(name: str, make_runs: MakeRuns) -> dict:
    runs = make_runs(ITEMS[name].experiments(SMOKE))
    for run in (run for own in runs.values() for run in own if run.config["calibration"] == "temperature"):
        fit(run, found=True)
    return runs


def fit(run: RunRecord, found: bool) -> None:
    (run.path / "calibration.json").write_text(json.dumps({"temperature": 1.2, "found": found}))


def test_means_and_intervals_by_hand(tmp_path: Path) -> None:
    one = ITEMS["peers"].experiments(SMOKE)[0]
    scores = {"ece": 0.05, "ece_signed": -0.05, "nll": 0.3, "mean_steps": 1.0, "n": 1000}
    runs = [scored(record(tmp_path, "supervised"), accuracy=a, **scores) for a in (0.90, 0.92, 0.94)]
    text = text_of("peers", {one: runs}, tmp_path)
    # t(0.975; 2) · 0.02 / √3 = 0.0497
    assert (
        "| SL | 3 | 99.00 ± 0.00 | 92.00 ± 4.97 | 0.050 ± 0.000 | −0.050 ± 0.000 | 0.300 ± 0.000 | 1.0 ± 0.0 |" in text
    )
    assert "digits, test n = 1,000, ECE with 15 bins. Scale smoke: conv" in text
    assert "| evidential | 0 | – | – | – | – | – | – |" in text
    assert "evidential, confidence-cap, ric and ric-temperature on digits: no run finished." in text


def test_peers_are_described(make_runs: MakeRuns, tmp_path: Path) -> None:
    text = text_of("peers", all_runs("peers", make_runs), tmp_path)
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert names == [
        *("SL", "SL + temperature", "SL, label smoothing", "SL, LogitNorm", "SL, evidential", "SL, confidence cap"),
        *("RIC", "RIC + temperature"),
    ]
    assert "softplus" in text
    assert "without annealing" in text
    assert "LogitNorm reports the softmax of the normalised logits" in text
    assert "stays at 1" not in text


def test_a_temperature_that_was_not_found_is_told(make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = all_runs("peers", make_runs)
    one = next(one for one in runs if one.system == "ric-temperature")
    for run in runs[one][:2]:
        fit(run, found=False)
    text = text_of("peers", runs, tmp_path)
    assert "RIC + temperature: in 2 of 3 seeds no finite temperature is best" in text
    assert "SL + temperature: in" not in text


def test_ablations_and_controls_are_told_apart(make_runs: MakeRuns, tmp_path: Path) -> None:
    assert ITEMS["ablations"].title == "RIC's ablations and controls"
    text = text_of("ablations", all_runs("ablations", make_runs), tmp_path)
    assert "| RIC, readout mu | 3 |" in text
    assert "| ric:gamma=0.5 | 1 |" in text
    assert "it lacks the Dirichlet, sampling, the value and halting" in text
    assert "With rollouts=1 the leave-one-out part of the label baseline has no other roll-out" in text


@pytest.mark.parametrize("name", ["smoke", "small"])
def test_settings_are_tried_in_one_seed(name: str) -> None:
    asked = ITEMS["ablations"].experiments(SCALES[name])
    assert {len(one.seeds) for one in asked if ":" in one.system} == {1}
    assert {"ric:rollouts=1", "ric:updates_per_snapshot=none"} <= {one.system for one in asked}


def test_what_the_paper_s_preset_already_has_is_no_ablation_of_it() -> None:
    asked = ITEMS["ablations"].experiments(SCALES["paper"])
    settings = [one.system for one in asked if ":" in one.system]
    assert settings == [
        *("ric:horizon=5", "ric:gae_lambda=0", "ric:gamma=0.5", "ric:gamma=0.95"),
        *("ric:c_max=3", "ric:c_max=100"),
    ]
    assert {len(one.seeds) for one in asked} == {5}
