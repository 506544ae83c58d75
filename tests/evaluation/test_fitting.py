"""What is chosen on validation data: a temperature, and when to stop."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading
from ricnet.evaluation.fitting import (
    THRESHOLDS,
    choose_halt,
    choose_halt_if_it_helps,
    fit_if_it_helps,
    fit_temperature,
    rule_words,
)


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
    """The NLL falls without end as T goes to 0, or to infinity: there is no best temperature to take."""
    given_rows = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor(labels)
    fit = fit_temperature(*given_rows)
    assert (fit.temperature, fit.found, fit.nll_after) == (1.0, False, fit.nll_before)
    kept = fit_if_it_helps(*(column.repeat_interleave(3, 0) for column in given_rows))
    assert (kept.kept, kept.found, kept.temperature) == (False, False, 1.0)


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


def test_a_temperature_that_helps_unseen_examples_is_kept() -> None:
    fit = fit_if_it_helps(*beliefs(0, 4.0, 400))
    assert fit.kept
    assert 3 < fit.temperature < 6
    assert fit.gain is not None
    assert 0 < fit.gain < fit.nll_before - fit.nll_after  # on examples it has seen it looks better than it is


def test_a_temperature_within_chance_is_not_kept() -> None:
    fits = [fit_if_it_helps(*beliefs(seed, 1.0, 60)) for seed in range(20)]
    left = [fit for fit in fits if not fit.kept]
    assert len(left) >= 15
    assert all(fit.temperature == 1 and fit.nll_after == fit.nll_before and fit.found for fit in left)


def test_what_helps_is_judged_by_halves() -> None:
    """By hand: each half is scored under the temperature of the other."""
    log_beliefs, labels = beliefs(1, 3.0, 50)
    gains = []
    for seen, unseen in ((0, 1), (1, 0)):
        t = fit_temperature(log_beliefs[seen::2], labels[seen::2]).temperature
        for belief, label in zip(log_beliefs[unseen::2].double(), labels[unseen::2], strict=True):
            gains.append(float((belief / t).log_softmax(-1)[label] - belief[label]))
    fit = fit_if_it_helps(log_beliefs, labels)
    assert fit.gain == pytest.approx(float(torch.tensor(gains).mean()), abs=1e-6)
    assert fit.gain_error == pytest.approx(float(torch.tensor(gains).std() / 50**0.5), abs=1e-6)


def outcome_of(beliefs: list[list[float]], values: list[list[float]]) -> Outcome:
    """Of examples of class 0 of two: what is believed of it, step by step."""
    sure = torch.tensor(beliefs, dtype=torch.float64)
    path = torch.stack([sure, 1 - sure], -1).log()
    v = torch.tensor(values, dtype=torch.float64)
    return Outcome.of(Trajectory(path, halting_step(v), v), torch.zeros(len(beliefs[0]), dtype=torch.int64))


def test_where_later_steps_are_worse_it_stops_after_the_first() -> None:
    """The value promises a gain at every step, and there is none."""
    choice = choose_halt(outcome_of([[0.8, 0.7], [0.6, 0.6], [0.5, 0.5]], [[1.0, 1.0]] * 3))
    first = -(np.log(0.8) + np.log(0.7)) / 2
    assert (choice.max_steps, choice.best_step, choice.mean_steps) == (1, 1, 1)
    assert choice.nll == choice.best_step_nll == pytest.approx(first)
    assert choice.nll_before == pytest.approx(-np.log(0.5))
    assert choice.steps_before == 3


def test_of_few_examples_a_rule_is_kept_only_if_it_helps_those_it_was_not_chosen_on() -> None:
    """The first step is better for half of them, and by as much worse for the others; or it is better for all."""
    mixed, clear = [0.8, 0.8, 0.5, 0.5], [0.8] * 4
    for first, n, most in ((mixed, 12, 2), (clear, 12, 1)):
        few = outcome_of([first * (n // 4), [0.6] * n], [[1.0] * n] * 2)
        assert choose_halt_if_it_helps(few).max_steps == most
    lucky = [0.9, 0.5] * 10 + [0.7]
    few = outcome_of([lucky, [0.6] * 21], [[1.0] * 21] * 2)
    assert choose_halt(few).max_steps == 1
    assert (choose_halt_if_it_helps(few).halt_threshold, choose_halt_if_it_helps(few).max_steps) == (0.0, 2)
    one = outcome_of([lucky[:1], [0.6]], [[1.0]] * 2)
    assert choose_halt_if_it_helps(one).max_steps == 2
    many = outcome_of([lucky * 2, [0.6] * 42], [[1.0] * 42] * 2)
    assert choose_halt_if_it_helps(many) == choose_halt(many)


def test_a_middle_step_that_is_best_for_all_is_the_largest() -> None:
    choice = choose_halt(outcome_of([[0.5, 0.5], [0.9, 0.9], [0.6, 0.6]], [[9.0, 9.0]] * 3))
    assert (choice.max_steps, choice.best_step, choice.reached) == (2, 2, False)


def test_a_threshold_that_no_validation_example_got_to_is_said_to_hold() -> None:
    """On other examples V may well be below it."""
    rule = asdict(choose_halt_if_it_helps(outcome_of([[0.5, 0.6]] * 4, [[1.0, 1.0]] * 4)))
    assert (rule["halt_threshold"], rule["reached"]) == (0.0, False)
    assert rule_words(rule) == "once V < 0 (no validation example got there), after 4 steps at the latest"
    assert rule_words(rule | {"reached": True}) == "once V < 0, after 4 steps at the latest"
    doubt = rule | {"by_confidence": True}
    assert "once it is 98 % sure (no" in rule_words(doubt | {"halt_threshold": 0.02})
    assert rule_words(doubt | {"halt_threshold": -1.0}) == "after 4 steps"  # nobody is 200 % sure


def test_a_value_that_knows_each_examples_best_step_is_heeded() -> None:
    """Stopping one after the first step and the other after the third beats any single step."""
    beliefs, values = [[0.9, 0.4], [0.5, 0.5], [0.4, 0.9]], [[1.0, 1.0], [-0.5, 1.0], [-0.5, 1.0]]
    choice = choose_halt(outcome_of(beliefs, values))
    assert (choice.max_steps, choice.mean_steps, choice.reached) == (3, 2, True)
    assert choice.nll == pytest.approx(-np.log(0.9))
    assert choice.nll < choice.best_step_nll


def test_the_papers_rule_stays_where_it_is_as_good_else_the_one_with_fewest_steps_is_taken() -> None:
    """Of steps 2 and 3, which are alike and better than the last, to which the value leads."""
    choice = choose_halt(outcome_of([[0.8, 0.8]] * 4, [[1.0, 1.0]] * 4))
    assert (choice.halt_threshold, choice.max_steps, choice.mean_steps) == (0.0, 4, 4)
    choice = choose_halt(outcome_of([[0.5, 0.6], [0.8, 0.81], [0.81, 0.8], [0.5, 0.6]], [[1.0, 1.0]] * 4))
    assert (choice.max_steps, choice.mean_steps) == (2, 2)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 30))
def test_it_is_never_worse_than_the_best_single_step_and_no_good_rule_has_fewer_steps(
    seed: int, steps: int, n: int
) -> None:
    """Against every rule written out in numpy."""
    rng = np.random.default_rng(seed)
    beliefs, values = rng.uniform(0.05, 0.95, (steps, n)), rng.normal(0, 0.2, (steps, n))
    choice = choose_halt(outcome_of(beliefs.tolist(), values.tolist()))

    def stops(threshold: float, most: int) -> list[int]:
        return [next((t for t in range(1, most) if values[t, i] < threshold), most) for i in range(n)]

    def losses(halts: list[int]) -> np.ndarray:
        return np.array([-np.log(beliefs[halt - 1, i]) for i, halt in enumerate(halts)])

    found = [stops(*rule) for rule in itertools.product((values.min() - 1, *THRESHOLDS), range(1, steps + 1))]
    least = min(map(losses, found), key=np.mean)

    best_step = min(-np.log(beliefs).mean(1))

    def good(halts: list[int]) -> bool:
        excess = losses(halts) - least
        return bool(
            losses(halts).mean() <= best_step + 5e-5
            and excess.mean() <= 1.000001 * max(excess.std(ddof=1) / np.sqrt(n), 5e-5)
        )

    chosen, usual = stops(choice.halt_threshold, choice.max_steps), stops(0.0, steps)
    assert choice.nll == pytest.approx(losses(chosen).mean())
    assert choice.best_step_nll == pytest.approx(best_step)
    assert good(chosen)
    if good(usual):
        assert chosen == usual
    else:
        assert np.mean(chosen) == pytest.approx(min(np.mean(halts) for halts in found if good(halts)))


def test_a_reading_stops_as_it_says_and_keeps_the_later_steps() -> None:
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
    assert outcome.cell_evaluations.tolist() == [2, 3]  # who stops at the limit has not looked ahead
