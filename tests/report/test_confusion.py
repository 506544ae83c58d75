import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from ricnet.report.confusion import class_rows, confusion, matrix_rows, pair_words


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
    titles, rows = class_rows(found)
    assert titles == ["Class", "Precision", "Recall", "Examples", "Answers"]
    assert [cell.text for cell in rows[0]] == ["cat", "100.0 %", "33.3 %", "3", "1"]
    titles, rows = matrix_rows(found)
    assert titles[1:] == ["cat", "dog", "fox"]
    assert [(cell.text, cell.best) for cell in rows[0]] == [("cat", False), ("1", True), ("2", False), ("·", False)]


def test_of_many_classes_the_worst_are_listed() -> None:
    labels = np.arange(150).repeat(2)
    answers = labels.copy()
    answers[[0, 1, 7]] = 149
    found = confusion(labels, answers, [f"class {k}" for k in range(150)])
    assert len(found.rows()) == 100
    assert found.rows()[:2] == [0, 3]


def test_no_mistakes_make_no_pairs() -> None:
    assert confusion(np.array([0, 1]), np.array([0, 1]), ["a", "b"]).pairs() == []
