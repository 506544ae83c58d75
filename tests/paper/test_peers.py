from pathlib import Path

from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Runs
from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES

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
    run.evaluation["fitted"] = {"calibration": {"temperature": 1.2, "found": found}}


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
    assert "evidential, confidence-cap, RIC and ric-temperature on digits: no run finished." in text


def test_peers_are_described_and_a_temperature_that_was_not_found_is_told(make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = all_runs("peers", make_runs)
    text = text_of("peers", runs, tmp_path)
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert names == [
        *("SL", "SL + temperature", "SL, label smoothing", "SL, LogitNorm", "SL, evidential", "SL, confidence cap"),
        *("RIC", "RIC + temperature"),
    ]
    assert all(words in text for words in ("softplus", "without annealing", "softmax of the normalised logits"))
    assert "no finite temperature" not in text
    for run in next(found for one, found in runs.items() if one.system == "ric-temperature")[:2]:
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
    assert "With rollouts=1 there is no other roll-out of an input to compare with" in text


def test_settings_are_tried_in_one_seed() -> None:
    """A setting that equals the paper's preset is left out."""
    for name in ("smoke", "small"):
        asked = ITEMS["ablations"].experiments(SCALES[name])
        assert {len(one.seeds) for one in asked if ":" in one.system} == {1}
        assert {"ric:rollouts=1", "ric-snapshots:updates_per_snapshot=none"} <= {one.system for one in asked}
    asked = ITEMS["ablations"].experiments(SCALES["paper"])
    settings = [one.system.removeprefix("ric:") for one in asked if ":" in one.system]
    assert settings == ["horizon=5", "gae_lambda=0", "gamma=0.5", "gamma=0.95", "c_max=3", "c_max=30"]
    assert {len(one.seeds) for one in asked} == {5}
