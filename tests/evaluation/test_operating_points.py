"""Thresholds for budgets, temperatures of exits, and what evaluation says of compute."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refusals import refusal
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation.choices import (
    choose_exit,
    choose_exit_temperatures,
    chosen_words,
    fit_exit_temperatures,
    fit_temperature,
)
from ricnet.evaluation.evaluate import report
from ricnet.evaluation.operating_points import operating_points, point_within, shortfall
from ricnet.evaluation.outcome import Outcome, Reading

COSTS = (0.25, 0.5, 1.0)


def outcome_of(beliefs: list[list[float]], values: list[list[float]], costs: tuple[float, ...] = COSTS) -> Outcome:
    """Of examples of class 0 of two: what is believed of it, step by step. The first values are never asked."""
    sure = torch.tensor(beliefs, dtype=torch.float64)
    v = torch.tensor([[9.0] * len(sure[0]), *values], dtype=torch.float64)
    path = Trajectory(torch.stack([sure, 1 - sure], -1).log(), halting_step(v), v, costs=costs)
    return Outcome.of(path, torch.zeros(len(sure[0]), dtype=torch.int64))


TWO = outcome_of([[0.4, 0.8], [0.6, 0.9], [0.9, 0.9]], [[2.0, 1.0], [1.6, 0.2]])
"""The lowest values so far are 2 and 1 after the first step, 1.6 and 0.2 after the second."""


def test_the_curve_of_two_examples_by_hand() -> None:
    """Going on after the first step costs an example 1/4, after the second 1/2, and each is half of the mean."""
    points = operating_points(TWO)
    assert [point.mean_cost for point in points] == [0.25, 0.375, 0.625, 0.75, 1.0]
    assert [point.halt_threshold for point in points] == [3.0, 1.8, 1.3, 0.6, -1.0]
    assert [point.accuracy for point in points] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert points[2].nll == pytest.approx(-(np.log(0.9) + np.log(0.8)) / 2)
    assert points[3].nll == pytest.approx(-np.log(0.9))


def test_without_a_value_the_threshold_is_one_on_what_is_in_doubt() -> None:
    """Of two examples 0.4 and 0.2 after the first step, 0.4 and 0.1 after the second; the last leaves nothing open."""
    sure = torch.tensor([[0.4, 0.8], [0.6, 0.9], [0.9, 0.9]], dtype=torch.float64)
    path = Trajectory(torch.stack([sure, 1 - sure], -1).log(), torch.tensor([3, 3]), costs=COSTS)
    outcome = Outcome.of(path, torch.zeros(2, dtype=torch.int64))
    points = operating_points(outcome)
    assert [point.mean_cost for point in points] == [0.25, 0.625, 0.75, 1.0]
    assert [point.halt_threshold for point in points] == pytest.approx([1.0, 0.3, 0.15, -1.0])
    assert Reading(halt_threshold=0.3).read(path).halt_step.tolist() == [3, 1]
    chosen = choose_exit(outcome, budget=0.7)
    assert (chosen.by_confidence, chosen.mean_cost) == (True, 0.625)


def test_the_surest_are_told_apart() -> None:
    """In single precision the confidence of all four is 1, and their doubt is from e^-20 to e^-26."""
    others = torch.tensor([-20.0, -22.0, -24.0, -26.0])
    path = Trajectory(torch.stack([torch.zeros(4), others], -1).expand(2, 4, 2), torch.full((4,), 2), costs=(0.5, 1.0))
    outcome = Outcome.of(path, torch.zeros(4, dtype=torch.int64))
    assert outcome.step_confidence.eq(1).all()
    assert [point.mean_cost for point in operating_points(outcome)] == [0.5, 0.625, 0.75, 0.875, 1.0]


@pytest.mark.parametrize(
    ("budget", "spent"), [(0.25, 0.25), (0.374, 0.25), (0.375, 0.375), (0.7, 0.625), (0.99, 0.75), (1.0, 1.0)]
)
def test_a_budget_is_spent_as_far_as_a_threshold_can(budget: float, spent: float) -> None:
    assert point_within(operating_points(TWO), budget).mean_cost == spent


@pytest.mark.parametrize("budget", [0.2, 0.0, -1.0, 1.01, float("nan")])
def test_no_threshold_spends_less_than_the_first_exit_or_more_than_everything(budget: float) -> None:
    with refusal("budget", 0.25):
        point_within(operating_points(TWO), budget)


def test_where_values_are_tied_nothing_lies_between_and_that_is_said() -> None:
    tied = outcome_of([[0.8, 0.7]] * 3, [[0.5, 0.5]] * 2)
    points = operating_points(tied)
    assert [point.mean_cost for point in points] == [0.25, 1.0]
    assert "only 0.250 of the budget of 0.6 is spent" in str(shortfall(point_within(points, 0.6).mean_cost, 0.6))
    assert shortfall(point_within(points, 0.28).mean_cost, 0.28) is None


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 60), st.booleans())
def test_each_point_is_what_its_threshold_does_and_no_other_threshold_spends_more_of_the_budget(
    seed: int, steps: int, n: int, coarse: bool
) -> None:
    """Against every threshold there is, written out in numpy; coarse values have many ties."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, (steps - 1, n))
    values = np.round(values) if coarse else values
    costs = np.cumsum(rng.uniform(0.1, 1, steps))
    costs = costs / costs[-1]
    beliefs = rng.uniform(0.05, 0.95, (steps, n))
    points = operating_points(outcome_of(beliefs.tolist(), values.tolist(), tuple(costs.tolist())))

    def halts(threshold: float) -> np.ndarray:
        return np.array([next((t for t in range(steps - 1) if values[t, i] < threshold), steps - 1) for i in range(n)])

    shares = [costs[halts(threshold)].mean() for threshold in (-np.inf, *np.unique(values), np.inf)]
    for point in points:
        stops = halts(point.halt_threshold)
        assert point.mean_cost == pytest.approx(costs[stops].mean())
        assert point.nll == pytest.approx(-np.log(beliefs[stops, range(n)]).mean())
        assert point.accuracy == pytest.approx((beliefs[stops, range(n)] > 0.5).mean())
    assert len(points) <= 41
    for budget in (costs[0], 0.25, 0.4, 0.5, 0.775, 1.0):
        if budget >= costs[0]:
            most = max(share for share in shares if share <= budget + 1e-9)
            assert point_within(points, float(budget)).mean_cost == pytest.approx(most)


def test_without_a_budget_the_cheapest_rule_that_loses_little_is_taken() -> None:
    """The second exit is as good as the last, the first is not. Six of forty are wrong."""
    wrong, right = [0.4] * 6, [0.9] * 34
    outcome = outcome_of([[0.3] * 40, wrong + right, wrong + right], [[1.0] * 40, [0.5] * 40])
    choice = choose_exit(outcome)
    assert (choice.mean_cost, choice.steps_before, choice.budget, choice.kept) == (0.5, 3, None, True)
    assert choice.nll == choice.nll_before
    assert choose_exit(outcome.take(slice(2, 40))).mean_cost == 1.0  # four mistakes are too few to choose by


def test_with_a_budget_the_threshold_that_spends_it_is_taken() -> None:
    choice = choose_exit(TWO, budget=0.7)
    assert (choice.halt_threshold, choice.max_steps, choice.mean_cost, choice.budget) == (1.3, 3, 0.625, 0.7)


def sharpened(n: int, scales: tuple[float, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Labels drawn from beliefs, which are then made too sharp, at each exit in another measure."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 4, generator=random, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=random).squeeze(1)
    return [(scale * logits).log_softmax(-1) for scale in scales], labels


def test_every_exit_has_a_temperature_near_that_of_its_own_beliefs() -> None:
    steps, labels = sharpened(4000, (4.0, 2.0, 1.0))
    fit = choose_exit_temperatures(steps, labels)
    alone = [fit_temperature(beliefs, labels) for beliefs in steps]
    assert fit.kept
    assert fit.temperature == pytest.approx(tuple(one.temperature for one in alone), rel=0.05)
    assert fit.temperature == fit_exit_temperatures(steps, labels).temperature
    assert fit.nll_before == pytest.approx(np.mean([one.nll_before for one in alone]))
    assert fit.nll_after == pytest.approx(np.mean([one.nll_after for one in alone]), abs=1e-3)


def test_the_temperatures_of_exits_are_kept_or_left_together() -> None:
    """One exit is a little too sharp, the others are calibrated: fitting them all does not help beyond chance."""
    steps, labels = sharpened(60, (1.05, 1.0, 1.0, 1.0))
    fit = choose_exit_temperatures(steps, labels)
    assert (fit.kept, fit.temperature) == (False, 1.0)
    assert isinstance(fit_exit_temperatures(steps, labels).temperature, tuple)


def test_each_step_is_tempered_by_its_own_and_a_shorter_path_by_the_first_ones() -> None:
    path = Trajectory(torch.randn(3, 2, 4).log_softmax(-1), torch.tensor([1, 3]), costs=COSTS)
    soft = path.tempered((1.0, 2.0, 4.0))
    for time, temperature in enumerate((1.0, 2.0, 4.0)):
        torch.testing.assert_close(soft.log_beliefs[time], (path.log_beliefs[time] / temperature).log_softmax(-1))
    torch.testing.assert_close(path.until(2).tempered((1.0, 2.0, 4.0)).log_beliefs, soft.log_beliefs[:2])


def test_an_evaluation_says_what_right_and_wrong_answers_cost() -> None:
    entry = report(TWO)  # both go all the way
    assert (entry["mean_cost"], entry["mean_cost_correct"], entry["mean_cost_wrong"]) == (1.0, 1.0, None)
    assert [row["cost"] for row in entry["per_step"]] == list(COSTS)
    mixed = outcome_of([[0.4, 0.8]] * 3, [[-1.0, 1.0], [-1.0, 1.0]])
    entry = report(mixed)
    assert (entry["mean_cost"], entry["mean_cost_correct"], entry["mean_cost_wrong"]) == (0.625, 1.0, 0.25)
    plain = report(outcome_of([[0.4, 0.8]] * 3, [[-1.0, 1.0], [-1.0, 1.0]], costs=()))
    assert not [key for key in plain if "cost" in key]
    assert "cost" not in plain["per_step"][0]


def test_outcomes_are_joined_with_what_steps_cost() -> None:
    joined = Outcome.join([TWO, TWO])
    assert joined.cost is not None
    assert joined.cost.tolist() == [1.0] * 4


def test_a_reading_may_stop_all_at_one_step() -> None:
    path = Trajectory(torch.randn(3, 2, 4).log_softmax(-1), torch.tensor([1, 3]), costs=COSTS)
    assert Reading(step=2).read(path).halt_step.tolist() == [2, 2]


def test_what_was_chosen_in_words() -> None:
    rule = {"max_steps": 3, "reached": True, "halt_threshold": 0.94, "n": 135, "nll": 0.07, "mean_steps": 1.6}
    rule |= {"nll_before": 0.02, "steps_before": 3.0, "mean_cost": 0.49, "by_confidence": False, "kept": True}
    ((free,), (bound,)) = (chosen_words({"fitted": {"halting": rule | {"budget": one}}}) for one in (None, 0.5))
    at = "halting: at V < 0.94, at most 3 steps; 0.490 of compute,"
    assert free == f"{at} NLL 0.0200 → 0.0700 on 135 validation examples"
    assert bound == f"{at} NLL 0.0700 on 135 validation examples"
    (whole,) = chosen_words({"fitted": {"halting": rule | {"kept": False}}})
    assert whole == (
        "halting: the whole network; no cheaper rule is shown to lose less than 0.01 NLL on 135 validation examples"
    )
