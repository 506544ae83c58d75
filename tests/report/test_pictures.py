import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from ricnet.report.examples import BARS
from ricnet.report.figures import BLUE, house_style
from ricnet.report.pictures import (
    COVERAGE,
    Picture,
    compute_figure,
    epoch_curves,
    halting_figure,
    over_seeds,
    pictures,
    reliability_figure,
    risk_figure,
    risk_of,
    save_figures,
    steps_figure,
    trained,
    training_figure,
    with_predictions,
)
from ricnet.report.runs import RunGroup, RunRecord


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
    expected = ["refinement-ric", "reliability", "risk", "compute", "steps", "halting", "training"]
    assert list(found) == expected
    assert len(found["reliability"].figure.axes) == 2 * 3
    assert all("95 % Student-t" in found[name].caption for name in ("risk", "compute", "steps", "training"))
    assert all(picture.alt for picture in drawn)
    assert "For RIC this includes the step whose value stops it" in found["compute"].caption
    assert "it stops once V is less than zero" in drawn[0].caption
    assert BARS not in drawn[0].caption
    assert not any(clipped(picture.figure) for picture in drawn)


def test_a_single_run_of_rows_with_a_threshold_of_its_own(ric: RunRecord) -> None:
    """Rows of features are explained, the threshold is told, and nothing is said about seeds."""
    method = {**ric.config["method"], "halt_threshold": 0.1}
    flat = replace(ric.examples, inputs=ric.examples.inputs.reshape(len(ric.examples.labels), -1))
    drawn = pictures([RunGroup("RIC", (replace(ric, config={**ric.config, "method": method}, examples=flat),))])
    assert BARS in drawn[0].caption
    assert "it stops once V is less than 0.1" in drawn[0].caption
    assert not any("seed" in picture.caption for picture in drawn)
    assert not any(clipped(picture.figure) for picture in drawn)


def clipped(figure: Figure) -> list[str]:
    """Titles, labels and legends that reach beyond the figure; a pixel is forgiven."""
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


def test_runs_without_predictions_are_left_out_and_named(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    gone = RunGroup("SL", (replace(sl.first, path=tmp_path, label="SL, seed 0"),))
    assert "SL, seed 0;" in drawn_of(*alone(sl), gone)["risk"].caption
    assert "risk" not in drawn_of(gone)
    old = replace(ric.runs[1], path=tmp_path)
    kept, missing = with_predictions([RunGroup("RIC", (ric.runs[0], old)), gone])
    assert [group.runs for group in kept] == [(ric.runs[0],)]
    assert missing == [old, gone.first]


def test_derived_systems_are_named_but_have_no_curves_and_change_no_colour(systems: list[RunGroup]) -> None:
    ric, sl, act = systems
    borrowed = replace(sl, label="SL + temperature", runs=tuple(replace(run, derived_from="x") for run in sl.runs))
    training = drawn_of(*alone(sl, borrowed))["training"]
    assert training.alt.endswith("by epoch: SL.")
    assert "SL + temperature" in training.caption
    assert "training" not in drawn_of(borrowed)
    assert trained([ric, borrowed, act]) == [ric, act]
    figure = training_figure([ric, borrowed, act])
    assert legend(figure) == ["RIC", "ACT"]
    assert len(figure.axes[0].collections) == 2


def test_captions_tell_of_bands_that_are_cut(drawn: list[Picture], systems: list[RunGroup]) -> None:
    """Of two seeds far apart a band is ten times as wide as they are, and the panel is not."""
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
    (ax,) = compute_figure(systems).axes
    curve, halt, level, one_pass, *_ = ax.lines
    ric, sl, _ = systems
    assert list(curve.get_xdata()) == list(range(1, 21))
    forced = np.mean([[entry["accuracy"] for entry in run.test["per_step"]] for run in ric.runs], axis=0)
    np.testing.assert_allclose(curve.get_ydata(), forced)
    place = (halt.get_xdata()[0], halt.get_ydata()[0])
    assert place == pytest.approx((mean(ric, "mean_cell_evaluations"), mean(ric, "accuracy")))
    assert place[0] > mean(ric, "mean_steps")
    assert level.get_ydata()[0] == one_pass.get_ydata()[0] == pytest.approx(mean(sl, "accuracy"))
    assert one_pass.get_xdata()[0] == 1
    assert halt.get_marker() != one_pass.get_marker()
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "steps computed")


def test_a_run_that_has_not_counted_its_steps_is_shown_without(ric: RunRecord) -> None:
    """An older one shows the steps it took, one without these a dash."""
    lacking = {key: value for key, value in ric.test.items() if key != "mean_cell_evaluations"}
    for uncounted in (replace(ric, evaluation={"test": lacking}), with_test(ric, mean_cell_evaluations=None).first):
        halt = compute_figure([RunGroup("RIC", (uncounted,))]).axes[0].lines[1]
        assert halt.get_xdata()[0] == pytest.approx(ric.test["mean_steps"])
    words = [picture.alt for picture in pictures([with_test(ric, mean_cell_evaluations=None, mean_steps=None)])]
    assert any("RIC –" in alt for alt in words)
    assert not any("nan" in alt for alt in words)


def test_an_axis_of_near_accuracies_has_no_digits_to_fill_up(ric: RunRecord) -> None:
    per_step = [{**entry, "accuracy": 0.991 + 0.00004 * entry["step"]} for entry in ric.test["per_step"]]
    (ax,) = compute_figure([with_test(ric, accuracy=0.9912, per_step=per_step)]).axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert "99.1 %" in labels
    assert not [label for label in labels if "." in label and label.endswith("0 %")]


def with_metrics(group: RunGroup, *metrics: list[dict[str, Any]]) -> RunGroup:
    return RunGroup("RIC", tuple(replace(group.first, metrics=entries) for entries in metrics))


def test_one_line_a_system_and_a_dot_a_seed(systems: list[RunGroup]) -> None:
    figure = training_figure(systems)
    assert legend(figure) == ["RIC", "SL", "ACT"]
    for ax, key in zip(figure.axes, ("accuracy", "ece", "nll"), strict=True):
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
    accuracy, ece, nll = training_figure([with_metrics(systems[0], missing)]).axes
    assert list(accuracy.lines[0].get_xdata()) == [1]
    assert (len(ece.lines), len(nll.lines)) == (0, 0)
    seeds = [[{"epoch": e, "val": {"nll": most if e == 2 else e}} for e in (1, 2, 3)] for most in (1e308, 1.7e308)]
    huge = with_metrics(systems[0], *seeds)
    assert epoch_curves(huge, "nll")[1].tolist() == 2 * [[1, 1e15, 3]]
    training_figure([huge]).savefig(io.BytesIO())


def test_every_task_has_its_row(systems: list[RunGroup], ric: RunRecord) -> None:
    figure = training_figure([systems[0], RunGroup("x", (replace(ric, config={**ric.config, "data": "svhn"}),))])
    assert [ax.get_title() for ax in figure.axes[::3]] == ["validation accuracy, digits", "validation accuracy, svhn"]
    assert len(legend(figure)) == 1


def test_bars_of_one_run_are_its_accuracies(systems: list[RunGroup]) -> None:
    groups = alone(*systems[:2])
    for group, ax in zip(groups, reliability_figure(groups).axes[:2], strict=True):
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
    facts = reliability_figure(systems).axes[0].texts[0].get_text()
    assert facts == f"ECE {np.mean(errors):.3f} ± {half:.3f} (15 bins)\nn = 300, 3 seeds"


def with_bins(run: RunRecord, *seeds: list[tuple[int, float | None]]) -> RunGroup:
    """Two bins a seed: how many, and how accurate."""
    edges = ({"lower": 0.0, "upper": 0.5}, {"lower": 0.5, "upper": 1.0})
    tables = [
        [{**e, "n": n, "accuracy": a, "confidence": a} for e, (n, a) in zip(edges, s, strict=True)] for s in seeds
    ]
    return RunGroup("x", tuple(with_test(run, reliability=table).first for table in tables))


def test_bins_are_averaged_over_the_seeds_that_fill_them(ric: RunRecord) -> None:
    group = with_bins(ric, [(1, 0.2), (3, 0.9)], [(5, 0.4), (5, 0.7)], [(0, None), (9, 0.8)])
    np.testing.assert_allclose(over_seeds(group, "accuracy"), [0.3, 0.8])
    diagram, histogram = reliability_figure([group]).axes
    assert [bar.get_height() for bar in diagram.containers[0]] == pytest.approx([0.3, 0.8])
    shares = [100 * (1 / 4 + 5 / 10 + 0) / 3, 100 * (3 / 4 + 5 / 10 + 1) / 3]
    assert [bar.get_height() for bar in histogram.containers[0]] == pytest.approx(shares)
    empty = with_bins(ric, [(0, None), (3, 0.9)], [(0, None), (5, 0.7)])  # in every seed: no bar
    assert [bar.get_x() for bar in reliability_figure([empty]).axes[0].containers[0]] == [0.5]


def test_lines_are_means_over_seeds_and_end_at_the_error(systems: list[RunGroup]) -> None:
    (ax,) = risk_figure(systems).axes
    assert len(ax.lines) == len(ax.collections) == 3
    for group, line in zip(systems, ax.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.mean([risk_of(run) for run in group.runs], axis=0))
        assert line.get_ydata()[-1] == pytest.approx(1 - mean(group, "accuracy"))
    assert len(COVERAGE) == len(ax.lines[0].get_xdata())


def test_curves_are_means_over_seeds_with_the_mean_halt(systems: list[RunGroup]) -> None:
    ric, sl, _ = systems
    figure = steps_figure([ric, sl])
    scores, errors = figure.axes
    lines = {line.get_label(): line for line in (*scores.lines, *errors.lines)}
    for key in ("accuracy", "mean_confidence", "ece"):
        curves = [[entry[key] for entry in run.test["per_step"]] for run in ric.runs]
        np.testing.assert_allclose(lines[key].get_ydata(), np.mean(curves, axis=0))
    for ax, key in ((scores, "accuracy"), (errors, "ece")):
        halts = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]
        assert halts == [pytest.approx(mean(ric, "mean_steps"))]
        assert any(line.get_ydata()[0] == pytest.approx(mean(sl, key)) for line in ax.lines)
    assert (len(scores.collections), len(errors.collections)) == (2, 1)
    assert legend(figure) == ["accuracy, ECE", "confidence", "mean halt", "SL (one step)"]
    for change in ({"data": "svhn"}, {"label_noise": 0.4}):  # a reference of another task is none
        other = RunGroup("SL", (replace(sl.first, config={**sl.first.config, **change}),))
        assert len(steps_figure([ric, other]).axes[0].lines) == 3


def test_panels_of_a_row_make_room_for_each_other(systems: list[RunGroup], ric: RunRecord) -> None:
    """The second system errs more than the first, whose scale it shares."""
    worse = with_test(ric, per_step=[{**entry, "ece": 0.8} for entry in ric.test["per_step"]])
    errors = steps_figure([systems[2], worse]).axes[2:]
    assert [ax.get_ylim()[0] for ax in errors] == [0, 0]
    assert all(ax.get_ylim()[1] > 0.8 for ax in errors)


def test_halts_are_pooled_over_seeds(systems: list[RunGroup], ric: RunRecord) -> None:
    (ax,) = halting_figure(systems[:1]).axes
    right, wrong = ax.containers
    counts = np.sum([[entry["correct"] for entry in run.test["halting"]] for run in systems[0].runs], axis=0)
    assert [bar.get_height() for bar in right] == pytest.approx(100 * counts / counts.sum())
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(-100)
    assert ax.get_legend().get_texts()[0].get_text() == f"right (n = {counts.sum():,})"
    perfect = with_test(ric, halting=[{**entry, "wrong": 0} for entry in ric.test["halting"]])
    assert all(bar.get_height() == 0 for bar in halting_figure([perfect]).axes[0].containers[1])
