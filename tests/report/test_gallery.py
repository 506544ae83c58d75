import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from made_runs import groups_of, rewrite_arrays
from ricnet.evaluation.evaluate import KINDS
from ricnet.report.gallery import PAIR_EXAMPLES, gallery_html, mistakes_html, run_confusion
from ricnet.report.page import page_html
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, read_run
from ricnet.report.tables import class_grid, confusion, matrix_grid, pair_words


def gallery_of(run: RunRecord, **changes: object) -> str:
    return gallery_html([RunGroup("RIC", (replace(run, examples=replace(run.examples, **changes)),))])


def test_examples_stand_by_kind(ric: RunRecord) -> None:
    """Older files are called right or wrong and no more; nothing wrong is no row of mistakes."""
    answers, headings = ric.examples.answers, r"<h4>(\w+)"
    assert re.findall(headings, gallery_of(ric)) == ["Easy", "Hard", "Wrong"]
    assert re.findall(headings, gallery_of(ric, kind=None)) == ["Right", "Wrong"]
    perfect = gallery_of(ric, labels=answers, kind=np.arange(len(answers)) % 2)
    assert re.findall(headings, perfect) == ["Easy", "Hard"]
    assert "✗" not in perfect


def test_every_example_has_its_card(ric: RunRecord) -> None:
    """The first is easy; its belief begins at a tenth, so at 90 % of the height from the top."""
    examples, html = ric.examples, gallery_of(ric)
    count = int((examples.kind != KINDS.index("confused")).sum())  # those stand beside what they are taken for
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
    html = gallery_html(systems)
    assert (html.count("<details"), html.count(" open>")) == (3, 1)
    assert gallery_html([RunGroup("RIC", (replace(ric, examples=None),))]) == ""


def test_features_are_bars_and_names_are_escaped(make_run: Callable[..., Path]) -> None:
    (group,) = groups_of(make_run(tabular=True, class_names=['"><script>', *(f"<{k}>" for k in range(1, 10))]))
    html = gallery_html([group])
    assert html.count('class="input"') == html.count("<figcaption") > 10
    assert not re.search(r"<img|<script|<\d>", html)


def test_the_report_shows_what_is_confused_with_examples(make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(class_names=["zero", "<b>one</b>", *"cdefghij"]))
    found = run_confusion(run)
    assert found.counts.trace() / found.counts.sum() == run.test["accuracy"]
    page = page_html(group_seeds([run]))
    assert '<section id="mistakes">' in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page
    true, _, times = found.pairs()[0]
    assert f"{escape(found.names[true])} taken for" in page
    assert times >= found.pairs()[-1][2]
    kept = Counter(zip(run.examples.labels.tolist(), run.examples.answers.tolist(), strict=True))
    expected = sum(min(PAIR_EXAMPLES, kept[true, answer]) for true, answer, _ in found.pairs())
    assert expected > 0
    assert mistakes_html(group_seeds([run])).count('class="card"') == expected


def test_of_several_systems_each_has_its_own_mistakes(make_run: Callable[..., Path]) -> None:
    html = mistakes_html(groups_of(make_run("a"), make_run("b", method="supervised")))
    assert html.count("Precision and recall by class") == html.count("<details") == 2
    folder = make_run("other classes")
    rewrite_arrays(folder / "predictions.npz", test_labels=np.full(300, 99))
    assert run_confusion(read_run(folder)) is None
    (folder / "predictions.npz").unlink()
    assert mistakes_html(groups_of(folder)) == ""


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
    rows = confusion(labels, answers, [f"class {k}" for k in range(150)]).rows()
    assert (len(rows), rows[:2]) == (100, [0, 3])
