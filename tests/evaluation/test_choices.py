"""Choices on validation data: temperature, halting rule, exits; by hand, and by simulation of many validation sets."""

import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from refusals import refusal
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation import choices
from ricnet.evaluation.choices import (
    Gain,
    HaltChoice,
    best_alternative,
    calibrated_scores,
    choose_exit,
    choose_exit_temperatures,
    choose_halt,
    choose_temperature,
    chosen_words,
    fit_exit_temperatures,
    fit_temperature,
    operating_points,
    point_within,
    rule_words,
    shortfall,
)
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading, report


def beliefs(seed: int, scale: float, n: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from softmax(z); beliefs are softmax(scale · z), so the right temperature is near `scale`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, 5, generator=generator).double()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return (scale * logits).log_softmax(-1), labels


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(0.2, 8))
def test_it_finds_the_minimum_that_scipy_finds(seed: int, scale: float) -> None:
    log_beliefs, labels = beliefs(seed, scale)

    def nll(log_temperature: float) -> float:
        scaled = (log_beliefs / math.exp(log_temperature)).log_softmax(-1)
        return -float(scaled[range(len(labels)), labels].mean())

    best = optimize.minimize_scalar(nll, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    fit = fit_temperature(log_beliefs, labels)
    assert fit.found
    assert fit.temperature == pytest.approx(math.exp(best.x), rel=1e-4)
    assert fit.nll_after == pytest.approx(best.fun, abs=1e-10)
    assert fit.nll_after <= fit.nll_before + 1e-12
    assert fit.nll_before == pytest.approx(nll(0.0))


def test_it_undoes_a_known_sharpening() -> None:
    log_beliefs, labels = beliefs(0, 3.0, n=20_000)
    assert fit_temperature(log_beliefs, labels).temperature == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("labels", [[0, 1], [1, 0]])
def test_where_no_answer_or_every_answer_is_wrong_nothing_is_changed(labels: list[int]) -> None:
    """The NLL falls monotonically as T goes to 0, or to infinity, so no temperature is best."""
    given_rows = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor(labels)
    fit = fit_temperature(*given_rows)
    assert (fit.temperature, fit.found, fit.nll_after) == (1.0, False, fit.nll_before)
    chosen = choose_temperature(*(column.repeat_interleave(20, 0) for column in given_rows)).temperature
    assert chosen == 1


def test_an_impossible_class_does_not_spoil_the_fit() -> None:
    log_beliefs = torch.tensor([[0.6, 0.4, 0.0], [0.7, 0.3, 0.0], [0.55, 0.45, 0.0]]).log()
    fit = fit_temperature(log_beliefs, torch.tensor([0, 0, 1]))
    assert fit.found
    assert math.isfinite(fit.nll_after)


def test_a_tempered_trajectory_halts_where_it_did_and_answers_the_same_class() -> None:
    path = Trajectory(torch.randn(3, 4, 5).log_softmax(-1), torch.tensor([1, 2, 3, 3]), torch.randn(3, 4))
    soft = path.tempered(2.0)
    assert torch.equal(soft.halt_step, path.halt_step)
    assert torch.equal(soft.final.argmax(-1), path.final.argmax(-1))
    expected = path.log_beliefs.exp().sqrt()
    torch.testing.assert_close(soft.log_beliefs.exp(), expected / expected.sum(-1, keepdim=True))


def test_a_temperature_that_helps_is_taken_and_shrunk_towards_1() -> None:
    rows = beliefs(0, 4.0, 100)
    fit = choose_temperature(*rows)
    assert fit.kept
    assert 1 < fit.temperature < fit_temperature(*rows).temperature
    assert fit.gain is not None
    assert 0 < fit.gain < fit.nll_before - fit.nll_after  # on examples it was fitted to it looks better


def test_shrinkage_is_that_of_twenty_calibrated_examples() -> None:
    """The same minimum as scipy finds for the NLL plus 20 / n times the cross-entropy of the untempered beliefs."""
    log_beliefs, labels = beliefs(3, 3.0, 80)

    def penalised(log_temperature: float) -> float:
        scaled = (log_beliefs / math.exp(log_temperature)).log_softmax(-1)
        own = -(log_beliefs.exp() * scaled).sum(-1).mean()
        return float(-scaled[range(80), labels].mean() + 20 / 80 * own)

    best = optimize.minimize_scalar(penalised, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    assert choose_temperature(log_beliefs, labels).temperature == pytest.approx(math.exp(best.x), rel=1e-4)


def test_gains_are_measured_on_the_fold_that_was_left_out() -> None:
    log_beliefs, labels = beliefs(1, 3.0, 50)
    gains = [0.0] * 50
    for fold in range(5):
        seen = [i for i in range(50) if i % 5 != fold]
        t = 1 / choices._shrunk_beta([log_beliefs[seen]], labels[seen], 1.0)
        for i in range(fold, 50, 5):
            gains[i] = float((log_beliefs[i] / t).log_softmax(-1)[labels[i]] - log_beliefs[i, labels[i]])
    fit = choose_temperature(log_beliefs, labels)
    assert fit.gain == pytest.approx(float(np.mean(gains)), abs=1e-9)
    assert fit.gain_error == pytest.approx(float(np.std(gains, ddof=1) / 50**0.5), abs=1e-9)


def test_without_mistakes_or_with_few_rows_nothing_is_chosen() -> None:
    """With 135 right answers nothing shows what a sharper belief costs on a wrong one."""
    sure = torch.tensor([[0.8, 0.2]]).log().repeat(135, 1)
    labels = torch.zeros(135, dtype=torch.int64)
    assert choose_temperature(sure, labels).temperature == 1
    labels[:4] = 1
    assert choose_temperature(sure, labels).temperature == 1
    labels[:5] = 1
    assert choose_temperature(sure, labels).temperature < 1
    assert choose_temperature(*(part[:29] for part in beliefs(0, 9.0))).temperature == 1
    assert choose_temperature(*(part[:40] for part in beliefs(0, 9.0))).temperature > 1


def test_exits_share_a_common_temperature() -> None:
    """Three exits, each three times too sharp, get one temperature. If one is too flat, each gets its own, shrunk."""
    (first, labels), second, third = beliefs(0, 3.0, 400), *(beliefs(0, 3.0, 400)[0] for _ in range(2))
    common = choose_exit_temperatures([first, second, third], labels)
    assert isinstance(common.temperature, float)
    assert common.temperature == pytest.approx(3.0, rel=0.2)
    apart = choose_exit_temperatures([first, first / 9, first], labels).temperature
    assert isinstance(apart, tuple)
    alone = [fit_temperature(each.log_softmax(-1), labels).temperature for each in (first, first / 9)]
    assert alone[1] < apart[1] < apart[0] < alone[0]  # both are drawn towards the common one


def test_the_nll_after_a_temperature_does_not_depend_on_how_sharp_beliefs_are() -> None:
    log_beliefs, labels = beliefs(0, 1.0, 2000)
    for scale in (0.5, 2.0, 4.0):
        sharpened = (scale * log_beliefs).log_softmax(-1)
        after, before = (float(calibrated_scores(each, labels).mean()) for each in (sharpened, log_beliefs))
        assert after == pytest.approx(before, abs=0.002)


def test_about_as_good_is_within_a_standard_error_of_the_paired_difference() -> None:
    best = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    assert choices.is_as_good(best - torch.tensor([0.1, -0.1, 0.1, -0.05]), best)
    assert not choices.is_as_good(best - 0.01, best)  # slightly worse for every example
    assert choices.is_as_good(best, best)


def outcome_of(beliefs: list[list[float]], values: list[list[float]]) -> Outcome:
    """Outcome of two-class examples with label 0, from p(class 0) at each step."""
    sure = torch.tensor(beliefs, dtype=torch.float64)
    path = torch.stack([sure, 1 - sure], -1).log()
    v = torch.tensor(values, dtype=torch.float64)
    return Outcome.of(Trajectory(path, halting_step(v), v), torch.zeros(len(beliefs[0]), dtype=torch.int64))


def test_where_later_steps_are_worse_it_stops_after_the_first() -> None:
    """The value predicts a gain at every step where there is none; six examples are wrong at the end."""
    wrong = [0.4] * 6
    last = np.random.default_rng(0).uniform(0.5, 0.6, 34).tolist()
    choice = choose_halt(outcome_of([[0.7] * 40, [0.6] * 40, wrong + last], [[1.0] * 40] * 3))
    assert (choice.max_steps, choice.mean_steps, choice.steps_before, choice.kept) == (1, 1, 3, True)
    assert choice.nll == pytest.approx(-np.log(0.7))
    assert choice.nll_before == pytest.approx(-np.log(wrong + last).mean())
    assert choice.gain == pytest.approx(choice.nll_before - choice.nll)


def test_a_threshold_that_stops_in_time_is_taken() -> None:
    """V is .05 where further steps harm and 1 where they help, so V < 0.1 separates them."""
    n = 40
    harmed = [i % 2 == 0 for i in range(n)]
    rng = np.random.default_rng(0)
    first = [0.8 if h else 0.3 for h in harmed]
    last = [rng.uniform(0.2, 0.3) if h else rng.uniform(0.8, 0.9) for h in harmed]
    values = [[1.0] * n, [0.05 if h else 1.0 for h in harmed]]
    choice = choose_halt(outcome_of([first, last], values))
    assert (choice.halt_threshold, choice.max_steps, choice.mean_steps) == (0.1, 2, 1.5)


def test_the_papers_rule_is_kept_unless_another_is_shown_to_be_better() -> None:
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.3, 0.9, (4, 60))
    values = rng.normal(0, 0.2, (4, 60))
    choice = choose_halt(outcome_of(scores.tolist(), values.tolist()))
    assert (choice.halt_threshold, choice.max_steps, choice.kept, choice.gain) == (0.0, 4, False, None)
    assert choice.nll == choice.nll_before


def test_bounds_and_quantiles_are_those_of_student() -> None:
    gain = Gain(0.2, 0.1, 30)
    assert gain.lower_bound == pytest.approx(0.2 - 1.699 * 0.1, abs=1e-4)
    assert gain.is_shown(1)  # 2 > 1.311
    assert not gain.is_shown(5)  # 2 < 2.150
    assert best_alternative([torch.tensor([0.0, 0.1, -0.1]), torch.tensor([0.5, 0.6, 0.4])])[0] == 1


def simulate(trials: int, choose: Callable[[torch.Generator], bool]) -> float:
    """Share of trials in which something was chosen."""
    generator = torch.Generator().manual_seed(0)
    return sum(choose(generator) for _ in range(trials)) / trials


def noisy_steps(generator: torch.Generator, n: int, gains: dict[int, float], steps: int = 6) -> HaltChoice:
    """Skewed log-scores of some 25 % wrong answers; all rules are alike but for what `gains`, in standard errors, adds
    to single steps: step 1 is one rule's alone, the last step all other rules'."""
    base = torch.randn(n, generator=generator).double() - 0.5
    noise = -torch.empty(steps, n).exponential_(generator=generator).double() + 1
    for step, gain in gains.items():
        noise[step - 1] += gain * math.sqrt(2 / n)
    values = torch.randn(steps, n, generator=generator).double()
    logits = base + 0.7 * noise
    path = torch.stack([torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)], -1)
    outcome = Outcome.of(Trajectory(path, halting_step(values), values), torch.zeros(n, dtype=torch.int64))
    return choose_halt(outcome)


def noisy_temperature(generator: torch.Generator, n: int, scale: float) -> bool:
    logits = 1.5 * torch.randn(n, 5, generator=generator).double()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return choose_temperature((scale * logits).log_softmax(-1), labels).kept


SIZES = [30, 100, pytest.param(1000, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("n", SIZES)
def test_simulation_noise_replaces_a_default_in_at_most_a_tenth_of_all_trials(n: int) -> None:
    """Within two standard errors of so many trials."""
    trials = 150 if n < 1000 else 400
    slack = 2 * math.sqrt(0.1 * 0.9 / trials)
    assert simulate(trials, lambda g: noisy_steps(g, n, {}).kept) <= 0.1 + slack
    assert simulate(trials, lambda g: noisy_temperature(g, n, 1.0)) <= 0.1 + slack


SHARPNESS = {30: 15.2, 100: 2.40, 1000: 1.263, 5000: 1.11}
"""Factors by which beliefs are too sharp so that undoing it gains three standard errors (found by bisection)."""


@pytest.mark.parametrize("n", SIZES)
def test_simulation_real_gains_are_taken_in_four_of_five_trials(n: int) -> None:
    """A temperature worth three standard errors; a single step worth five, as one of five alternatives."""
    trials = 60 if n < 1000 else 150
    slack = 2 * math.sqrt(0.8 * 0.2 / trials)
    assert simulate(trials, lambda g: noisy_temperature(g, n, SHARPNESS[n])) >= 0.8 - slack
    taken = simulate(trials, lambda g: noisy_steps(g, n, {1: 7.0}).max_steps == 1)
    assert taken >= 0.8 - slack


def two_exits(generator: torch.Generator, n: int, loss: float) -> HaltChoice:
    """A first exit whose log-scores are worse by `loss` nats on average, with noise, and a value that is noise."""
    last = torch.randn(n, generator=generator).double() + 1
    scores = torch.nn.functional.logsigmoid(last)
    early = scores - loss + 0.1 * torch.randn(n, generator=generator).double()
    both = torch.stack([early.clamp(max=-1e-3), scores])
    path = torch.stack([both, torch.log1p(-both.exp())], -1)
    values = torch.randn(2, n, generator=generator).double()
    trajectory = Trajectory(path, halting_step(values), values, costs=(0.4, 1.0))
    return choose_exit(Outcome.of(trajectory, torch.zeros(n, dtype=torch.int64)))


@pytest.mark.parametrize("n", SIZES[:3])
def test_simulation_a_cheaper_exit_that_loses_too_much_is_rarely_taken(n: int) -> None:
    """All examples by the first exit would lose .015: at most one wrong claim in twenty."""
    trials = 80
    taken = simulate(trials, lambda g: two_exits(g, n, 0.015).mean_cost <= 0.4 + 1e-6)
    assert taken <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


def test_a_cheaper_exit_that_loses_nothing_is_taken_with_enough_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    frugal = two_exits(generator, 3000, 0.0)
    assert frugal.kept
    assert frugal.mean_cost == pytest.approx(0.4)
    few = two_exits(generator, 60, 0.0)
    assert few.mean_cost is not None
    assert few.mean_cost > 0.7  # too few examples to show it for all


def test_temperatures_of_exits_are_shrunk_towards_the_common_one_not_towards_1() -> None:
    (first, labels), scale = beliefs(0, 4.0, 40), 0.5
    exits = [first, (scale * first).log_softmax(-1)]
    common = 1 / choices._shrunk_beta([each.double() for each in exits], labels, 1.0)
    expected = [1 / choices._shrunk_beta([each.double()], labels, 1 / common) for each in exits]
    assert choices.fit_exit_temperatures(exits, labels).temperature == pytest.approx(tuple(expected))
    towards_1 = [1 / choices._shrunk_beta([each.double()], labels, 1.0) for each in exits]
    assert expected[0] > towards_1[0] + 0.05


def test_exits_are_compared_with_the_whole_network_not_with_their_own_rule() -> None:
    """By V < 0 all would leave at once; the whole network is better."""
    values = -torch.ones(2, 40).double()
    sure = torch.tensor([[0.4], [0.8]]).double().expand(2, 40)
    path = torch.stack([sure, 1 - sure], -1).log()
    trajectory = Trajectory(path, halting_step(values), values, costs=(0.4, 1.0))
    choice = choose_exit(Outcome.of(trajectory, torch.zeros(40, dtype=torch.int64)))
    assert (choice.steps_before, choice.mean_cost) == (2, 1.0)
    assert choice.nll_before == pytest.approx(-np.log(0.8))


def test_thresholds_of_exits_are_fitted_without_the_fold_they_are_judged_on() -> None:
    """Equal to a second implementation; a threshold fitted on all examples gives other gains."""
    n = 10
    values = torch.arange(2.0 * n).reshape(2, n).double()
    scores = -torch.arange(2.0 * n).reshape(2, n).double() / 10 - 0.1
    path = torch.stack([scores, torch.log1p(-scores.exp())], -1)
    trajectory = Trajectory(path, halting_step(values), values, costs=(0.4, 1.0))
    outcome = Outcome.of(trajectory, torch.zeros(n, dtype=torch.int64))
    expected = torch.empty(n, dtype=torch.float64)
    for fold in range(5):
        seen = torch.tensor([i for i in range(n) if i % 5 != fold])
        threshold = choices.point_within(choices.operating_points(outcome.take(seen)), 0.7).halt_threshold
        for i in range(fold, n, 5):
            expected[i] = float(scores[0, i] - scores[1, i]) if values[1, i] < threshold else 0.0
    torch.testing.assert_close(choices._exit_gains(outcome, 0.7), expected)
    at_once = choices.point_within(choices.operating_points(outcome), 0.7).halt_threshold
    unfolded = torch.where(values[1] < at_once, scores[0] - scores[1], 0.0)
    assert not torch.allclose(expected, unfolded)


def test_cheaper_rules_are_tested_until_the_first_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of five fails: the third, which would pass, is not taken."""
    tried: list[float] = []

    def gains(outcome: Outcome, budget: float) -> torch.Tensor:
        tried.append(budget)
        noise = torch.linspace(-0.001, 0.001, 100).double()
        return noise - (0.05 if len(tried) == 2 else 0.0)

    monkeypatch.setattr(choices, "_exit_gains", gains)
    chosen = two_exits(torch.Generator().manual_seed(0), 100, 0.0)
    assert tried == pytest.approx([0.4 + 0.6 * 0.8, 0.4 + 0.6 * 0.6])
    assert chosen.mean_cost == pytest.approx(0.88, abs=0.02)


def test_words() -> None:
    rule = asdict(choose_halt(outcome_of([[0.5, 0.6]] * 4, [[1.0, 1.0]] * 4)))
    assert (rule["halt_threshold"], rule["reached"]) == (0.0, False)
    assert rule_words(rule) == "at V < 0, at most 4 steps"
    assert rule_words(rule | {"halt_threshold": choices.NEVER}) == "after all 4 steps"
    assert rule_words(rule | {"max_steps": 1}) == "after 1 step"
    doubt = rule | {"by_confidence": True}
    assert rule_words(doubt | {"halt_threshold": 0.02}) == "at 98 % confidence, at most 4 steps"
    assert rule_words(doubt | {"halt_threshold": -1.0}) == "after 4 steps"
    kept = {"fitted": {"halting": rule, "calibration": asdict(choose_temperature(*beliefs(0, 1.0, 10)))}}
    same = {name: entry | {"n": 9} for name, entry in kept["fitted"].items()}
    assert chosen_words({"fitted": same}) == [
        "kept temperature 1 and halting V < 0: no gain shown on 9 validation examples"
    ]
    alone = [{"fitted": {name: entry}} for name, entry in kept["fitted"].items()]
    assert chosen_words(kept) == [words for each in reversed(alone) for words in chosen_words(each)]
    assert [chosen_words(each) for each in alone] == [
        ["halting: V < 0; no better rule is shown to help on 2 validation examples"],
        ["temperature 1: 10 validation examples, or the mistakes among them, are too few to fit another"],
    ]


def test_a_reading_sets_the_halting_step_and_keeps_later_steps() -> None:
    values = torch.tensor([[1.0, 1.0], [-0.5, 1.0], [-0.5, 1.0], [0.0, 1.0]])
    path = Trajectory(torch.randn(4, 2, 3).log_softmax(-1), halting_step(values), values)
    assert AS_TRAINED.read(path).halt_step.tolist() == [1, 4]
    read = Reading(temperature=2.0, halt_threshold=-1.0, max_steps=3).read(path)
    assert read.halt_step.tolist() == [3, 3]
    assert read.steps == 4
    torch.testing.assert_close(read.log_beliefs, (path.log_beliefs / 2).log_softmax(-1))
    outcome = Outcome.of(Reading(max_steps=3).read(path), torch.zeros(2, dtype=torch.int64), 3)
    assert len(outcome.step_scores) == 4
    assert outcome.halt_step.tolist() == [1, 3]
    assert outcome.cell_evaluations.tolist() == [2, 3]  # an example at the step limit does not compute the next value


COSTS = (0.25, 0.5, 1.0)


def exit_outcome(beliefs: list[list[float]], values: list[list[float]], costs: tuple[float, ...] = COSTS) -> Outcome:
    """Outcome of two-class examples with label 0, from p(class 0) at each step. The first values are not used."""
    sure = torch.tensor(beliefs, dtype=torch.float64)
    v = torch.tensor([[9.0] * len(sure[0]), *values], dtype=torch.float64)
    path = Trajectory(torch.stack([sure, 1 - sure], -1).log(), halting_step(v), v, costs=costs)
    return Outcome.of(path, torch.zeros(len(sure[0]), dtype=torch.int64))


TWO = exit_outcome([[0.4, 0.8], [0.6, 0.9], [0.9, 0.9]], [[2.0, 1.0], [1.6, 0.2]])
"""The lowest values so far are 2 and 1 after the first step, 1.6 and 0.2 after the second."""


def test_the_curve_of_two_examples_by_hand() -> None:
    """Going on after the first step costs an example 1/4, after the second 1/2, and each is half of the mean."""
    points = operating_points(TWO)
    assert [point.mean_cost for point in points] == [0.25, 0.375, 0.625, 0.75, 1.0]
    assert [point.halt_threshold for point in points] == [3.0, 1.8, 1.3, 0.6, -1.0]
    assert [point.accuracy for point in points] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert points[2].nll == pytest.approx(-(np.log(0.9) + np.log(0.8)) / 2)
    assert points[3].nll == pytest.approx(-np.log(0.9))


def test_without_a_value_the_threshold_is_on_1_minus_confidence() -> None:
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


def test_highest_confidences_are_distinguished() -> None:
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


def test_tied_values_leave_a_gap_in_budgets_which_is_noted() -> None:
    tied = exit_outcome([[0.8, 0.7]] * 3, [[0.5, 0.5]] * 2)
    points = operating_points(tied)
    assert [point.mean_cost for point in points] == [0.25, 1.0]
    assert "only 0.250 of the budget of 0.6 is spent" in str(shortfall(point_within(points, 0.6).mean_cost, 0.6))
    assert shortfall(point_within(points, 0.28).mean_cost, 0.28) is None


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 60), st.booleans())
def test_each_operating_point_is_reproducible_and_spends_the_most_within_its_budget(
    seed: int, steps: int, n: int, coarse: bool
) -> None:
    """Equal to a search over all thresholds in numpy; rounded values have many ties."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, (steps - 1, n))
    values = np.round(values) if coarse else values
    costs = np.cumsum(rng.uniform(0.1, 1, steps))
    costs = costs / costs[-1]
    beliefs = rng.uniform(0.05, 0.95, (steps, n))
    points = operating_points(exit_outcome(beliefs.tolist(), values.tolist(), tuple(costs.tolist())))

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
    outcome = exit_outcome([[0.3] * 40, wrong + right, wrong + right], [[1.0] * 40, [0.5] * 40])
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


def test_evaluation_has_the_cost_of_right_and_wrong_answers() -> None:
    entry = report(TWO)  # both use the whole network
    assert (entry["mean_cost"], entry["mean_cost_correct"], entry["mean_cost_wrong"]) == (1.0, 1.0, None)
    assert [row["cost"] for row in entry["per_step"]] == list(COSTS)
    mixed = exit_outcome([[0.4, 0.8]] * 3, [[-1.0, 1.0], [-1.0, 1.0]])
    entry = report(mixed)
    assert (entry["mean_cost"], entry["mean_cost_correct"], entry["mean_cost_wrong"]) == (0.625, 1.0, 0.25)
    plain = report(exit_outcome([[0.4, 0.8]] * 3, [[-1.0, 1.0], [-1.0, 1.0]], costs=()))
    assert not [key for key in plain if "cost" in key]
    assert "cost" not in plain["per_step"][0]


def test_joined_outcomes_keep_costs() -> None:
    joined = Outcome.join([TWO, TWO])
    assert joined.cost is not None
    assert joined.cost.tolist() == [1.0] * 4


def test_a_reading_may_stop_all_at_one_step() -> None:
    path = Trajectory(torch.randn(3, 2, 4).log_softmax(-1), torch.tensor([1, 3]), costs=COSTS)
    assert Reading(step=2).read(path).halt_step.tolist() == [2, 2]


def test_choices_in_words() -> None:
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
