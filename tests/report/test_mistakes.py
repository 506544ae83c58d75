from collections import Counter
from html import escape

import numpy as np

from ricnet.report.mistakes import EXAMPLES, mistakes_html, run_confusion
from ricnet.report.page import page_html
from ricnet.report.runs import group_seeds, read_run, read_runs

from .conftest import MakeRun

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
    expected = sum(min(EXAMPLES, kept[true, answer]) for true, answer, _ in found.pairs())
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
