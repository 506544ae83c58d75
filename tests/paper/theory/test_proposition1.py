import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet
from ricnet.methods import RIC, OnPolicy
from ricnet.nets.refiner import RecurrentClassifier
from ricnet_paper.theory import known_truth, proposition1
from ricnet_paper.theory.finding import Finding
from ricnet_paper.theory.proposition1 import BOUNDED, FREE, constrained_optimum

pytestmark = pytest.mark.usefixtures("_undrawn")
TRUTH = torch.tensor([[0.9, 0.05, 0.05], [0.2, 0.4, 0.4]], dtype=torch.float64)
METHOD = OnPolicy(horizon=2, rollouts=4, label_baseline=True, step_weight="discounted")
UPDATES = 300
Agents = dict[float, RecurrentClassifier]


def train(updates: int) -> Agents:
    """A problem so small that both agents learn it in seconds, with more labels and a higher rate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_truth, "LABELS", 512)
        patch.setattr(known_truth, "RATE", 1e-2)
        return {c: known_truth.train_agent(replace(METHOD, c_max=c), TRUTH, updates) for c in (FREE, BOUNDED)}


@pytest.fixture(scope="module")
def agents() -> Agents:
    return train(UPDATES)


def examine(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> Finding:
    def trained(method: RIC, *_: object) -> RecurrentClassifier:
        return agents[method.c_max]

    monkeypatch.setattr(known_truth, "train_agent", trained)
    return proposition1.examine(UPDATES, METHOD, TRUTH, rollouts=500)


def test_holds(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = examine(agents, monkeypatch)
    assert finding.passed, finding.statement
    surest = [row for row in finding.rows if row["q"] == 0.9]
    assert all(row["mean"] == pytest.approx(0.9, abs=0.04) for row in surest if row["c_max"] == FREE)
    assert all(row["mean"] < 0.86 < row["implied"] for row in surest if row["c_max"] == BOUNDED)
    entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.05)
    assert surest[0]["ceiling"] == pytest.approx(math.log(3) - entropy)


def test_an_untrained_agent_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not examine(train(updates=0), monkeypatch).passed


def test_rewards_of_the_wrong_sign_lead_away_from_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the label baseline scores enter the advantage once more, as they should; so it is left out here."""
    advantages = mdp.advantages
    monkeypatch.setattr(mdp, "advantages", lambda rewards, *rest: advantages(-rewards, *rest))
    plain = replace(METHOD, label_baseline=False, c_max=BOUNDED)
    inputs = known_truth.contexts(TRUTH)
    beliefs = plain.refine(known_truth.train_agent(plain, TRUTH, updates=30), inputs).final.double()
    start = plain.refine(known_truth.untrained_agent(plain, TRUTH), inputs).final.double()
    assert known_truth.divergence(TRUTH, beliefs).mean() > known_truth.divergence(TRUTH, start).mean()


def trigamma(self: Dirichlet) -> Tensor:
    return torch.polygamma(1, self.alpha).log().log_softmax(-1)


def proportional(self: Dirichlet) -> Tensor:
    return self.alpha.log().log_softmax(-1)


@pytest.mark.parametrize("broken", [trigamma, proportional])
def test_fails_with_another_implied_readout(broken: object, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dirichlet, "log_implied", broken)
    assert not examine(agents, monkeypatch).passed


def test_fails_with_another_reward_or_return(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards, discounted_return = mdp.rewards, mdp.discounted_return
    with monkeypatch.context() as patch:
        patch.setattr(mdp, "rewards", lambda scores, initial: -rewards(scores, initial))
        assert not examine(agents, patch).passed
    with monkeypatch.context() as patch:
        patch.setattr(mdp, "discounted_return", lambda r, gamma: gamma * discounted_return(r, gamma))
        assert not examine(agents, patch).passed


def test_fails_where_the_mean_is_q_though_c_is_bounded(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ψ' the optimum is q itself, and the agent differs from it."""
    monkeypatch.setattr(proposition1, "constrained_optimum", lambda q, total: q * total)
    assert not examine(agents, monkeypatch).passed


def test_fails_with_a_floor_five_times_too_large(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the policy, and in the formula of the optimum."""
    around = Dirichlet.around
    with monkeypatch.context() as patch:
        patch.setattr(Dirichlet, "around", lambda log_mu, c, epsilon: around(log_mu, c, 5 * epsilon))
        assert not examine(agents, patch).passed
    with monkeypatch.context() as patch:
        patch.setattr(proposition1, "_largest_total", lambda method, classes: method.c_max + 5 * classes * 0.01)
        assert not examine(agents, patch).passed


@pytest.mark.parametrize(("q", "mean"), [(0.9, 0.727), (0.6, 0.442), (0.99, 0.911)])
def test_the_optimum_has_the_known_means(q: float, mean: float) -> None:
    alpha = constrained_optimum(np.array([q] + [(1 - q) / 9] * 9), 10.1)
    assert alpha.sum() == pytest.approx(10.1)
    assert alpha[0] / 10.1 == pytest.approx(mean, abs=6e-4)


def test_the_optimum_is_where_an_independent_optimiser_ends() -> None:
    q, total = np.array([0.1, 0.6, 0.3]), 10.0

    def loss(logits: np.ndarray) -> float:
        return float(-(q @ special.digamma(special.softmax(logits) * total)))

    found = optimize.minimize(loss, np.log(q), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    assert constrained_optimum(q, total) == pytest.approx(special.softmax(found.x) * total, rel=1e-4)


@pytest.mark.slow
def test_holds_in_full() -> None:
    finding = proposition1.examine()
    assert finding.passed, finding.statement
