import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.fitting import fit_if_it_helps, fit_temperature


def beliefs(seed: int, scale: float, n: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from softmax(z); beliefs are softmax(scale · z), so the right temperature is near `scale`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, 5, generator=generator).double()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    return (scale * logits).log_softmax(-1), labels


@settings(deadline=None, max_examples=20)
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


def test_where_no_answer_is_wrong_nothing_is_changed() -> None:
    """The NLL falls without end as T goes to 0: there is no best temperature to take."""
    log_beliefs = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    fit = fit_temperature(log_beliefs, torch.tensor([0, 1]))
    assert (fit.temperature, fit.found) == (1.0, False)
    assert fit.nll_after == fit.nll_before


def test_where_every_answer_is_wrong_nothing_is_changed_either() -> None:
    fit = fit_temperature(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor([1, 0]))
    assert (fit.temperature, fit.found) == (1.0, False)


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


def _answers(sharpness: float, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from beliefs, which are then made too sharp."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=random)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=random).squeeze(1)
    return (sharpness * logits).log_softmax(-1), labels


def test_a_temperature_that_helps_unseen_examples_is_kept() -> None:
    fit = fit_if_it_helps(*_answers(4.0, 400, 0))
    assert fit.kept
    assert 3 < fit.temperature < 6
    assert fit.gain is not None
    assert 0 < fit.gain < fit.nll_before - fit.nll_after  # on examples it has seen it looks better than it is


def test_a_temperature_within_chance_is_not_kept() -> None:
    fits = [fit_if_it_helps(*_answers(1.0, 60, seed)) for seed in range(20)]
    left = [fit for fit in fits if not fit.kept]
    assert len(left) >= 15
    assert all(fit.temperature == 1 and fit.nll_after == fit.nll_before and fit.found for fit in left)


def test_what_helps_is_judged_by_halves() -> None:
    """By hand: each half is scored under the temperature of the other."""
    log_beliefs, labels = _answers(3.0, 50, 1)
    gains = []
    for seen, unseen in ((0, 1), (1, 0)):
        t = fit_temperature(log_beliefs[seen::2], labels[seen::2]).temperature
        for belief, label in zip(log_beliefs[unseen::2].double(), labels[unseen::2], strict=True):
            gains.append(float((belief / t).log_softmax(-1)[label] - belief[label]))
    fit = fit_if_it_helps(log_beliefs, labels)
    assert fit.gain == pytest.approx(float(torch.tensor(gains).mean()), abs=1e-6)
    assert fit.gain_error == pytest.approx(float(torch.tensor(gains).std() / 50**0.5), abs=1e-6)


def test_where_no_temperature_is_best_none_is_kept() -> None:
    fit = fit_if_it_helps(torch.tensor([[0.9, 0.1]] * 6).log(), torch.zeros(6, dtype=torch.int64))
    assert (fit.kept, fit.found, fit.temperature) == (False, False, 1.0)
