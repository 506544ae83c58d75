from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refusals import refusal
from ricnet.evaluation.evaluate import Outcome
from ricnet.report.runs import RunRecord
from ricnet_paper.halting import (
    COUNT,
    ITEM,
    RULES,
    VALUE,
    Rule,
    by_confidence,
    by_count,
    by_entropy,
    by_value,
    cost,
    scores,
    threshold_for,
)
from ricnet_paper.scales import SCALES

from .conftest import pick, record, scored, through_csv

SMOKE = SCALES["smoke"]
# Three steps, two examples. V(s_2) < 0 stops the first validation example after one step, nothing stops the second:
# with the look ahead that costs 2 and 3. On test data the first stops after two steps and the second after one.
VAL_VALUES = [[1, 1], [-1, 1], [1, 1]]
TEST_VALUES = [[-9, -9], [1, -0.5], [-0.5, 1]]
VAL_CONFIDENCE = [[0.6, 0.5], [0.7, 0.8], [0.9, 0.9]]
TEST_CONFIDENCE = [[0.85, 0.3], [0.9, 0.4], [0.95, 0.75]]
SCORES = [[-1, -2], [-0.5, -1], [-0.25, -0.5]]
RIGHT = [[False, True], [True, False], [True, True]]


def save(run: RunRecord, **values: list[list[float]]) -> RunRecord:
    arrays = {}
    for split, confidence in (("val", VAL_CONFIDENCE), ("test", TEST_CONFIDENCE)):
        arrays |= {
            f"{split}_labels": np.zeros(2, dtype=np.int64),
            f"{split}_log_beliefs": np.zeros((2, 2), dtype=np.float32),
            f"{split}_halt_step": np.full(2, 3),
            f"{split}_cell_evaluations": np.full(2, 3),
            f"{split}_step_scores": np.array(SCORES, dtype=np.float32),
            f"{split}_step_confidence": np.array(confidence, dtype=np.float32),
            f"{split}_step_correct": np.array(RIGHT),
            f"{split}_step_entropy": 1 - np.array(confidence, dtype=np.float32),
            f"{split}_values": np.array(values[split], dtype=np.float32),
        }
    np.savez(run.path / "predictions.npz", **arrays)
    return run


def found(rows: pd.DataFrame, rule: str) -> dict[str, float]:
    own = pick(rows, part="at equal cost", rule=rule)
    return dict(zip(own["measure"], own["mean"], strict=True))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    one = replace(SMOKE, seeds=(0,))
    mean_fed, sample_fed = ITEM.experiments(one)
    folder = tmp_path_factory.mktemp("runs")
    steps = {"mean_steps_correct": 4.0, "mean_steps_wrong": 6.0}
    run, other = (scored(record(folder / system, system), **steps) for system in ("ric", "ric-sampled-feedback"))
    save(run, val=VAL_VALUES, test=TEST_VALUES)
    return through_csv(ITEM.tabulate(one, {mean_fed: [run], sample_fed: [other]}), folder)


def test_the_value_halts_as_trained_and_pays_for_its_look_ahead(rows: pd.DataFrame) -> None:
    """At 0. A threshold fitted to its own cost on validation data would be −1, and stop no test example."""
    assert found(rows, "value") == {
        "accuracy": 1.0,
        "ece": pytest.approx((0.1 + 0.7) / 2),
        "nll": pytest.approx((0.5 + 2) / 2),
        "cost": 2.5,
        "steps": 1.5,
        "steps_right": 1.5,
        "steps_wrong": pytest.approx(np.nan, nan_ok=True),
    }


def test_others_are_fitted_on_validation_data_and_measured_on_test_data(rows: pd.DataFrame) -> None:
    """Confidence 0.8 takes 3 and 2 steps on validation data, the budget of 2.5; on test data 1 and 3."""
    for rule in ("confidence", "entropy"):
        own = found(rows, rule)
        assert (own["cost"], own["steps"], own["accuracy"], own["nll"]) == (2, 2, 0.5, 0.75)
        assert (own["steps_right"], own["steps_wrong"]) == (3, 1)
    own = found(rows, "fixed number of steps")
    assert (own["cost"], own["steps"], own["nll"]) == (2.5, 2.5, 0.5)


def test_frontiers_start_where_a_rule_can_and_end_at_the_horizon(rows: pd.DataFrame) -> None:
    for rule, least in (("value", 2), ("confidence", 1), ("fixed number of steps", 1)):
        costs = pick(rows, part="frontier", rule=rule, measure="cost")
        assert (len(costs), costs["budget"].min(), costs["budget"].max()) == (20, least, 3)
        assert costs["mean"].iloc[-1] == 3


def test_each_seed_has_its_own_budget(tmp_path: Path) -> None:
    """The value of the second seed stops no example: its budget is 3, that of the first 2.5."""
    mean_fed, sample_fed = ITEM.experiments(SMOKE)
    never = {"val": [[1, 1]] * 3, "test": [[1, 1]] * 3}
    runs = [
        scored(record(tmp_path / str(seed), seed=seed), mean_steps_correct=4, mean_steps_wrong=6) for seed in (0, 1)
    ]
    save(runs[0], val=VAL_VALUES, test=TEST_VALUES)
    save(runs[1], **never)
    rows = through_csv(ITEM.tabulate(SMOKE, {mean_fed: runs, sample_fed: []}), tmp_path)
    assert found(rows, "value")["cost"] == found(rows, "fixed number of steps")["cost"] == 2.75
    assert found(rows, "fixed number of steps")["nll"] == (0.5 + 0.375) / 2


def test_the_table_and_the_figure(rows: pd.DataFrame) -> None:
    text = ITEM.write(rows)["md"]
    assert "| value | 100.00 | 0.400 | 1.250 | 2.50 | 1.50 | 1.50 | – |" in text
    assert "| fixed number of steps | 100.00 |" in text
    assert "Scale smoke: conv, inputs 1 × 8 × 8, 12 epochs, preset fast, epoch by validation accuracy." in text
    figure = ITEM.draw(rows)
    star = next(line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2.5, 1.25)
    assert [bar.get_height() for bar in figure.axes[2].patches] == [4, 6, 4, 6]
    assert not figure.axes[0].collections  # no overlapping bands
    assert "Scale smoke" in figure.legends[0].get_title().get_text()


def predictions(seed: int = 0, steps: int = 6, n: int = 300) -> Outcome:
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.uniform(0.2, 1, (steps, n)), axis=0)
    arrays = {
        "labels": rng.integers(4, size=n),
        "log_beliefs": np.log(rng.dirichlet(np.ones(4), n)),
        "halt_step": np.full(n, steps),
        "cell_evaluations": np.full(n, steps),
        "step_scores": np.log(confidence) * rng.choice([1, 3], n),
        "step_confidence": confidence,
        "step_correct": rng.random((steps, n)) < confidence,
        "step_entropy": 1 - confidence,
        "values": rng.normal(0.5, 1, (steps, n)),
    }
    return Outcome(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def at(run: Outcome, halt: list[int]) -> dict[str, float | None]:
    """Scores if each example stops after these steps."""
    return scores(Rule("given", lambda *_: torch.tensor(halt), 0.0, 0.0, ("", "")), run, 0.0)


def test_the_value_is_never_asked_before_the_first_step_and_stops_after_the_step_before() -> None:
    """V(s_1) = −9 is not asked; V(s_3) < 0 stops the first example after two steps; the second goes to the end."""
    values = torch.tensor([[-9.0, -9.0], [1.0, 1.0], [-1.0, 0.0]])
    run = predictions(steps=3, n=2)
    run = replace(run, values=values)
    np.testing.assert_array_equal(by_value(run, 0.0), [2, 3])
    assert cost(VALUE, run, torch.tensor([2, 3])) == 3  # two steps and one look ahead; three steps
    assert cost(COUNT, run, torch.tensor([2, 3])) == 2.5


def test_a_belief_that_is_just_sure_enough_stops() -> None:
    run = predictions(steps=3, n=1)
    assert by_confidence(run, float(run.step_confidence[1, 0])).tolist() == [2]
    assert by_entropy(run, float(run.step_entropy[1, 0])).tolist() == [2]


def test_a_fraction_of_a_step_is_taken_by_that_share_of_the_examples() -> None:
    run = predictions(n=1000)
    assert by_count(run, 2.3).double().mean() == pytest.approx(2.3, abs=1e-3)
    assert set(by_count(run, 2.3).tolist()) == {2, 3}
    assert set(by_count(run, 99.0).tolist()) == {6}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(st.integers(0, 50), st.floats(2.2, 5.9))
def test_the_fitted_threshold_spends_the_budget_and_no_more(rule, seed: int, budget: float) -> None:
    run = predictions(seed)
    spent = cost(rule, run, rule.halt(run, threshold_for(rule, run, budget)))
    assert spent <= budget + 1e-9
    assert spent == pytest.approx(budget, abs=6 / 300 + 1e-9)  # one example more would overrun it


def test_answers_are_judged_at_each_examples_own_halt() -> None:
    right = torch.tensor([[True, False, False], [False, True, True]])
    run = replace(predictions(steps=2, n=3), step_correct=right)
    found = at(run, [1, 2, 1])
    chosen = [run.step_scores[0, 0], run.step_scores[1, 1], run.step_scores[0, 2]]
    assert found["nll"] == pytest.approx(-np.mean(chosen))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert (found["steps"], found["steps_right"], found["steps_wrong"]) == (pytest.approx(4 / 3), 1.5, 1)
    spotless = replace(run, step_correct=torch.ones(2, 3, dtype=torch.bool))
    assert at(spotless, [1, 2, 1])["steps_wrong"] is None


def test_a_confidence_on_the_edge_of_a_bin_lies_in_the_lower_one() -> None:
    """float32's 7/15 is a little more; widened, it would be alone in the next bin and the ECE 0.49."""
    confidence, correct = torch.tensor([[7 / 15, 0.45]]), torch.tensor([[True, False]])
    found = at(replace(predictions(steps=1, n=2), step_confidence=confidence, step_correct=correct), [1, 1])
    assert found["ece"] == pytest.approx(0.5 - (7 / 15 + 0.45) / 2)


def test_a_run_without_a_value_cannot_halt_by_it() -> None:
    run = predictions()
    with refusal("value function"):
        by_value(replace(run, values=None), 0.0)
