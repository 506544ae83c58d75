from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from refusals import refusal
from ricnet.report.figures import look_of
from ricnet.report.tables import Cell, Grid
from ricnet.studies.experiments import Benchmark
from ricnet_paper.kit import (
    METRICS,
    MOST_POINTS,
    conditions,
    curves,
    draw_curve,
    fill_lines,
    fit,
    intervals,
    legend,
    measure,
    measured,
    network_name,
    note_missing,
    over_seeds,
    seeds,
    system_handles,
    system_line,
    tabulate,
    thin,
    write_cell,
    write_latex,
    write_markdown,
)
from ricnet_paper.scales import Scale

from .conftest import MakeRuns, check_words, pick, record, texts_of, through_csv, with_curve


def curve(count: int, half_width: float = 0.1) -> pd.DataFrame:
    epoch = np.arange(1, count + 1)
    tags = {"system": "RIC", "seeds": 3, "asked": 3, "half_width": half_width, "missing": None}
    return pd.DataFrame({"epoch": epoch, "mean": epoch / count}).assign(**tags)


def with_row(table: pd.DataFrame, **row: object) -> pd.DataFrame:
    return pd.DataFrame([*table.to_dict("records"), row])


def test_systems_of_one_figure_have_looks_of_their_own(tmp_path: Path) -> None:
    """Titles equal those of reports; a system with another title would lose its colour."""
    for together in (("supervised", "ric"), ("ric", "ric-ppo", "ric-logistic-normal")):
        looks = [look_of(record(tmp_path, system).method) for system in together]
        assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(looks)


def test_long_curves_are_thinned_but_not_smoothed() -> None:
    shown = thin(curve(2000))["epoch"].tolist()
    assert (shown[0], shown[-1]) == (1, 2000)
    assert len(shown) <= MOST_POINTS + 1
    assert set(shown) <= set(range(1, 2001))
    for count in (0, MOST_POINTS):
        assert len(thin(curve(count))) == count


def test_a_curve_has_its_mean_and_its_band() -> None:
    ax = Figure().subplots()
    draw_curve(ax, curve(4), "epoch", **system_line("RIC", 4))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.25, 0.5, 0.75, 1])
    vertices = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(np.ptp(vertices[vertices[:, 0] == 2][:, 1]), 0.2)
    alone = Figure().subplots()
    draw_curve(alone, curve(4, half_width=np.nan), "epoch", color="k")  # one seed
    draw_curve(alone, curve(0), "epoch", color="k")
    assert (len(alone.lines), len(alone.collections)) == (1, 0)


def test_the_range_is_that_of_the_means() -> None:
    ax = Figure().subplots()
    draw_curve(ax, curve(4, half_width=50.0), "epoch", color="k")
    fit(ax, np.array([0.25, np.nan, 1.0]))
    assert ax.get_ylim() == pytest.approx((0.25 - 0.07 * 0.75, 1 + 0.07 * 0.75))


def test_seeds_in_words() -> None:
    def rows(*counts: int, asked: int = 5) -> pd.DataFrame:
        return pd.DataFrame({"seeds": counts, "asked": asked})

    assert seeds(rows(5, 5)) == "5 seeds"
    assert seeds(rows(4, 4)) == "4 of 5 seeds"
    assert seeds(rows(3, 5, 0)) == "3 to 5 of 5 seeds"
    given = pd.concat([rows(1, 1).assign(asked=1), rows(0).assign(asked=2)])  # one panel has no runs
    assert seeds(given) == "1 seed"
    assert seeds(rows(1, asked=1)) == "1 seed"
    assert seeds(rows(0)) == "missing"


def test_bands_are_explained_only_where_there_are_any() -> None:
    assert intervals(curve(2)) == "Bands: 95 % Student-t intervals over seeds"
    assert intervals(curve(2, np.nan)) == "A single seed has no interval"
    assert intervals(curve(0)) == ""


def test_an_empty_panel_says_why_and_nothing_else() -> None:
    figure = Figure(figsize=(2.3, 2), layout="constrained")
    ax = figure.subplots()
    ax.set(xlabel="epoch", ylabel="ECE")
    note_missing(ax, pd.DataFrame({"system": ["SL", "RIC"], "missing": "cifar10n-aggregate is not here"}))
    figure.draw_without_rendering()
    check_words(figure)
    assert texts_of(figure).replace("\n", " ") == "missing: cifar10n-aggregate is not here"


def test_a_panel_that_lacks_one_system_names_it() -> None:
    ax = Figure(figsize=(2.3, 2)).subplots()
    draw_curve(ax, curve(4), "epoch", color="k")
    note_missing(ax, with_row(curve(4), system="SL", missing="no run finished"))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["missing: SL (no run finished)"]


def test_notes_share_lines_but_are_not_broken() -> None:
    assert fill_lines(["a" * 50, "", "b" * 50, "c" * 50]) == "a" * 50 + ". " + "b" * 50 + "\n" + "c" * 50
    assert fill_lines([]) == ""
    assert fill_lines(["word " * 30 + "end"]).splitlines() == ["word " * 24 + "word", "word " * 5 + "end"]


def test_intervals_cut_by_the_panel_are_told() -> None:
    for half_width, cut in ((0.001, False), (50.0, True), (np.nan, False)):
        figure = Figure(figsize=(7, 2), layout="constrained")
        ax = figure.subplots()
        draw_curve(ax, curve(4, half_width), "epoch", color="k")
        fit(ax, np.array([0.25, 1.0]))
        legend(figure, system_handles(curve(4)), ["A note"])
        assert ("Intervals are cut at the panel's edge" in texts_of(figure)) == cut


def test_the_legend_counts_seeds_and_breaks_long_notes() -> None:
    figure = Figure(figsize=(7, 2), layout="constrained")
    figure.subplots()
    legend(figure, system_handles(with_row(curve(1), system="SL", seeds=0, asked=3)), ["a" * 70, "", "b" * 70])
    box = figure.legends[0]
    assert [text.get_text() for text in box.get_texts()] == ["RIC (3 seeds)", "SL (missing)"]
    assert box.get_title().get_text() == "a" * 70 + "\n" + "b" * 70
    figure.draw_without_rendering()
    check_words(figure)


def rows_of(runs) -> list:
    return [{"quantity": "x", "value": 1.0} for _ in runs]


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


def test_a_system_without_runs_does_not_pass_for_another(scale: Scale, make_runs: MakeRuns) -> None:
    ric, snapshots = scale.experiments(["ric", "ric-snapshots"], scale.benchmarks[:1])
    runs = make_runs([snapshots])
    assert {run.method for run in runs[snapshots]} == {"RIC"}
    table = tabulate(scale, [ric, snapshots], runs, rows_of)
    assert table.groupby("system", sort=False)["seeds"].first().to_dict() == {"ric": 0, "RIC": 3}


def test_systems_are_called_as_the_report_calls_their_runs(scale: Scale, make_runs: MakeRuns) -> None:
    systems = ["ric-ppo", "supervised-temperature", "ric-mu", "ric:gamma=0.9", "act"]
    asked = scale.experiments(systems, scale.benchmarks[:1])
    elsewhere = scale.experiments(["ric-ppo"], scale.benchmarks[1:2])
    table = tabulate(scale, [*asked, *elsewhere], make_runs(asked[:-1]), rows_of)
    assert table["system"].tolist() == [
        *("RIC, PPO", "SL + temperature", "RIC, readout mu"),
        "ric:gamma=0.9",  # which shows its settings
        "ACT",  # without runs
        "RIC, PPO",  # with a run on other data, so that both share a line of the table
    ]


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
    """Runs without these measurements are left out; if none has them, the error names a run."""
    full, bare = record(tmp_path / "full"), record(tmp_path / "bare", seed=1)
    bare = replace(bare, metrics=[{"epoch": entry["epoch"], "val": entry["val"]} for entry in bare.metrics])
    partly = replace(bare, metrics=[full.metrics[0], *bare.metrics[1:]])
    assert measured([bare, full, partly]) == [full, partly]
    assert measured([bare]) == [bare]
    with refusal("bare", "test.ece"):
        curves([bare], "test", "ece")


GRID = Grid(["System", "9 % flipped"], [[Cell("SL"), Cell("98.9 ± 0.3", best=True)], [Cell("RIC"), Cell("–")]])


def test_markdown() -> None:
    assert write_markdown(GRID, "A note.").splitlines() == [
        "| System | 9 % flipped |",
        "| :--- | ---: |",
        "| SL | **98.9 ± 0.3** |",
        "| RIC | – |",
        "",
        "A note.",
    ]


def test_latex_is_escaped_and_closed() -> None:
    text = write_latex(GRID, "Table_1", "95 % of a & b.", [r"System & 9 \% flipped \\"])
    assert r"SL & \textbf{98.9 $\pm$ 0.3} \\" in text
    assert r"RIC & -- \\" in text
    assert r"\caption{\textbf{Table\_1.} 95 \% of a \& b.}" in text
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    assert text.count("{") == text.count("}")


def test_every_metric_is_of_the_split_that_it_names(tmp_path: Path) -> None:
    splits = {
        name: {"accuracy": place, "nll": 10 + place, "ece": 20 + place, "ece_signed": 30 + place, "mean_steps": 40}
        for place, name in enumerate(("train", "val", "test"))
    }
    splits["test"] |= {"n": 90, "ece_bins": 15}
    found = measure([replace(record(tmp_path), evaluation=splits)], METRICS)
    assert dict(zip(found["quantity"], found["value"], strict=True)) == {
        **{"train accuracy": 0, "val accuracy": 1, "test accuracy": 2},
        **{"val nll": 11, "test nll": 12, "test ece": 22, "test ece signed": 32, "mean steps": 40},
    }
    assert (set(found["examples"]), set(found["bins"])) == ({90}, {15})


def test_shares_are_written_in_percent() -> None:
    table = pd.DataFrame({"quantity": ["a"], "mean": [0.9123], "half_width": [0.001]})
    assert write_cell(METRICS["test accuracy"], table) == "91.23 ± 0.10"
    assert write_cell(METRICS["test ece"], table, intervals=False) == "0.912"
    assert write_cell(METRICS["test ece"], pick(table, quantity="b")) == "–"
