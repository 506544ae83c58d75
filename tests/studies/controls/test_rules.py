import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricnet.errors import RicnetError
from ricnet.evaluation.predictions import Predictions
from ricnet.studies.controls.rules import COUNT, RULES, VALUE, by_count, by_value, cost, judge, threshold_for


def predictions(seed: int = 0, steps: int = 6, n: int = 300) -> Predictions:
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.uniform(0.2, 1, (steps, n)), axis=0)
    return Predictions(
        labels=rng.integers(4, size=n),
        log_beliefs=np.log(rng.dirichlet(np.ones(4), n)),
        halt_step=np.full(n, steps),
        cell_evaluations=np.full(n, steps),
        step_scores=np.log(confidence) * rng.choice([1, 3], n),
        step_confidence=confidence,
        step_correct=rng.random((steps, n)) < confidence,
        step_entropy=1 - confidence,
        values=rng.normal(0.5, 1, (steps, n)),
    )


def test_the_value_is_never_asked_before_the_first_step_and_stops_after_the_step_before() -> None:
    """V(s_1) = −9 is not asked; V(s_3) < 0 stops the first example after two steps; the second goes to the end."""
    values = np.array([[-9.0, -9.0], [1.0, 1.0], [-1.0, 0.0]])
    run = predictions(steps=3, n=2)
    run = Predictions(**{**vars(run), "values": values})
    np.testing.assert_array_equal(by_value(run, 0.0), [2, 3])
    assert cost(VALUE, run, np.array([2, 3])) == 3  # two steps and one look ahead; three steps
    assert cost(COUNT, run, np.array([2, 3])) == 2.5


def test_a_fraction_of_a_step_is_taken_by_that_share_of_the_examples() -> None:
    run = predictions(n=1000)
    assert by_count(run, 2.3).mean() == pytest.approx(2.3, abs=1e-3)
    assert set(by_count(run, 2.3)) == {2, 3}
    assert set(by_count(run, 99.0)) == {6}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(st.integers(0, 50), st.floats(2.2, 5.9))
def test_the_fitted_threshold_spends_the_budget_and_no_more(rule, seed: int, budget: float) -> None:
    run = predictions(seed)
    spent = cost(rule, run, rule.halt(run, threshold_for(rule, run, budget)))
    assert spent <= budget + 1e-9
    assert spent == pytest.approx(budget, abs=6 / 300 + 1e-9)  # one example more would overrun it


def test_answers_are_judged_at_each_examples_own_halt() -> None:
    right = np.array([[True, False, False], [False, True, True]])
    run = Predictions(**{**vars(predictions(steps=2, n=3)), "step_correct": right})
    found = judge(run, np.array([1, 2, 1]))
    chosen = [run.step_scores[0, 0], run.step_scores[1, 1], run.step_scores[0, 2]]
    assert found["nll"] == pytest.approx(-np.mean(chosen))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert (found["steps"], found["steps_right"], found["steps_wrong"]) == (pytest.approx(4 / 3), 1.5, 1)


def test_nobody_wrong_has_no_mean_steps() -> None:
    run = Predictions(**{**vars(predictions(steps=2, n=3)), "step_correct": np.ones((2, 3), dtype=bool)})
    assert judge(run, np.array([1, 2, 1]))["steps_wrong"] is None


def test_a_confidence_on_the_edge_of_a_bin_lies_in_the_lower_one() -> None:
    """float32's 7/15 is a little more; widened, it would be alone in the next bin and the ECE 0.49."""
    edge = {
        "step_confidence": np.array([[7 / 15, 0.45]], dtype=np.float32),
        "step_correct": np.array([[True, False]]),
    }
    found = judge(Predictions(**{**vars(predictions(steps=1, n=2)), **edge}), np.array([1, 1]))
    assert found["ece"] == pytest.approx(0.5 - (7 / 15 + 0.45) / 2)


def test_a_run_without_a_value_cannot_halt_by_it() -> None:
    run = predictions()
    with pytest.raises(RicnetError, match="no value function"):
        by_value(Predictions(**{**vars(run), "values": None}), 0.0)
