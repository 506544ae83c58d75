"""Decisions under costs, cost files, and weights for balanced accuracy and F1."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score

from ricnet.errors import RicnetError
from ricnet.evaluation.costs import Costs, costs_of, mean_cost, read_costs, target_score, tune_weights

NAMES = ("cat", "dog")


def test_the_decision_of_least_expected_cost_by_hand() -> None:
    costs = costs_of([[0, 5, 1], [1, 0, 1]], NAMES)
    beliefs = np.array([[0.1, 0.9], [0.3, 0.7], [0.9, 0.1], [0.5, 0.5]])
    np.testing.assert_allclose(costs.expected(beliefs)[:2], [[0.9, 0.5, 1], [0.7, 1.5, 1]])
    assert costs.decide(beliefs).tolist() == [1, 0, 0, 0]
    assert costs_of([[0, 5, 0.4], [1, 0, 0.4]], NAMES).decide(beliefs).tolist() == [2, 2, 0, 2]
    assert costs.decisions == ("cat", "dog", "unsure")
    found = mean_cost(costs, beliefs, np.array([1, 0, 0, 1]))
    assert (found.decided, found.most_likely, found.saved, found.n) == (0.25, 1.5, 1.25, 4)
    assert found.saved_error == pytest.approx(np.std([0, 5, 0, 0], ddof=1) / 2)


@given(st.integers(0, 1000), st.booleans())
def test_no_other_decision_is_expected_to_cost_less(seed: int, abstain: bool) -> None:
    rng = np.random.default_rng(seed)
    costs = costs_of(rng.normal(size=(4, 4 + abstain)), "abcd")
    beliefs = rng.dirichlet(np.ones(4), 20)
    for row, decided in zip(beliefs, costs.decide(beliefs), strict=True):
        expected = [sum(row[k] * costs.matrix[k, d] for k in range(4)) for d in range(4 + abstain)]
        assert expected[decided] <= min(expected) + 1e-12


def test_equal_costs_decide_for_the_most_likely_class() -> None:
    beliefs = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    assert (costs_of(1 - np.eye(3), "abc").decide(beliefs) == beliefs.argmax(1)).all()


def test_a_file_in_any_order_of_its_names(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text("true,abstain,dog,cat\n\ndog, 1,0,1\ncat,1,5,0\n")
    costs = read_costs(path, NAMES)
    assert costs.matrix.tolist() == [[0, 5, 1], [1, 0, 1]]
    path.write_bytes(b"\xef\xbb\xbf,cat,dog\r\ncat,0,2\r\ndog,3,0\r\n")  # as Excel writes it
    assert read_costs(path, NAMES).matrix.tolist() == [[0, 2], [3, 0]]
    assert read_costs(path, NAMES).decisions == NAMES


def test_a_class_may_be_called_abstain(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(",abstain,dog\nabstain,0,1\ndog,1,0\n")
    assert read_costs(path, ("dog", "abstain")).decisions == ("dog", "abstain")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no costs"),
        (",cat,dog\n", "holds no costs"),
        (",cat,wolf\ncat,0,1\ndog,1,0\n", "a column for 'wolf', which is not a class of the model; give cat, dog"),
        (",cat,dog\ncat,0,1\nwolf,1,0\n", "a row for 'wolf'"),
        (",cat,dog\ncat,0,1\n", "has no row for dog"),
        (",cat\ncat,0\ndog,1\n", "has no column for dog"),
        (",cat,dog\ncat,0,1\ndog,1,0\ndog,1,0\n", "has two rows for 'dog'"),
        (",cat,dog\ncat,0,one\ndog,1,0\n", "the cost of dog where cat is true is 'one'"),
        (",cat,dog\ncat,0,inf\ndog,1,0\n", "the cost of dog where cat is true is 'inf'"),
        (",cat,dog\ncat,0\ndog,1,0\n", "the cost of dog where cat is true is None"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(text)
    with pytest.raises(RicnetError, match=says):
        read_costs(path, NAMES)


def test_missing_or_binary_cost_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    with pytest.raises(RicnetError, match="does not exist"):
        read_costs(path, NAMES)
    path.write_bytes(b"\xff\x00\xfe\x9c")
    with pytest.raises(RicnetError, match="is not a CSV file of costs"):
        read_costs(path, NAMES)


@pytest.mark.parametrize(
    ("matrix", "says"),
    [([[0, 1]], "has shape"), ([[0, np.nan], [1, 0]], "not finite"), ([["a", 1], [1, 0]], "numbers")],
)
def test_bad_matrices_are_refused(matrix: list[list[float]], says: str) -> None:
    with pytest.raises(RicnetError, match=says):
        costs_of(matrix, NAMES)


@given(st.integers(0, 1000))
def test_targets_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, answers = np.append(rng.integers(0, 3, 40), range(3)), np.append(rng.integers(0, 3, 40), range(3))
    counts = np.zeros((3, 3))
    np.add.at(counts, (labels, answers), 1)
    assert target_score(counts, "balanced_accuracy") == pytest.approx(balanced_accuracy_score(labels, answers))
    assert target_score(counts, "macro_f1") == pytest.approx(f1_score(labels, answers, average="macro"))


def rare(seed: int, n: int = 800) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated beliefs; the second class is rare."""
    rng = np.random.default_rng(seed)
    chance = 1 / (1 + np.exp(3 - 1.5 * rng.normal(size=n)))
    return np.stack([1 - chance, chance], 1), (rng.random(n) < chance).astype(np.int64)


@pytest.mark.parametrize("target", ["balanced_accuracy", "macro_f1"])
def test_weights_for_a_rare_class_help_on_new_data(target: str) -> None:
    beliefs, labels = rare(0)
    found = tune_weights(beliefs, labels, target)
    assert found.kept
    assert found.weights[1] > found.weights[0]
    score = balanced_accuracy_score if target == "balanced_accuracy" else lambda *a: f1_score(*a, average="macro")
    new, truth = rare(1, 20_000)
    after = score(truth, (np.array(found.weights) * new).argmax(1))
    assert after > score(truth, new.argmax(1)) + 0.02
    assert after == pytest.approx(found.after, abs=0.05)  # cross-fitted: an honest estimate


def test_weights_for_balanced_accuracy_are_near_the_inverse_frequencies() -> None:
    """With calibrated beliefs argmax p_k / prior_k is optimal (Bayes)."""
    beliefs, labels = rare(2, 5_000)
    weights = tune_weights(beliefs, labels, "balanced_accuracy").weights
    assert weights[1] / weights[0] == pytest.approx((labels == 0).mean() / (labels == 1).mean(), rel=0.35)


def test_without_a_shown_gain_the_weights_stay_1() -> None:
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(20):
        beliefs = rng.dirichlet(np.ones(3), 60)
        labels = (beliefs.cumsum(1) < rng.random((60, 1))).sum(1).clip(max=2)
        found = tune_weights(beliefs, labels, "balanced_accuracy")
        kept += found.kept
        assert found.kept or found.weights == (1, 1, 1)
    assert kept <= 4


def test_a_class_that_does_not_occur_does_not_matter() -> None:
    beliefs, labels = rare(0, 200)
    found = tune_weights(np.concatenate([beliefs, np.zeros((200, 1))], 1), labels, "balanced_accuracy")
    assert np.isfinite(found.weights).all()
    assert isinstance(Costs(1 - np.eye(3), ("a", "b", "c")).decisions, tuple)
