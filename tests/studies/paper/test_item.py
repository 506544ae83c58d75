from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ricnet.errors import RicnetError
from ricnet.studies.experiments import SCALES, Benchmark, Scale, all_systems, find_system
from ricnet.studies.paper import ITEMS
from ricnet.studies.paper.kit import conditions, curves, measured, network_name, over_seeds, tabulate

from .conftest import MakeRuns, draw, record, texts_of, through_csv, with_curve

FIGURES = [f"fig{i}" for i in range(1, 10)]
ONE_SEED = [f"fig{i}" for i in (2, 3, 4, 5, 6, 9)]  # 7 and 8 are drawn as 4 is, 1 needs no seed


def rows_of(runs) -> list:
    return [{"quantity": "x", "value": 1.0} for _ in runs]


def test_every_table_and_figure_in_the_paper_s_order() -> None:
    numbered = [*(f"table{i}" for i in (1, 2, 3)), *FIGURES]
    assert list(ITEMS) == [*numbered, "peers", "ablations", "halting"]
    assert all((ITEMS[name].draw is None) == name.startswith("table") for name in numbered)


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_what_they_ask_for_exists(scale: Scale) -> None:
    for item in ITEMS.values():
        asked = item.experiments(scale)
        assert len(set(asked)) == len(asked)
        assert all(find_system(one.system) for one in asked)


@pytest.mark.parametrize("name", ONE_SEED)
def test_one_seed_is_enough_to_draw(name: str, make_runs: MakeRuns, tmp_path: Path) -> None:
    one = replace(SCALES["smoke"], seeds=(0,))
    figure = draw(ITEMS[name], one, make_runs(ITEMS[name].experiments(one)), tmp_path)
    assert all(ax.has_data() for ax in figure.axes)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_its_scale(name: str, make_runs: MakeRuns, tmp_path: Path) -> None:
    small = SCALES["small"]
    figure = draw(ITEMS[name], small, make_runs(ITEMS[name].experiments(small), epochs=3), tmp_path)
    assert "scale small: " in texts_of(figure).lower()


@pytest.mark.parametrize("name", [name for name in ITEMS if name.startswith(("fig", "table"))])
def test_tables_survive_csv(name: str, scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    item = ITEMS[name]
    asked = item.experiments(scale)
    table = item.tabulate(scale, make_runs(asked[:-1] or asked))
    again = through_csv(table, tmp_path)
    both = [found.astype(object).where(found.notna(), None) for found in (again, table)]
    pd.testing.assert_frame_equal(*both, rtol=1e-12)


def test_whole_numbers_and_words_stay_what_they_are(tmp_path: Path) -> None:
    table = pd.DataFrame({"step": [1, None], "name": ["None", "nan"], "mean": [0.1 + 0.2, np.nan]})
    again = through_csv(table, tmp_path)
    assert (tmp_path / "table.csv").read_text().splitlines()[1:] == ["1,None,0.30000000000000004", ",nan,"]
    assert (again["name"].tolist(), again["mean"][0]) == (["None", "nan"], pytest.approx(0.3))


def test_mean_and_interval_by_hand() -> None:
    observed = pd.DataFrame({"x": [1.0] * 5, "value": [0.90, 0.92, None, 0.94, np.nan]})
    (row,) = over_seeds(observed).to_dict("records")
    # s = 0.02, t(0.975; 2) = 4.30265
    half_width = pytest.approx(4.30265 * 0.02 / np.sqrt(3), rel=1e-5)
    assert row == {"x": 1.0, "mean": pytest.approx(0.92), "half_width": half_width, "n": 3}


def test_rows_are_grouped_by_all_they_say_where_something_is_unsaid_too() -> None:
    observed = pd.DataFrame({"step": [1, None, 2, 1, None, 2], "value": [1.0, np.nan, np.nan, 3.0, 5.0, np.inf]})
    table = over_seeds(observed)
    assert table["n"].tolist() == [2, 1, 0]
    np.testing.assert_array_equal(table["mean"], [2.0, 5.0, np.nan])
    np.testing.assert_allclose(table["half_width"], [12.7062, np.nan, np.nan], rtol=1e-5)  # s/√2 = 1


def test_rows_carry_their_experiment_and_how_many_seeds_finished(scale: Scale, make_runs: MakeRuns) -> None:
    sl, ric = scale.experiments(["supervised", "ric"], scale.benchmarks[:1])
    table = tabulate(scale, [sl, ric], make_runs([sl]) | make_runs([ric], only=2), rows_of)
    facts = table[["system", "seeds", "asked", "n", "benchmark", "scale", "epochs"]].to_numpy().tolist()
    assert facts == [["SL", 3, 3, 3, "digits", "smoke", 12], ["RIC", 2, 3, 2, "digits", "smoke", 12]]
    assert table[["network", "input", "preset"]].iloc[0].tolist() == ["conv", "1 × 8 × 8", "fast"]


def test_systems_are_called_as_the_report_calls_their_runs(scale: Scale, make_runs: MakeRuns) -> None:
    systems = ["ric-ppo", "supervised-temperature", "ric-mu", "ric:gamma=0.9", "act"]
    asked = scale.experiments(systems, scale.benchmarks[:1])
    elsewhere = scale.experiments(["ric-ppo"], scale.benchmarks[1:2])
    table = tabulate(scale, [*asked, *elsewhere], make_runs(asked[:-1]), rows_of)
    assert table["system"].tolist() == [
        *("RIC, PPO", "SL + temperature", "RIC, readout mu"),
        "ric:gamma=0.9",  # which shows its settings
        "act",  # of which there is no run
        "RIC, PPO",  # of which there is one elsewhere, so that a table has one line for both
    ]


def test_no_two_systems_are_called_alike(tmp_path: Path) -> None:
    """They would share a line of a table."""
    distinct = [name for name, system in all_systems().items() if system.preset is None]  # those with one differ more
    names = [record(tmp_path, system).method for system in distinct]
    assert len(set(names)) == len(distinct)


def test_why_an_experiment_is_missing(scale: Scale, make_runs: MakeRuns) -> None:
    svhn = replace(scale, benchmarks=(Benchmark("SVHN", "svhn"),))
    sl, ric = svhn.experiments(["supervised", "ric"], svhn.benchmarks)

    def reasons(runs: dict) -> list:
        return tabulate(svhn, [sl, ric], runs, rows_of)["missing"].fillna("").tolist()

    assert reasons({}) == ["svhn is not here", "svhn is not here"]
    assert reasons(make_runs([sl])) == ["", "no run finished"]
    assert reasons({sl: [], ric: []}) == ["no run finished", "no run finished"]


def test_the_encoder_as_built() -> None:
    assert network_name("resnet18", 0.5, (3, 32, 32)) == "resnet18, width 0.5"
    assert network_name("auto", 1.0, (3, 32, 32)) == "resnet18"
    assert network_name("auto", 1.0, (16,)) == "mlp"


def test_one_sentence_that_tells_whose_conditions_are_which() -> None:
    shared = {"scale": "paper", "network": "resnet34", "preset": "paper"}
    rows = [
        {**shared, "benchmark": bench, "system": system, "input": size, "epochs": epochs}
        for bench, size in (("CIFAR-10", "3 × 32 × 32"), ("SVHN", "3 × 32 × 32"), ("ImageWoof", "3 × 224 × 224"))
        for system, epochs in (("SL", 300), ("RIC", 2000))
    ]
    assert conditions(pd.DataFrame(rows)) == (
        "Scale paper: resnet34, inputs 3 × 32 × 32 (CIFAR-10 and SVHN) and inputs 3 × 224 × 224 (ImageWoof), "
        "300 epochs (SL) and 2000 epochs (RIC), preset paper"
    )
    one = "Scale paper: resnet34, inputs 3 × 32 × 32, 300 epochs, preset paper"
    assert conditions(pd.DataFrame(rows[:1])) == one
    assert conditions(pd.DataFrame([{"scale": "small", "missing": "svhn is not here"}])) == "Scale small"


def test_curves_are_of_the_right_split_as_far_as_each_run_goes(tmp_path: Path) -> None:
    long, short = record(tmp_path / "a", epochs=3), record(tmp_path / "b", seed=1, epochs=2)
    for split, key in (("train", "train_eval"), ("validation", "val"), ("test", "test")):
        pair = [with_curve(long, key, "ece", [0.1, 0.2, 0.7]), with_curve(short, key, "ece", [0.3, 0.2])]
        table = over_seeds(pd.DataFrame(curves(pair, split, "ece")))
        assert (set(table["split"]), table["epoch"].tolist(), table["n"].tolist()) == ({split}, [1, 2, 3], [2, 2, 1])
        np.testing.assert_allclose(table["mean"], [0.2, 0.2, 0.7])
        np.testing.assert_allclose(table["half_width"], [12.7062 * 0.1, 0, np.nan], rtol=1e-5, atol=1e-12)


def test_runs_without_the_measurement(tmp_path: Path) -> None:
    """Those that have measured stand for those that have not; where none has, it is named."""
    full, bare = record(tmp_path / "full"), record(tmp_path / "bare", seed=1)
    bare = replace(bare, metrics=[{"epoch": entry["epoch"], "val": entry["val"]} for entry in bare.metrics])
    partly = replace(bare, metrics=[full.metrics[0], *bare.metrics[1:]])
    assert measured([bare, full, partly]) == [full, partly]
    assert measured([bare]) == [bare]
    with pytest.raises(RicnetError, match=r"bare has not measured test\.ece"):
        curves([bare], "test", "ece")
