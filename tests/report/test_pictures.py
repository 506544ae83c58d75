import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from made_runs import STEPS, add_costs, rewrite, rewrite_arrays
from ricnet.evaluation.evaluate import read_predictions
from ricnet.methods import ACT
from ricnet.report.examples import NUMBERS
from ricnet.report.figures import BLUE, house_style, looks
from ricnet.report.pictures import (
    COVERAGE,
    Picture,
    budget_curves,
    budgeted_by,
    epoch_curves,
    exit_means,
    exits,
    halting,
    over_seeds,
    pictures,
    reliability,
    risk,
    risk_of,
    save_figures,
    steps,
    trained,
    training,
    with_predictions,
)
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, read_run, read_runs

MakeRun = Callable[..., Path]


@pytest.fixture(scope="module")
def drawn(systems: list[RunGroup]) -> list[Picture]:
    return pictures(systems)


def alone(*groups: RunGroup) -> list[RunGroup]:
    return [RunGroup(group.label, group.runs[:1]) for group in groups]


def drawn_of(*groups: RunGroup) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures(list(groups))}


def with_test(run: RunRecord, **test: Any) -> RunGroup:
    """The run alone, with these measures of its test set."""
    return RunGroup("RIC", (replace(run, evaluation={"test": {**run.test, **test}}),))


def mean(group: RunGroup, key: str) -> float:
    return float(np.mean([run.test[key] for run in group.runs]))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_comparison_has_one_figure_of_each_kind(drawn: list[Picture]) -> None:
    found = {picture.name: picture for picture in drawn}
    expected = ["refinement-ric", "reliability", "risk", "steps", "halting", "training"]
    assert list(found) == expected
    assert len(found["reliability"].figure.axes) == 2 * 3
    assert all("95 % Student-t" in found[name].caption for name in ("risk", "steps", "training"))
    assert all(picture.alt for picture in drawn)
    assert "it stops once V is less than 0." in drawn[0].caption
    assert NUMBERS not in drawn[0].caption
    assert not any(clipped(picture.figure) for picture in drawn)


def test_a_single_run_of_rows_with_a_threshold_of_its_own(ric: RunRecord) -> None:
    """The caption explains rows of features and names the threshold; no caption mentions seeds."""
    method = {**ric.config["method"], "halt_threshold": 0.1}
    flat = replace(ric.examples, inputs=ric.examples.inputs.reshape(len(ric.examples.labels), -1))
    drawn = pictures([RunGroup("RIC", (replace(ric, config={**ric.config, "method": method}, examples=flat),))])
    assert NUMBERS in drawn[0].caption
    assert "it stops once V is less than 0.1" in drawn[0].caption
    assert not any("bands" in picture.caption for picture in drawn)
    assert not any(clipped(picture.figure) for picture in drawn)


def test_no_axis_of_shares_has_ticks_above_the_whole(ric: RunRecord) -> None:
    metrics = [{**line, "val": {**line["val"], "accuracy": 1.0}} for line in ric.metrics]
    run = replace(ric, metrics=metrics)
    accuracy = drawn_of(RunGroup("RIC", (run,)))["training"].figure.axes[0]
    low, high = accuracy.get_ylim()
    assert low < 1 < high
    assert max(tick for tick in accuracy.get_yticks() if tick <= high) <= 1


def clipped(figure: Figure) -> list[str]:
    """Titles, labels and legends that reach beyond the figure by more than a pixel."""
    with house_style():
        figure.draw_without_rendering()
    texts = [ax.title for ax in figure.axes] + [axis.label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    frame = figure.bbox.padded(1)
    boxes = {text.get_text(): text.get_window_extent() for text in texts if text.get_text()}
    return [
        name
        for name, box in boxes.items()
        if not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
    ]


def test_runs_without_predictions_are_left_out(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    gone = RunGroup("SL", (replace(sl.first, path=tmp_path, label="SL, seed 0"),))
    assert "risk" not in drawn_of(gone)
    old = replace(ric.runs[1], path=tmp_path)
    kept = with_predictions([RunGroup("RIC", (ric.runs[0], old)), gone])
    assert [group.runs for group in kept] == [(ric.runs[0],)]


def test_derived_systems_have_no_curves_and_change_no_colour(systems: list[RunGroup]) -> None:
    ric, sl, act = systems
    borrowed = replace(sl, label="SL + temperature", runs=tuple(replace(run, derived_from="x") for run in sl.runs))
    assert drawn_of(*alone(sl, borrowed))["training"].alt.endswith("by epoch: SL.")
    assert "training" not in drawn_of(borrowed)
    assert trained([ric, borrowed, act]) == [ric, act]
    figure = training([ric, act], looks([ric, borrowed, act])).figure
    assert legend(figure) == ["RIC", "ACT"]
    assert len(figure.axes[0].collections) == 2
    assert {line.get_color() for line in figure.axes[0].lines} == {
        look.colour for label, look in looks(systems).items() if label != "SL"
    }


def test_captions_tell_of_bands_that_are_cut(drawn: list[Picture], systems: list[RunGroup]) -> None:
    """The band of two distant seeds is ten times as wide as their difference, and the panel is not."""
    metrics = [[{"epoch": k, "val": {"nll": height}} for k in (1, 2)] for height in (5.0, 6.0)]
    found = drawn_of(with_metrics(systems[1], *metrics))
    assert "Bands are cut" in found["training"].caption
    assert "Bands are cut" not in found["risk"].caption
    assert not any("Bands are cut" in picture.caption for picture in drawn)


def test_files_are_written_and_nothing_leaks(systems: list[RunGroup], tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    paths = save_figures([systems[1].first], tmp_path / "deep" / "figures")
    names = {"reliability", "risk", "training"}  # one step has no figures of steps
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("png", "pdf")}
    assert all(path.stat().st_size > 1000 for path in paths)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_curves_are_forced_answers_and_markers_are_halts(systems: list[RunGroup]) -> None:
    ric, sl, _ = systems
    for ax, key in zip(steps(systems, looks(systems)).figure.axes, ("accuracy", "nll", "ece"), strict=True):
        curve, halt, level, one_pass, *_ = ax.lines
        assert list(curve.get_xdata()) == list(range(1, 21))
        forced = np.mean([[entry[key] for entry in run.test["per_step"]] for run in ric.runs], axis=0)
        np.testing.assert_allclose(curve.get_ydata(), forced)
        place = (halt.get_xdata()[0], halt.get_ydata()[0])
        assert place == pytest.approx((mean(ric, "mean_steps"), mean(ric, key)))
        assert level.get_ydata()[0] == one_pass.get_ydata()[0] == pytest.approx(mean(sl, key))
        assert one_pass.get_xdata()[0] == 1
        assert halt.get_marker() != one_pass.get_marker()
        assert (ax.get_title(), ax.get_xlabel()) == (f"test {key if key == 'accuracy' else key.upper()}", "step")


def test_a_run_that_has_not_counted_its_steps_is_shown_with_a_dash(ric: RunRecord) -> None:
    words = [picture.alt for picture in pictures([with_test(ric, mean_cell_evaluations=None, mean_steps=None)])]
    assert any("RIC –" in alt for alt in words)
    assert not any("nan" in alt for alt in words)


def test_an_axis_of_near_accuracies_has_no_digits_to_fill_up(ric: RunRecord) -> None:
    per_step = [{**entry, "accuracy": 0.991 + 0.00004 * entry["step"]} for entry in ric.test["per_step"]]
    groups = [with_test(ric, accuracy=0.9912, per_step=per_step)]
    labels = [label.get_text() for label in steps(groups, looks(groups)).figure.axes[0].get_yticklabels()]
    assert "99.1 %" in labels
    assert not [label for label in labels if "." in label and label.endswith("0 %")]


def with_metrics(group: RunGroup, *metrics: list[dict[str, Any]]) -> RunGroup:
    return RunGroup("RIC", tuple(replace(group.first, metrics=entries) for entries in metrics))


def test_one_line_a_system_and_a_dot_a_seed(systems: list[RunGroup]) -> None:
    figure = training(systems, looks(systems)).figure
    assert legend(figure) == ["RIC", "SL", "ACT"]
    for ax, key in zip(figure.axes, ("accuracy", "nll", "ece"), strict=True):
        line, *dots = ax.lines[:4]
        curves = [[entry["val"][key] for entry in run.metrics] for run in systems[0].runs]
        np.testing.assert_allclose(line.get_ydata(), np.mean(curves, axis=0))
        assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(31, curve[30]) for curve in curves]
        assert {part.get_color() for part in (line, *dots)} == {BLUE}
        assert len(ax.collections) == 3


def test_a_mean_is_over_the_same_seeds_at_every_epoch_and_of_what_can_be_drawn(systems: list[RunGroup]) -> None:
    stopped = [{"epoch": 1, "val": {"accuracy": 0.5}}, {"epoch": 2, "val": {"accuracy": 0.7}}]
    whole = [*stopped, {"epoch": 3, "val": {"accuracy": 0.9}}]
    epochs, curves = epoch_curves(with_metrics(systems[0], stopped, whole, []), "accuracy")
    assert (epochs.tolist(), curves.tolist()) == ([1, 2], [[0.5, 0.7], [0.5, 0.7]])
    missing = [{"epoch": 1, "val": {"accuracy": 0.5, "ece": math.nan, "nll": None}}, {"epoch": 2}]
    groups = [with_metrics(systems[0], missing)]
    accuracy, nll, ece = training(groups, looks(groups)).figure.axes
    assert list(accuracy.lines[0].get_xdata()) == [1]
    assert (len(ece.lines), len(nll.lines)) == (0, 0)
    seeds = [[{"epoch": e, "val": {"nll": most if e == 2 else e}} for e in (1, 2, 3)] for most in (1e308, 1.7e308)]
    huge = with_metrics(systems[0], *seeds)
    assert epoch_curves(huge, "nll")[1].tolist() == 2 * [[1, 1e15, 3]]
    training([huge], looks([huge])).figure.savefig(io.BytesIO())


def test_every_task_has_its_row(systems: list[RunGroup], ric: RunRecord) -> None:
    groups = [systems[0], RunGroup("x", (replace(ric, config={**ric.config, "data": "svhn"}),))]
    figure = training(groups, looks(groups)).figure
    assert [ax.get_title() for ax in figure.axes[::3]] == ["validation accuracy, digits", "validation accuracy, svhn"]
    assert len(legend(figure)) == 1


def test_bars_of_one_run_are_its_accuracies(systems: list[RunGroup]) -> None:
    groups = alone(*systems[:2])
    for group, ax in zip(groups, reliability(groups).figure.axes[:2], strict=True):
        test = group.first.test
        bins = [entry for entry in test["reliability"] if entry["n"]]
        bars, gaps = ax.containers
        assert [bar.get_height() for bar in bars] == pytest.approx([entry["accuracy"] for entry in bins])
        assert [bar.get_x() for bar in bars] == pytest.approx([entry["lower"] for entry in bins])
        tops = [max(gap.get_y(), gap.get_y() + gap.get_height()) for gap in gaps]
        bottoms = [min(gap.get_y(), gap.get_y() + gap.get_height()) for gap in gaps]
        assert tops == pytest.approx([max(entry["confidence"], entry["accuracy"]) for entry in bins])
        assert bottoms == pytest.approx([min(entry["confidence"], entry["accuracy"]) for entry in bins])
        assert [text.get_text() for text in ax.texts] == [f"ECE {test['ece']:.3f} (15 bins)\nn = 300"]
        assert ax.get_title() == group.label
    errors = [run.test["ece"] for run in systems[0].runs]
    half = 4.30265 * np.std(errors, ddof=1) / np.sqrt(3)
    facts = reliability(systems).figure.axes[0].texts[0].get_text()
    assert facts == f"ECE {np.mean(errors):.3f} ± {half:.3f} (15 bins)\nn = 300, 3 seeds"


def with_bins(run: RunRecord, *seeds: list[tuple[int, float | None]]) -> RunGroup:
    """Number of answers and accuracy of two bins, per seed."""
    edges = ({"lower": 0.0, "upper": 0.5}, {"lower": 0.5, "upper": 1.0})
    tables = [
        [{**e, "n": n, "accuracy": a, "confidence": a} for e, (n, a) in zip(edges, s, strict=True)] for s in seeds
    ]
    return RunGroup("x", tuple(with_test(run, reliability=table).first for table in tables))


def test_bins_are_averaged_over_the_seeds_that_fill_them(ric: RunRecord) -> None:
    group = with_bins(ric, [(1, 0.2), (3, 0.9)], [(5, 0.4), (5, 0.7)], [(0, None), (9, 0.8)])
    np.testing.assert_allclose(over_seeds(group, "accuracy"), [0.3, 0.8])
    diagram, histogram = reliability([group]).figure.axes
    assert [bar.get_height() for bar in diagram.containers[0]] == pytest.approx([0.3, 0.8])
    shares = [100 * (1 / 4 + 5 / 10 + 0) / 3, 100 * (3 / 4 + 5 / 10 + 1) / 3]
    assert [bar.get_height() for bar in histogram.containers[0]] == pytest.approx(shares)
    empty = with_bins(ric, [(0, None), (3, 0.9)], [(0, None), (5, 0.7)])  # empty in every seed: no bar
    assert [bar.get_x() for bar in reliability([empty]).figure.axes[0].containers[0]] == [0.5]


def test_lines_are_means_over_seeds_and_end_at_the_error(systems: list[RunGroup]) -> None:
    (ax,) = risk(systems, looks(systems)).figure.axes
    assert len(ax.lines) == len(ax.collections) == 3
    for group, line in zip(systems, ax.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.mean([risk_of(run) for run in group.runs], axis=0))
        assert line.get_ydata()[-1] == pytest.approx(1 - mean(group, "accuracy"))
    assert len(COVERAGE) == len(ax.lines[0].get_xdata())


def test_halts_are_pooled_over_seeds(systems: list[RunGroup], ric: RunRecord) -> None:
    (ax,) = halting(systems[:1]).figure.axes
    right, wrong = ax.containers
    counts = np.sum([[entry["correct"] for entry in run.test["halting"]] for run in systems[0].runs], axis=0)
    assert [bar.get_height() for bar in right] == pytest.approx(100 * counts / counts.sum())
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(-100)
    assert ax.get_legend().get_texts()[0].get_text() == f"right (n = {counts.sum():,})"
    perfect = with_test(ric, halting=[{**entry, "wrong": 0} for entry in ric.test["halting"]])
    assert all(bar.get_height() == 0 for bar in halting([perfect]).figure.axes[0].containers[1])


# Early exits


@pytest.fixture
def leaver(make_run: MakeRun) -> RunGroup:
    return group_seeds([read_run(add_costs(make_run("leaver")))])[0]


def test_all_at_the_same_exit_are_the_numbers_of_each_step(leaver: RunGroup) -> None:
    costs, accuracy = exit_means(leaver, "accuracy")
    assert costs.tolist() == pytest.approx([step / STEPS for step in range(1, STEPS + 1)])
    assert accuracy.tolist() == [entry["accuracy"] for entry in leaver.first.test["per_step"]]


@pytest.mark.parametrize("key", ["accuracy", "nll", "ece"])
def test_the_curve_by_value_goes_from_the_first_exit_to_the_last(leaver: RunGroup, key: str) -> None:
    shares, curves = budget_curves(leaver, key)
    ends = [leaver.first.test["per_step"][place][key] for place in (0, -1)]
    assert shares[[0, -1]].tolist() == pytest.approx([1 / STEPS, 1])
    assert curves[0, [0, -1]].tolist() == pytest.approx(ends, abs=1e-6)


def test_the_curve_passes_where_the_run_stops_by_itself(leaver: RunGroup) -> None:
    """Its own threshold, V < 0, lies between two thresholds of the curve."""
    shares, curves = budget_curves(leaver, "nll")
    found = np.interp(leaver.first.test["mean_cost"], shares, curves[0])
    assert found == pytest.approx(leaver.first.test["nll"], abs=0.02)


def test_thresholds_come_from_validation_data(leaver: RunGroup) -> None:
    """With validation values higher by 50, every threshold stops all test examples at the first exit."""
    values = read_predictions(leaver.first.path, "val").values
    assert values is not None
    rewrite_arrays(leaver.first.path / "predictions.npz", val_values=(values + 50).numpy())
    shares, curves = budget_curves(leaver, "accuracy")
    first, last = (leaver.first.test["per_step"][place]["accuracy"] for place in (0, -1))
    line = first + (last - first) * (shares - shares[0]) / (shares[-1] - shares[0])
    assert curves[0].tolist() == pytest.approx(line.tolist(), abs=1e-6)


def test_values_that_rise_again_leave_no_gap_in_the_curve(leaver: RunGroup) -> None:
    """Examples that continue use the whole network; if a quarter continues, these gain most."""
    scores = read_predictions(leaver.first.path).step_scores.numpy()
    gain = scores[-1] - scores[0]
    values = np.full(scores.shape, 100.0, dtype=np.float32)
    values[1] = gain
    rewrite_arrays(leaver.first.path / "predictions.npz", val_values=values, test_values=values)
    shares, curves = budget_curves(leaver, "nll")
    goes = gain >= np.quantile(gain, 0.75)
    share = np.where(goes, 1, 1 / STEPS).mean()
    assert np.interp(share, shares, curves[0]) == pytest.approx(-np.where(goes, scores[-1], scores[0]).mean(), abs=0.01)


def test_seeds_meet_at_the_same_shares(make_run: MakeRun) -> None:
    [group] = group_seeds(read_runs([add_costs(make_run(f"seed{seed}", seed=seed)) for seed in range(2)]))
    shares, curves = budget_curves(group, "nll")
    assert curves.shape == (2, len(shares))


def test_the_curve_of_supervised_learning_goes_by_its_confidence(leaver: RunGroup) -> None:
    """The same beliefs without their values."""
    rewrite(leaver.first.path / "config.json", lambda entry: entry["config"].update(method={"name": "supervised"}))
    with np.load(leaver.first.path / "predictions.npz") as stored:
        kept = {name: array for name, array in stored.items() if not name.endswith("_values")}
    np.savez(leaver.first.path / "predictions.npz", **kept)
    [group] = group_seeds([read_run(leaver.first.path)])
    assert budgeted_by(group.first) == "confidence"
    shares, curves = budget_curves(group, "accuracy")
    ends = [group.first.test["per_step"][place]["accuracy"] for place in (0, -1)]
    assert shares[[0, -1]].tolist() == pytest.approx([1 / STEPS, 1])
    assert curves[0, [0, -1]].tolist() == pytest.approx(ends, abs=1e-6)
    test = read_predictions(leaver.first.path)
    doubt, scores, confidence = 1 - test.step_confidence[0].numpy(), test.step_scores.numpy(), test.step_confidence
    confidence[1:] = 0  # examples that continue use the whole network
    same = {f"{split}_step_confidence": confidence.numpy() for split in ("val", "test")}
    rewrite_arrays(leaver.first.path / "predictions.npz", **same)
    goes = doubt >= np.quantile(doubt, 0.75)
    share, nll = np.where(goes, 1, 1 / STEPS).mean(), -np.where(goes, scores[-1], scores[0]).mean()
    assert np.interp(share, *(part.flatten() for part in budget_curves(group, "nll"))) == pytest.approx(nll, abs=0.01)
    labels = [text.get_text() for text in exits([group], looks([group])).figure.legends[0].get_texts()]
    assert "each by its confidence" in labels


def test_a_method_of_ones_own_that_takes_a_budget_has_a_curve_too(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ACT, "takes_budget", True)
    assert budgeted_by(read_run(add_costs(make_run("act", "act")))) == "confidence"


def test_a_system_without_a_value_has_its_exits_alone(make_run: MakeRun) -> None:
    group = group_seeds([read_run(add_costs(make_run("act", "act")))])[0]
    assert len(budget_curves(group, "nll")[1]) == 0
    assert len(exits([group], looks([group])).figure.axes[0].lines) == 2
