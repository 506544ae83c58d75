import base64
import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from made_runs import STEPS, add_costs, groups_of, rewrite_arrays, section_html
from refusals import refusal
from ricnet.data.columns import Category, Columns, Number
from ricnet.evaluation.choices import NEVER
from ricnet.evaluation.examples import KINDS
from ricnet.report.examples import (
    SIDE,
    card,
    data_uri,
    input_words,
    leading_rival,
    refinement_figure,
    shown_cells,
    small_image,
    telling_rows,
)
from ricnet.report.page import PAIR_EXAMPLES, run_confusion
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, read_run
from ricnet.report.tables import class_grid, confusion, matrix_grid, pair_words


def gallery_of(run: RunRecord, **changes: object) -> str:
    return section_html([RunGroup("RIC", (replace(run, examples=replace(run.examples, **changes)),))], "gallery")


def test_examples_stand_by_kind(ric: RunRecord) -> None:
    """Without wrong answers there is no part for them."""
    answers, headings = ric.examples.answers, r"<h4>(\w+)"
    assert re.findall(headings, gallery_of(ric)) == ["Easy", "Hard", "Wrong"]
    perfect = gallery_of(ric, labels=answers, kind=np.arange(len(answers)) % 2)
    assert re.findall(headings, perfect) == ["Easy", "Hard"]
    assert "✗" not in perfect


def test_examples_of_equal_steps_are_not_told_apart_by_steps(ric: RunRecord) -> None:
    halts = ric.examples.halt_step
    assert "right after the fewest steps" in gallery_of(ric)
    equal = gallery_of(ric, halt_step=np.full_like(halts, 5))
    assert "right after the fewest steps" not in equal
    assert "more than one step" not in equal
    assert "right, with the highest confidence" in equal


def test_every_example_has_its_card(ric: RunRecord) -> None:
    """The first is easy; its belief begins at a tenth, so at 90 % of the height from the top."""
    examples, html = ric.examples, gallery_of(ric)
    count = int((examples.kind != KINDS.index("confused")).sum())  # shown with the mistakes
    assert html.count("<figure") == html.count("<figcaption") == html.count('src="data:image/png;base64,') == count
    wrong = int(np.flatnonzero(examples.answers != examples.labels)[0])
    assert f"✗ {examples.answers[wrong]}</b>, truly {examples.labels[wrong]}<br>" in html
    assert "<details" not in html
    path = re.search(r'class="true" d="M0 48L([^z]*)L100 48z"', html)
    heights = [float(point.split()[1]) for point in path[1].split("L")]
    belief = np.exp(examples.log_beliefs[:, 0, examples.labels[0]])
    assert heights == pytest.approx([48 * 0.9, *(48 * (1 - belief))], abs=0.06)
    halt = re.search(r'class="halt" d="M([\d.]+) 0V48"', html)
    assert float(halt[1]) == pytest.approx(100 * np.sqrt(examples.halt_step[0] / 20), abs=0.06)


def test_several_systems_are_folded_but_the_first(systems: list[RunGroup], ric: RunRecord) -> None:
    html = section_html(systems, "gallery")
    assert (html.count("<details"), html.count(" open>")) == (3, 1)
    assert section_html([RunGroup("RIC", (replace(ric, examples=None),))], "gallery") == ""


def test_rows_of_numbers_are_listed_and_names_are_escaped(make_run: Callable[..., Path]) -> None:
    (group,) = groups_of(make_run(tabular=True, class_names=['"><script>', *(f"<{k}>" for k in range(1, 10))]))
    html = section_html([group], "gallery")
    assert html.count('<dl class="cells"><div><dt>1</dt>') == html.count("<figcaption") > 10
    assert not re.search(r"<img|<script|<\d>", html)


def test_the_report_shows_what_is_confused_with_examples(make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(class_names=["zero", "<b>one</b>", *"cdefghij"]))
    found = run_confusion(run)
    assert found.counts.trace() / found.counts.sum() == run.test["accuracy"]
    page = section_html(group_seeds([run]), "mistakes")
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page
    true, _, times = found.pairs()[0]
    assert f"{escape(found.names[true])} taken for" in page
    assert times >= found.pairs()[-1][2]
    kept = Counter(zip(run.examples.labels.tolist(), run.examples.answers.tolist(), strict=True))
    expected = sum(min(PAIR_EXAMPLES, kept[true, answer]) for true, answer, _ in found.pairs())
    assert expected > 0
    assert page.count('class="card"') == expected


def test_of_several_systems_each_has_its_own_mistakes(make_run: Callable[..., Path]) -> None:
    html = section_html(groups_of(make_run("a"), make_run("b", method="supervised")), "mistakes")
    assert html.count("Precision and recall by class") == html.count("<details") == 2
    folder = make_run("other classes")
    rewrite_arrays(folder / "predictions.npz", test_labels=np.full(300, 99))
    assert run_confusion(read_run(folder)) is None
    (folder / "predictions.npz").unlink()
    assert section_html(groups_of(folder), "mistakes") == ""


@pytest.mark.filterwarnings("ignore:.*ill-defined")
def test_counts_precision_and_recall_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, answers = rng.integers(0, 5, 200), rng.integers(0, 4, 200)  # 4 is never the answer
    found = confusion(labels, answers, list("abcde"))
    np.testing.assert_array_equal(found.counts, confusion_matrix(labels, answers, labels=range(5)))
    precision, recall, _, _ = precision_recall_fscore_support(labels, answers, labels=range(5), zero_division=np.nan)
    np.testing.assert_allclose(found.precision, precision)
    np.testing.assert_allclose(found.recall, recall)


def test_the_commonest_mistakes_come_first() -> None:
    """By hand: cats are taken for dogs twice of three times, a dog once for a fox."""
    found = confusion(np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 0, 1, 2, 2]), ["cat", "dog", "fox"])
    assert found.pairs() == [(0, 1, 2), (1, 2, 1)]
    assert found.pairs(1) == [(0, 1, 2)]
    assert pair_words(found, *found.pairs()[0]) == "cat taken for dog: 2 of 3 (66.7 %)"
    classes, matrix = class_grid(found), matrix_grid(found)
    assert classes.titles == ["Class", "Precision", "Recall", "Examples", "Answers"]
    assert [cell.text for cell in classes.rows[0]] == ["cat", "100.0 %", "33.3 %", "3", "1"]
    assert matrix.titles[1:] == ["cat", "dog", "fox"]
    assert [cell.text for cell in matrix.rows[0]] == ["cat", "1", "2", "·"]
    assert [cell.best for cell in matrix.rows[0]] == [False, True, False, False]
    assert confusion(np.array([0, 1]), np.array([0, 1]), ["a", "b"]).pairs() == []


def test_of_many_classes_the_worst_are_listed() -> None:
    answers = (labels := np.arange(150).repeat(2)).copy()
    answers[[0, 1, 7]] = 149
    rows = class_grid(confusion(labels, answers, [f"class {k}" for k in range(150)])).rows
    assert (len(rows), [row[0].text for row in rows[:2]]) == (100, ["class 0", "class 3"])


def test_refinement_shows_halt_value_truth_and_the_start_from_uniform(ric: RunRecord) -> None:
    examples = ric.examples
    image, belief, value = refinement_figure(ric, rows=[3]).axes
    halt, label = int(examples.halt_step[3]), examples.labels[3]
    assert image.get_title() == f"true class: {ric.class_names[label]}"
    assert belief.lines[0].get_xdata()[0] == halt
    assert f"{halt} step" in belief.get_title()
    dot = value.lines[-1]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (halt, examples.values[halt, 3])
    assert dot.get_ydata()[0] < 0
    heights = {int(x): y for x, y in belief.collections[0].get_paths()[0].vertices if y > 0}
    assert heights[0] == pytest.approx(0.1)
    assert heights[7] == pytest.approx(float(np.exp(examples.log_beliefs[6, 3, label])))


def test_the_value_is_held_against_the_runs_own_threshold(ric: RunRecord) -> None:
    early = [int(ric.examples.halt_step.argmin())]
    for threshold in (None, 0.05, -0.2):
        method = {"name": "ric"} | ({} if threshold is None else {"halt_threshold": threshold})
        value = refinement_figure(replace(ric, config={**ric.config, "method": method}), rows=early).axes[2]
        assert value.lines[0].get_ydata()[0] == (threshold or 0)


def test_without_a_threshold_the_values_set_the_scale(ric: RunRecord) -> None:
    """A run that always takes all steps: no line of a threshold, and no dot where the value falls below it."""
    method = {"name": "ric", "halt_threshold": NEVER}
    run = replace(ric, config={**ric.config, "method": method})
    value = refinement_figure(run, rows=[3]).axes[2]
    curves = np.concatenate([line.get_ydata() for line in value.lines if len(line.get_xdata()) > 2])
    assert value.get_ylim()[0] > curves.min() - 1
    assert len(value.lines) == len(refinement_figure(ric, rows=[3]).axes[2].lines) - 2
    assert len(value.collections) == 0


def test_telling_rows_end_with_a_wrong_one(ric: RunRecord) -> None:
    examples = ric.examples
    rows = telling_rows(examples)
    assert (examples.answers[rows] == examples.labels[rows]).tolist() == [True, True, True, False]
    first = {name: getattr(examples, name)[:1] for name in ("inputs", "labels", "halt_step", "kind")}
    one = replace(examples, **first, log_beliefs=examples.log_beliefs[:, :1], values=None)
    assert telling_rows(one) == [0]
    assert telling_rows(replace(one, labels=(one.answers + 1) % 10)) == [0]
    assert [leading_rival(np.array([0.5, 0.3, 0.2]), label) for label in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(("method", "tabular"), [("ric", True), ("ric", False), ("act", True), ("supervised", False)])
def test_refinement_of_every_kind(make_run: Callable[..., Path], tabular: bool, method: str) -> None:
    names = ["$x^{", "a\nb", "x" * 40, *"3456789"]
    run = read_run(make_run(method=method, tabular=tabular, class_names=names))
    assert len(refinement_figure(run).axes) == (12 if method == "ric" else 8)
    with refusal("examples.npz"):
        refinement_figure(replace(run, examples=None))


def decoded(uri: str) -> tuple[str, Image.Image]:
    head, _, content = uri.partition(";base64,")
    return head, Image.open(io.BytesIO(base64.b64decode(content)))


def test_small_images_keep_every_pixel_and_photographs_are_small() -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    head, image = decoded(data_uri(pixels))
    assert head == "data:image/png"
    np.testing.assert_array_equal(np.asarray(image), pixels.transpose(1, 2, 0))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 240, 160), dtype=np.uint8)
    head, image = decoded(data_uri(pixels))
    assert (head, image.size) == ("data:image/jpeg", (SIDE * 160 // 240, SIDE))
    assert len(data_uri(pixels)) < 12_000  # noise compresses worst


def test_grey_runs_from_black_to_white() -> None:
    image = np.asarray(small_image(np.array([[[0, 8], [12, 16]]], dtype=np.uint8)))
    assert image.tolist() == [[0, 127], [191, 255]]
    assert np.asarray(small_image(np.full((1, 2, 2), 7, dtype=np.uint8))).tolist() == [[0, 0], [0, 0]]


def with_columns(folder: Path, inputs: np.ndarray, columns: Columns) -> RunRecord:
    """A run of a table whose stored examples have these inputs."""
    header = json.loads((folder / "config.json").read_text())
    header["data"]["columns"] = columns.to_json()
    (folder / "config.json").write_text(json.dumps(header))
    with np.load(folder / "examples.npz") as kept:
        arrays = dict(kept)
    rows = np.broadcast_to(inputs, (len(arrays["y"]), inputs.shape[-1])).astype(np.float32)
    np.savez(folder / "examples.npz", **arrays | {"x": rows})
    return read_run(folder)


def test_rows_of_a_table_are_shown_by_the_names_of_their_columns(make_run: Callable[..., Path]) -> None:
    numbers = [Number(f"<{name}>", 10.0, 2.0, flagged=name == "c") for name in "abcdef"]
    columns = Columns("y", (*numbers, Category("kind", ("fine", "coarse"), other=True)))
    row = np.array([[0.1, -3.0, 0.0, 1.0, 2.0, 0.3, -0.2, 0.0, 1.0, 0.0]])
    run = with_columns(make_run(tabular=True), row, columns)
    cells = [("<b>", "4"), ("<d>", "14"), ("kind", "coarse"), ("<e>", "10.6"), ("<f>", "9.6"), ("<a>", "10.2")]
    assert shown_cells(columns, row[0]) == cells
    assert shown_cells(None, row[0])[:3] == [("1", "0.1"), ("2", "-3"), ("3", "0")]
    assert shown_cells(columns, np.r_[row[0][:2], 5.0, row[0][3:]])[0] == ("<c>", "–")  # a missing number
    assert card(run, 0)["cells"] == cells
    assert "<dt>&lt;b&gt;</dt><dd>4</dd>" in section_html(group_seeds([run]), "gallery")
    assert "the 6 cells" in input_words(run)
    drawn = refinement_figure(run)
    assert "<b>: 4\n" in drawn.axes[0].texts[0].get_text()
    assert with_columns(run.path, row[:, 1:], columns).columns is None  # the number of columns differs


@pytest.mark.parametrize("named", [True, False])
def test_a_wide_table_is_drawn_as_soon_as_another(make_run: Callable[..., Path], named: bool) -> None:
    """It took 20 s with 5,000 columns, and over 100 s with 20,000."""
    columns = Columns("y", tuple(Number(f"column {n}", 0.0, 1.0, False) for n in range(5_000)))
    row = np.random.default_rng(0).normal(size=(1, 5_000))
    run = with_columns(make_run(tabular=True), row if named else row[:, 1:], columns)
    start = time.process_time()
    refinement_figure(run)
    page = section_html(group_seeds([run]), "gallery")
    assert time.process_time() - start < 10
    assert len(page) < 500_000
    assert ("the 6 cells" if named else "the first 6") in input_words(run)


@pytest.fixture
def leaver(make_run: Callable[..., Path]) -> RunGroup:
    return groups_of(add_costs(make_run("leaver")))[0]


def test_the_gallery_goes_from_the_first_exit_to_the_last(leaver: RunGroup) -> None:
    headings = re.findall(r"<h4>(.*?) <span", section_html([leaver], "gallery"))
    examples = leaver.first.examples
    assert examples is not None
    steps = sorted(set(examples.halt_step.tolist()))
    assert headings == ["All the way" if step == STEPS else f"Exit {step}" for step in steps]


def test_a_card_has_steps_and_compute(leaver: RunGroup) -> None:
    examples = leaver.first.examples
    assert examples is not None
    html = section_html([leaver], "gallery")
    for step in examples.halt_step.tolist():
        assert f"after {step} step{'s' * (step > 1)}, {5 * step}\N{NO-BREAK SPACE}% of compute" in html
