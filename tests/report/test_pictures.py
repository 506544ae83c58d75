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

from ricnet.errors import RicnetError
from ricnet.report.examples import BARS
from ricnet.report.figures import BLUE
from ricnet.report.pictures import (
    COVERAGE,
    Picture,
    _refinement,
    compute_figure,
    epoch_curves,
    halting_figure,
    mean_of,
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
from ricnet.report.runs import RunGroup


@pytest.fixture(scope="module")
def drawn(systems: list[RunGroup]) -> list[Picture]:
    return pictures(systems)


@pytest.fixture(scope="module")
def drawn_alone(systems: list[RunGroup]) -> list[Picture]:
    """RIC with a threshold of its own."""
    run = systems[0].first
    method = {**run.config["method"], "halt_threshold": 0.1}
    return pictures([RunGroup("RIC", (replace(run, config={**run.config, "method": method}),))])


def alone(groups: list[RunGroup]) -> list[RunGroup]:
    return [RunGroup(group.label, group.runs[:1]) for group in groups]


def test_a_comparison_has_one_figure_of_each_kind(drawn: list[Picture]) -> None:
    found = {picture.name: picture for picture in drawn}
    expected = ["refinement-ric", "reliability", "risk", "compute", "steps", "halting", "training"]
    assert list(found) == expected
    assert len(found["reliability"].figure.axes) == 2 * 3
    for name in ("risk", "compute", "steps", "training"):
        assert "bands their 95 % Student-t intervals" in found[name].caption
    assert all(picture.alt for picture in found.values())


def test_single_runs_have_no_words_about_seeds(drawn_alone: list[Picture]) -> None:
    assert not any("seed" in picture.caption for picture in drawn_alone)


def test_a_supervised_run_has_no_step_figures(systems: list[RunGroup]) -> None:
    assert [picture.name for picture in pictures(alone(systems)[1:2])] == ["reliability", "risk", "training"]


def test_runs_left_out_are_named(systems: list[RunGroup], tmp_path: Path) -> None:
    sl = systems[1]
    old = RunGroup("SL", (replace(sl.first, path=tmp_path, label="SL, seed 0"),))
    (risk,) = (picture for picture in pictures([*alone([sl]), old]) if picture.name == "risk")
    assert "Left out for want of a predictions.npz: SL, seed 0;" in risk.caption
    assert "risk" not in [picture.name for picture in pictures([old])]


def test_only_a_system_with_a_value_is_said_to_look_ahead(drawn: list[Picture]) -> None:
    compute = next(picture for picture in drawn if picture.name == "compute")
    assert "For RIC, the step whose value says stop is computed too" in compute.caption


def test_derived_systems_are_named_but_not_drawn(systems: list[RunGroup]) -> None:
    (sl,) = alone(systems[1:2])
    borrowed = RunGroup("SL + temperature", (replace(sl.first, derived_from="base"),))
    (training,) = (picture for picture in pictures([sl, borrowed]) if picture.name == "training")
    assert training.alt.endswith("by epoch: SL.")
    assert "Not trained, but read out of the weights of another: SL + temperature." in training.caption
    assert "training" not in [picture.name for picture in pictures([borrowed])]


def test_captions_tell_of_bands_that_are_cut(drawn: list[Picture], systems: list[RunGroup]) -> None:
    """Of two seeds far apart a band is ten times as wide as they are, and the panel is not."""
    metrics = [[{"epoch": k, "val": {"nll": height}} for k in (1, 2)] for height in (5.0, 6.0)]
    wide = RunGroup("SL", tuple(replace(systems[1].first, metrics=entries) for entries in metrics))
    found = {picture.name: picture for picture in pictures([wide])}
    assert "goes on beyond it" in found["training"].caption
    assert "goes on beyond it" not in found["risk"].caption
    assert not any("goes on beyond it" in picture.caption for picture in drawn)


def test_rows_are_explained_where_there_are_any(drawn: list[Picture], systems: list[RunGroup]) -> None:
    run = systems[0].first
    assert run.examples is not None
    flat = replace(run.examples, inputs=run.examples.inputs.reshape(len(run.examples.labels), -1))
    assert BARS in _refinement(RunGroup("RIC", (replace(run, examples=flat),))).caption
    assert BARS not in drawn[0].caption


def test_the_runs_own_threshold_is_told(drawn: list[Picture], drawn_alone: list[Picture]) -> None:
    assert "once it is less than zero, it stops" in drawn[0].caption
    assert "once it is less than 0.1, it stops" in drawn_alone[0].caption


def test_files_are_written_and_nothing_leaks(systems: list[RunGroup], tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    paths = save_figures([systems[1].first], tmp_path / "deep" / "figures")
    names = {"reliability", "risk", "training"}
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("png", "pdf")}
    assert all(path.stat().st_size > 1000 for path in paths)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_no_words_are_cut_off(drawn: list[Picture], drawn_alone: list[Picture]) -> None:
    for picture in (*drawn, *drawn_alone):
        assert not clipped(picture.figure), picture.name


def clipped(figure: Figure) -> list[str]:
    """Titles, labels and legends that reach beyond the figure; a pixel is forgiven."""
    texts = [ax.title for ax in figure.axes] + [axis.label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    frame = figure.bbox.padded(1)
    boxes = {text.get_text(): text.get_window_extent() for text in texts if text.get_text()}
    return [
        name
        for name, box in boxes.items()
        if not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
    ]


def mean(group: RunGroup, key: str) -> float:
    return float(np.mean([run.test[key] for run in group.runs]))


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


def test_an_axis_of_near_accuracies_has_no_digits_to_fill_up(systems: list[RunGroup]) -> None:
    run = systems[0].first
    per_step = [{**entry, "accuracy": 0.991 + 0.00004 * entry["step"]} for entry in run.test["per_step"]]
    test = {**run.test, "accuracy": 0.9912, "per_step": per_step}
    (ax,) = compute_figure([RunGroup("RIC", (replace(run, evaluation={"test": test}),))]).axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert "99.1 %" in labels
    assert not [label for label in labels if "." in label and label.endswith("0 %")]


def test_runs_that_did_not_count_evaluations_show_their_steps(systems: list[RunGroup]) -> None:
    run = systems[0].first
    test = {key: value for key, value in run.test.items() if key != "mean_cell_evaluations"}
    group = RunGroup("RIC", (replace(run, evaluation={"test": test}),))
    assert compute_figure([group]).axes[0].lines[1].get_xdata()[0] == pytest.approx(run.test["mean_steps"])


def with_metrics(group: RunGroup, *metrics: list[dict[str, Any]]) -> RunGroup:
    return RunGroup("RIC", tuple(replace(group.first, metrics=entries) for entries in metrics))


def test_one_line_a_system_and_a_dot_a_seed(systems: list[RunGroup]) -> None:
    figure = training_figure(systems)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RIC", "SL", "ACT"]
    for ax, key in zip(figure.axes, ("accuracy", "ece", "nll"), strict=True):
        line, *dots = ax.lines[:4]
        curves = [[entry["val"][key] for entry in run.metrics] for run in systems[0].runs]
        np.testing.assert_allclose(line.get_ydata(), np.mean(curves, axis=0))
        assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(31, curve[30]) for curve in curves]
        assert {part.get_color() for part in (line, *dots)} == {BLUE}
        assert len(ax.collections) == 3


def test_a_mean_is_over_the_same_seeds_at_every_epoch(systems: list[RunGroup]) -> None:
    stopped = [{"epoch": 1, "val": {"accuracy": 0.5}}, {"epoch": 2, "val": {"accuracy": 0.7}}]
    whole = [*stopped, {"epoch": 3, "val": {"accuracy": 0.9}}]
    epochs, curves = epoch_curves(with_metrics(systems[0], stopped, whole, []), "accuracy")
    assert epochs.tolist() == [1, 2]
    assert curves.tolist() == [[0.5, 0.7], [0.5, 0.7]]


def test_missing_scores_are_left_out(systems: list[RunGroup]) -> None:
    metrics = [{"epoch": 1, "val": {"accuracy": 0.5, "ece": math.nan, "nll": None}}, {"epoch": 2}]
    accuracy, ece, nll = training_figure([with_metrics(systems[0], metrics)]).axes
    assert list(accuracy.lines[0].get_xdata()) == [1]
    assert not ece.lines
    assert not nll.lines


def test_what_is_too_large_to_draw_is_drawn_as_large_as_can_be(systems: list[RunGroup]) -> None:
    seeds = [[{"epoch": e, "val": {"nll": most if e == 2 else e}} for e in (1, 2, 3)] for most in (1e308, 1.7e308)]
    group = with_metrics(systems[0], *seeds)
    assert epoch_curves(group, "nll")[1].tolist() == 2 * [[1, 1e15, 3]]
    training_figure([group]).savefig(io.BytesIO())


def test_derived_runs_have_no_curves_of_their_own_and_change_no_colour(systems: list[RunGroup]) -> None:
    ric, sl, act = systems
    borrowed = replace(sl, runs=tuple(replace(run, derived_from="base") for run in sl.runs))
    assert trained([ric, borrowed, act]) == [ric, act]
    figure = training_figure([ric, borrowed, act])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RIC", "ACT"]
    assert len(figure.axes[0].collections) == 2


def test_every_task_has_its_row(systems: list[RunGroup]) -> None:
    ric = systems[0]
    other = RunGroup("RIC, svhn", (replace(ric.first, config={**ric.first.config, "data": "svhn"}),))
    figure = training_figure([ric, other])
    assert [ax.get_title() for ax in figure.axes[::3]] == ["validation accuracy, digits", "validation accuracy, svhn"]
    assert len(figure.legends[0].get_texts()) == 1


def test_bars_of_one_run_are_its_accuracies(systems: list[RunGroup]) -> None:
    alone = [RunGroup(group.label, group.runs[:1]) for group in systems[:2]]
    figure = reliability_figure(alone)
    for group, ax in zip(alone, figure.axes[:2], strict=True):
        test = group.first.test
        bins = [entry for entry in test["reliability"] if entry["n"]]
        bars, gaps = ax.containers
        assert [bar.get_height() for bar in bars] == pytest.approx([entry["accuracy"] for entry in bins])
        assert [bar.get_x() for bar in bars] == pytest.approx([entry["lower"] for entry in bins])
        tops = [gap.get_y() + gap.get_height() for gap in gaps]
        assert tops == pytest.approx([entry["confidence"] for entry in bins])
        assert [text.get_text() for text in ax.texts] == [f"ECE {test['ece']:.3f} (15 bins)\nn = 450"]
        assert ax.get_title() == group.label


def with_bins(group: RunGroup, *seeds: list[tuple[int, float | None]]) -> RunGroup:
    """Two bins a seed: how many, and how accurate."""
    edges = ({"lower": 0.0, "upper": 0.5}, {"lower": 0.5, "upper": 1.0})
    tables = [
        [{**e, "n": n, "accuracy": a, "confidence": a} for e, (n, a) in zip(edges, s, strict=True)] for s in seeds
    ]
    runs = [replace(group.first, evaluation={"test": {**group.first.test, "reliability": table}}) for table in tables]
    return RunGroup("x", tuple(runs))


def test_bins_are_averaged_over_the_seeds_that_fill_them(systems: list[RunGroup]) -> None:
    group = with_bins(systems[0], [(1, 0.2), (3, 0.9)], [(5, 0.4), (5, 0.7)], [(0, None), (9, 0.8)])
    np.testing.assert_allclose(over_seeds(group, "accuracy"), [0.3, 0.8])
    diagram, histogram = reliability_figure([group]).axes
    assert [bar.get_height() for bar in diagram.containers[0]] == pytest.approx([0.3, 0.8])
    shares = [100 * (1 / 4 + 5 / 10 + 0) / 3, 100 * (3 / 4 + 5 / 10 + 1) / 3]
    assert [bar.get_height() for bar in histogram.containers[0]] == pytest.approx(shares)


def test_a_bin_empty_in_every_seed_has_no_bar(systems: list[RunGroup]) -> None:
    group = with_bins(systems[0], [(0, None), (3, 0.9)], [(0, None), (5, 0.7)])
    assert [bar.get_x() for bar in reliability_figure([group]).axes[0].containers[0]] == [0.5]


def test_seeds_and_the_spread_of_the_ece_are_told(systems: list[RunGroup]) -> None:
    figure = reliability_figure(systems)
    errors = [run.test["ece"] for run in systems[0].runs]
    half = 4.30265 * np.std(errors, ddof=1) / np.sqrt(3)
    facts = figure.axes[0].texts[0].get_text()
    assert facts == f"ECE {np.mean(errors):.3f} ± {half:.3f} (15 bins)\nn = 450, 3 seeds"


def test_lines_are_means_over_seeds_and_end_at_the_error(systems: list[RunGroup]) -> None:
    (ax,) = risk_figure(systems).axes
    assert len(ax.lines) == len(ax.collections) == 3
    for group, line in zip(systems, ax.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.mean([risk_of(run) for run in group.runs], axis=0))
        assert line.get_ydata()[-1] == pytest.approx(1 - np.mean([run.test["accuracy"] for run in group.runs]))
    assert len(COVERAGE) == len(ax.lines[0].get_xdata())


def test_runs_without_predictions_are_told(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    old = replace(ric.runs[1], path=tmp_path)
    mixed = RunGroup("RIC", (ric.runs[0], old))
    gone = RunGroup("SL", (replace(sl.first, path=tmp_path),))
    kept, missing = with_predictions([mixed, gone])
    assert [group.runs for group in kept] == [(ric.runs[0],)]
    assert missing == [old, gone.first]


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
        assert halts == [pytest.approx(np.mean([run.test["mean_steps"] for run in ric.runs]))]
        assert mean_of(sl, key) in [line.get_ydata()[0] for line in ax.lines]
    assert (len(scores.collections), len(errors.collections)) == (2, 1)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["accuracy, ECE", "confidence", "mean halt", "SL (one step)"]


@pytest.mark.parametrize("change", [{"data": "svhn"}, {"label_noise": 0.4}])
def test_a_reference_of_another_task_is_no_reference(systems: list[RunGroup], change: dict[str, object]) -> None:
    ric, sl, _ = systems
    other = RunGroup("SL", (replace(sl.first, config={**sl.first.config, **change}),))
    assert len(steps_figure([ric, other]).axes[0].lines) == 3


def test_panels_of_a_row_make_room_for_each_other(systems: list[RunGroup]) -> None:
    """The second system errs more than the first, whose scale it shares."""
    ric, _, act = systems
    test = {**act.first.test, "per_step": [{**entry, "ece": 0.8} for entry in act.first.test["per_step"]]}
    worse = RunGroup("ACT", (replace(act.first, evaluation={"test": test}),))
    errors = steps_figure([ric, worse]).axes[2:]
    assert [ax.get_ylim()[0] for ax in errors] == [0, 0]
    assert all(ax.get_ylim()[1] > 0.8 for ax in errors)


def test_halts_are_pooled_over_seeds(systems: list[RunGroup]) -> None:
    ric = systems[0]
    (ax,) = halting_figure([ric]).axes
    right, wrong = ax.containers
    counts = np.sum([[entry["correct"] for entry in run.test["halting"]] for run in ric.runs], axis=0)
    assert [bar.get_height() for bar in right] == pytest.approx(100 * counts / counts.sum())
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(-100)
    assert ax.get_legend().get_texts()[0].get_text() == f"right (n = {counts.sum():,})"


def test_halting_with_nothing_wrong(systems: list[RunGroup]) -> None:
    run = systems[0].first
    halting = [{**entry, "wrong": 0} for entry in run.test["halting"]]
    group = RunGroup("RIC", (replace(run, evaluation={"test": {**run.test, "halting": halting}}),))
    assert all(bar.get_height() == 0 for bar in halting_figure([group]).axes[0].containers[1])


def test_step_figures_need_steps(systems: list[RunGroup]) -> None:
    with pytest.raises(RicnetError, match="refines"):
        steps_figure(systems[1:2])
