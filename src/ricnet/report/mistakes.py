"""The section about mistakes: which classes are confused, with stored examples, and precision and recall by class.

Of several systems each has its own, the first stands open. A run without predictions.npz has none.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from ricnet.evaluation.predictions import read_predictions
from ricnet.report.confusion import MOST_CLASSES, Confusion, class_rows, confusion, matrix_rows, pair_words
from ricnet.report.gallery import card_html
from ricnet.report.markup import details, paragraph, table
from ricnet.report.runs import RunGroup, RunRecord, is_archive

EXAMPLES = 3
"""Of a pair."""


def mistakes_html(groups: Sequence[RunGroup]) -> str:
    found = {group.label: made for group in groups if (made := run_confusion(group.first)) is not None}
    shown = [group for group in groups if group.label in found]
    if len(shown) == 1:
        return _mistakes(shown[0].first, found[shown[0].label])
    return "\n".join(
        details(group.label, "", _mistakes(group.first, found[group.label]), is_open=group is shown[0])
        for group in shown
    )


def run_confusion(run: RunRecord) -> Confusion | None:
    """On the test set; None where the run did not keep its answers, or they are not of its classes."""
    if is_archive(run.path) or not (run.path / "predictions.npz").is_file():
        return None
    kept, classes = read_predictions(run.path), len(run.class_names)
    fit = kept.log_beliefs.shape[1:] == (classes,) and kept.labels.dtype.kind in "iu" and len(kept.labels)
    if not fit or kept.labels.min() < 0 or kept.labels.max() >= classes:
        return None
    return confusion(kept.labels, kept.log_beliefs.argmax(axis=1), run.class_names)


def _mistakes(run: RunRecord, found: Confusion) -> str:
    parts = [_pairs(run, found)]
    if len(found.names) <= MOST_CLASSES:
        titles, rows = matrix_rows(found)
        parts.append(table("Confusion matrix", titles, [False] + [True] * len(found.names), rows))
    titles, rows = class_rows(found)
    left = len(found.names) - len(rows)
    parts.append(table("Precision and recall by class", titles, [False, True, True, True, True], rows))
    parts.append(paragraph(f"The {left:,} classes that are found more often are left out." if left else "", "note"))
    return "\n".join(filter(None, parts))


def _pairs(run: RunRecord, found: Confusion) -> str:
    pairs = found.pairs()
    if not pairs:
        return paragraph("No test example is taken for another class.")
    items = [f"<li>{escape(pair_words(found, *pair))}{_examples(run, *pair[:2])}</li>" for pair in pairs]
    return f"<h4>Confused most</h4>\n<ol>{''.join(items)}</ol>"


def _examples(run: RunRecord, true: int, answer: int) -> str:
    """Stored ones, where there are any."""
    if run.examples is None:
        return ""
    rows = np.flatnonzero((run.examples.labels == true) & (run.examples.answers == answer))[:EXAMPLES]
    cards = "\n".join(card_html(run, int(row)) for row in rows)
    return f'<div class="gallery">{cards}</div>' if len(rows) else ""
