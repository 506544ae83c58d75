import re
from dataclasses import replace

import numpy as np
import pytest

from ricnet.evaluation.examples import Examples
from ricnet.report.gallery import gallery_html, rows_by_kind
from ricnet.report.runs import RunGroup, group_seeds, read_runs

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
