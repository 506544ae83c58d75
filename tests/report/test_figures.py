import math
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from ricnet.errors import RicnetError
from ricnet.report.curves import training_figure
from ricnet.report.figures import pictures, save_figures
from ricnet.report.refinement import refinement_figure, telling_rows
from ricnet.report.reliability import reliability_figure
from ricnet.report.runs import RunRecord, read_run, read_runs
from ricnet.report.steps import halting_figure, steps_figure

from .conftest import MakeRun


@pytest.fixture
def pair(make_run: MakeRun) -> list[RunRecord]:
    return read_runs([make_run("ric"), make_run("sl", method="supervised")])


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_reliability_bars_are_the_accuracies(pair: list[RunRecord]) -> None:
    figure = reliability_figure(pair)
    for run, ax in zip(pair, figure.axes[:2], strict=True):
        bins = [entry for entry in run.test["reliability"] if entry["n"]]
        bars, gaps = ax.containers
        assert [bar.get_height() for bar in bars] == pytest.approx([entry["accuracy"] for entry in bins])
        assert [bar.get_x() for bar in bars] == pytest.approx([entry["lower"] for entry in bins])
        tops = [gap.get_y() + gap.get_height() for gap in gaps]
        assert tops == pytest.approx([entry["confidence"] for entry in bins])
        assert f"ECE {run.test['ece']:.3f} (15 bins), n = 450" in [text.get_text() for text in ax.texts]
        assert ax.get_title() == run.label


def test_confidence_histogram_sums_to_all(pair: list[RunRecord]) -> None:
    for ax in reliability_figure(pair).axes[2:]:
        assert sum(bar.get_height() for bar in ax.containers[0]) == pytest.approx(100)


def test_steps_curves_and_mean_halt(pair: list[RunRecord]) -> None:
    figure = steps_figure(pair)
    scores, errors = figure.axes
    test = pair[0].test
    lines = {line.get_label(): line for line in (*scores.lines, *errors.lines)}
    for key in ("accuracy", "mean_confidence", "ece"):
        np.testing.assert_allclose(lines[key].get_ydata(), [entry[key] for entry in test["per_step"]])
    for ax, key in ((scores, "accuracy"), (errors, "ece")):
        positions = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]
        assert positions == [pytest.approx(test["mean_steps"])]
        assert pair[1].test[key] in [line.get_ydata()[0] for line in ax.lines]
    assert legend_texts(figure) == ["accuracy, ECE", "confidence", "mean halt", "SL (one step)"]


def test_a_reference_on_other_data_is_no_reference(pair: list[RunRecord]) -> None:
    other = replace(pair[1], config={**pair[1].config, "data": "svhn"})
    assert len(steps_figure([pair[0], other]).axes[0].lines) == 3


def test_halting_shares(pair: list[RunRecord]) -> None:
    (ax,) = halting_figure(pair).axes
    right, wrong = ax.containers
    halting = pair[0].test["halting"]
    total = sum(entry["correct"] for entry in halting)
    assert [bar.get_height() for bar in right] == pytest.approx([100 * e["correct"] / total for e in halting])
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(-100)
    assert ax.get_legend().get_texts()[0].get_text() == f"right (n = {total})"


def test_halting_with_nothing_wrong(pair: list[RunRecord]) -> None:
    halting = [{**entry, "wrong": 0} for entry in pair[0].test["halting"]]
    run = replace(pair[0], evaluation={"test": {**pair[0].test, "halting": halting}})
    assert all(bar.get_height() == 0 for bar in halting_figure([run]).axes[0].containers[1])


def test_step_figures_need_steps(pair: list[RunRecord]) -> None:
    with pytest.raises(RicnetError, match="refines"):
        steps_figure(pair[1:])


def test_training_curves(pair: list[RunRecord]) -> None:
    figure = training_figure(pair)
    assert legend_texts(figure) == ["RIC", "SL"]
    accuracy = figure.axes[0]
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), [entry["val"]["accuracy"] for entry in pair[0].metrics])
    assert list(accuracy.lines[1].get_xdata()) == [31]


def test_seeds_of_a_method_differ_in_their_dashes(make_run: MakeRun) -> None:
    lines = training_figure(read_runs([make_run("a"), make_run("b", seed=1)])).axes[0].lines
    assert lines[0].get_color() == lines[2].get_color()
    assert lines[0].get_linestyle() != lines[2].get_linestyle()


def test_missing_scores_leave_gaps(pair: list[RunRecord]) -> None:
    metrics = [{"epoch": 1, "val": {"accuracy": 0.5, "ece": math.nan, "nll": None}}, {"epoch": 2}]
    assert list(training_figure([replace(pair[0], metrics=metrics)]).axes[0].lines[0].get_xdata()) == [1]


def test_refinement_shows_halt_value_and_truth(pair: list[RunRecord]) -> None:
    run = pair[0]
    assert run.examples is not None
    assert run.examples.values is not None
    axes = refinement_figure(run, rows=[3]).axes
    image, belief, value = axes
    halt = int(run.examples.halt_step[3])
    assert image.get_title() == f"true class: {run.class_names[run.examples.labels[3]]}"
    assert belief.lines[0].get_xdata()[0] == halt
    assert f"{halt} step" in belief.get_title()
    dot = value.lines[-1]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (halt, run.examples.values[halt, 3])
    assert dot.get_ydata()[0] < 0


def test_the_true_class_stands_on_the_floor_from_uniform(pair: list[RunRecord]) -> None:
    run = pair[0]
    assert run.examples is not None
    floor = refinement_figure(run, rows=[0]).axes[1].collections[0].get_paths()[0].vertices
    label = run.examples.labels[0]
    heights = {int(x): y for x, y in floor if y > 0}
    assert heights[0] == pytest.approx(0.1)
    assert heights[7] == pytest.approx(float(np.exp(run.examples.log_beliefs[6, 0, label])))


def test_telling_rows_end_with_a_wrong_one(pair: list[RunRecord]) -> None:
    examples = pair[0].examples
    assert examples is not None
    rows = telling_rows(examples)
    assert (examples.answers[rows] == examples.labels[rows]).tolist() == [True, True, True, False]
    one = replace(
        examples,
        inputs=examples.inputs[:1],
        labels=examples.labels[:1],
        log_beliefs=examples.log_beliefs[:, :1],
        values=None,
        halt_step=examples.halt_step[:1],
    )
    assert telling_rows(one) == [0]
    assert telling_rows(replace(one, labels=(one.answers + 1) % 10)) == [0]


@pytest.mark.parametrize("tabular", [False, True])
@pytest.mark.parametrize("method", ["ric", "act", "supervised"])
def test_refinement_of_every_kind(make_run: MakeRun, tabular: bool, method: str) -> None:
    names = ["$x^{", "a\nb", "x" * 40, *"3456789"]
    figure = refinement_figure(read_run(make_run(method=method, tabular=tabular, class_names=names)))
    assert len(figure.axes) == (12 if method == "ric" else 8)


def test_refinement_without_examples(pair: list[RunRecord]) -> None:
    with pytest.raises(RicnetError, match=r"examples\.npz"):
        refinement_figure(replace(pair[0], examples=None))


def test_files_are_written_and_nothing_leaks(pair: list[RunRecord], tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    paths = save_figures(pair, tmp_path / "deep" / "figures")
    names = {"refinement-ric", "reliability", "steps", "halting", "training"}
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("png", "pdf")}
    assert all(path.stat().st_size > 1000 for path in paths)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_one_run_of_a_method_speaks_for_its_seeds(make_run: MakeRun) -> None:
    folders = [make_run(f"r{seed}", seed=seed) for seed in range(5)]
    runs = read_runs([folders[0], make_run("act", method="act"), *folders[1:]])
    names = [picture.name for picture in pictures(runs)]
    assert names == ["refinement-ric-seed-0", "refinement-act", "reliability", "steps", "halting", "training"]


def test_a_supervised_run_has_no_step_figures(pair: list[RunRecord]) -> None:
    assert [picture.name for picture in pictures(pair[1:])] == ["reliability", "training"]
