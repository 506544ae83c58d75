import re
from collections import Counter
from dataclasses import replace
from html import escape

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from ricnet.evaluation.evaluate import Examples
from ricnet.report.examples import PAIR_EXAMPLES, gallery_html, mistakes_html, rows_by_kind, run_confusion
from ricnet.report.page import page_html
from ricnet.report.runs import RunGroup, group_seeds, read_run, read_runs
from ricnet.report.tables import class_grid, confusion, matrix_grid, pair_words

from .conftest import MakeRun


def examples() -> Examples:
    """Class 0 of two is true; the last two rows are wrong."""
    truth = np.array([[0.95, 0.1, 0.5, 0.4, 0.3], [0.95, 0.9, 0.8, 0.4, 0.1]])
    return Examples(
        inputs=np.zeros((5, 1, 2, 2), dtype=np.uint8),
        labels=np.zeros(5, dtype=int),
        log_beliefs=np.log(np.stack([truth, 1 - truth], axis=-1)),
        values=None,
        halt_step=np.array([1, 2, 2, 2, 2]),
        kind=np.array([0, 0, 0, 2, 2]),
    )


def test_kinds_are_those_that_were_stored() -> None:
    assert rows_by_kind(examples()) == {"easy": [0, 1, 2], "hard": [], "wrong": [3, 4], "confused": []}


def test_older_files_are_called_right_or_wrong_and_no_more(systems: list[RunGroup]) -> None:
    assert rows_by_kind(replace(examples(), kind=None)) == {"right": [0, 1, 2], "wrong": [3, 4]}
    ric = systems[0].first
    assert ric.examples is not None
    html = gallery_html([RunGroup("RIC", (replace(ric, examples=replace(ric.examples, kind=None)),))])
    assert re.findall(r"<h4>(.*)</h4>", html) == ["Right", "Wrong"]


def test_nothing_wrong_is_no_row_of_mistakes(systems: list[RunGroup]) -> None:
    ric = systems[0].first
    assert ric.examples is not None
    perfect = replace(ric, examples=replace(ric.examples, labels=ric.examples.answers, kind=np.arange(14) % 2))
    html = gallery_html([RunGroup("RIC", (perfect,))])
    assert re.findall(r"<h4>(\w+) ", html) == ["Easy", "Hard"]
    assert "✗" not in html


def test_every_example_has_its_card(systems: list[RunGroup]) -> None:
    ric = systems[0].first
    assert ric.examples is not None
    html = gallery_html([RunGroup("RIC", (ric,))])
    assert html.count("<figure") == html.count("<figcaption") == len(ric.examples.labels)
    assert html.count('src="data:image/png;base64,') == len(ric.examples.labels)
    wrong = int(np.flatnonzero(ric.examples.answers != ric.examples.labels)[0])
    answer, truth = ric.examples.answers[wrong], ric.examples.labels[wrong]
    assert f"✗ {answer}</b>, truly {truth}<br>" in html
    assert "<details" not in html


def test_belief_is_drawn_from_uniform_to_the_end_and_the_halt_marked(systems: list[RunGroup]) -> None:
    """The first card is easy; its belief begins at a tenth, so at 90 % of the height from the top."""
    ric = systems[0].first
    assert ric.examples is not None
    row = rows_by_kind(ric.examples)["easy"][0]
    html = gallery_html([RunGroup("RIC", (ric,))])
    path = re.search(r'class="true" d="M0 48L([^z]*)L100 48z"', html)
    assert path is not None
    heights = [float(point.split()[1]) for point in path[1].split("L")]
    belief = np.exp(ric.examples.log_beliefs[:, row, ric.examples.labels[row]])
    assert heights == pytest.approx([48 * 0.9, *(48 * (1 - belief))], abs=0.06)
    halt = re.search(r'class="halt" d="M([\d.]+) 0V48"', html)
    assert halt is not None
    assert float(halt[1]) == pytest.approx(100 * np.sqrt(ric.examples.halt_step[row] / 20), abs=0.06)


def test_several_systems_are_folded_but_the_first(systems: list[RunGroup]) -> None:
    html = gallery_html(systems)
    assert html.count("<details") == 3
    assert html.count(" open>") == 1
    bare = [RunGroup("RIC", (replace(systems[0].first, examples=None),))]
    assert gallery_html(bare) == ""


def test_features_are_bars_and_names_are_escaped(make_run: MakeRun) -> None:
    names = ['"><script>', *(f"<{k}>" for k in range(1, 10))]
    html = gallery_html(group_seeds(read_runs([make_run(tabular=True, class_names=names)])))
    assert "<img" not in html
    assert html.count('class="input"') == 14
    assert not re.search(r"<script|<\d>", html)


NAMES = ["zero", "<b>one</b>", *"cdefghij"]
"""One of them from somebody with a sense of humour."""


def test_the_report_shows_what_is_confused_with_examples(make_run: MakeRun) -> None:
    run = read_run(make_run(class_names=NAMES))
    found = run_confusion(run)
    assert found is not None
    assert found.counts.trace() / found.counts.sum() == run.test["accuracy"]
    page = page_html(group_seeds([run]))
    assert '<section id="mistakes">' in page
    assert "Confused most" in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page
    true, _, times = found.pairs()[0]
    assert f"{escape(found.names[true])} taken for" in page
    assert times >= found.pairs()[-1][2]
    assert run.examples is not None
    kept = Counter(zip(run.examples.labels.tolist(), run.examples.answers.tolist(), strict=True))
    expected = sum(min(PAIR_EXAMPLES, kept[true, answer]) for true, answer, _ in found.pairs())
    assert expected > 0
    assert mistakes_html(group_seeds([run])).count('class="card"') == expected


def test_of_several_systems_each_has_its_own(make_run: MakeRun) -> None:
    html = mistakes_html(group_seeds(read_runs([make_run("a"), make_run("b", method="supervised")])))
    assert html.count("Precision and recall by class") == 2
    assert html.count("<details") == 2


def test_predictions_of_other_classes_are_left_out(make_run: MakeRun) -> None:
    folder = make_run()
    with np.load(folder / "predictions.npz") as stored:
        arrays = dict(stored)
    arrays["test_labels"] = arrays["test_labels"] + 90
    np.savez(folder / "predictions.npz", **arrays)
    assert run_confusion(read_run(folder)) is None
    (folder / "predictions.npz").unlink()
    assert mistakes_html(group_seeds([read_run(folder)])) == ""


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
    assert [(cell.text, cell.best) for cell in matrix.rows[0]] == [
        ("cat", False),
        ("1", True),
        ("2", False),
        ("·", False),
    ]


def test_of_many_classes_the_worst_are_listed() -> None:
    labels = np.arange(150).repeat(2)
    answers = labels.copy()
    answers[[0, 1, 7]] = 149
    found = confusion(labels, answers, [f"class {k}" for k in range(150)])
    assert len(found.rows()) == 100
    assert found.rows()[:2] == [0, 3]


def test_no_mistakes_make_no_pairs() -> None:
    assert confusion(np.array([0, 1]), np.array([0, 1]), ["a", "b"]).pairs() == []
