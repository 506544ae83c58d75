import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.policies import Dirichlet
from ricnet.methods import RIC
from ricnet.methods.ric import Rollout
from ricnet.nets.refiner import RecurrentClassifier
from ricnet_paper.theory import decomposition, known_truth
from ricnet_paper.theory.finding import Finding

pytestmark = pytest.mark.usefixtures("_undrawn")


@pytest.fixture(scope="module")
def agent() -> RecurrentClassifier:
    return known_truth.train_agent(decomposition.METHOD, known_truth.CONDITIONALS, updates=80)


@pytest.fixture(autouse=True)
def _trained_once(agent: RecurrentClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_truth, "train_agent", lambda *_: agent)


def examine() -> Finding:
    return decomposition.examine(updates=80, rollouts=2000)


def test_holds() -> None:
    finding = examine()
    assert finding.passed
    assert {row["stage"] for row in finding.rows} == {"before training", "after 80 updates"}
    for row in finding.rows:
        assert row["ceiling"] + row["bias"] + row["variance"] == pytest.approx(row["sum"])
        assert abs(row["sampled"] - row["sum"]) < 4 * row["standard_error"]
        assert row["penalty_deviation"] < 4
    unknown = [row for row in finding.rows if row["context"] == 3]
    assert all(row["ceiling"] == pytest.approx(-math.log(4)) for row in unknown)


def test_the_parts_add_up_to_the_expected_log_score_in_every_state(
    agent: RecurrentClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact for any mean; samples show a wrong mean only to second order."""
    policies, truth = list[Dirichlet](), known_truth.CONDITIONALS
    roll_out = RIC.roll_out

    def recorded(self: RIC, *args: Any) -> Rollout:
        rollout = roll_out(self, *args)
        policies.append(rollout.policy)  # type: ignore[arg-type]
        return rollout

    monkeypatch.setattr(RIC, "roll_out", recorded)
    parts = decomposition._decompose(decomposition.METHOD, agent, truth, 2, 0).parts
    every = truth.repeat(2, 1)
    by_label = [policies[0].expected_log_score(torch.full((len(every),), y))[:, 0] for y in range(truth.shape[1])]
    expected = (every * torch.stack(by_label, -1)).sum(-1).view(-1, 2, len(truth)).mean(1)
    torch.testing.assert_close(sum(parts.values()), expected, atol=1e-5, rtol=1e-5, check_dtype=False)


def without_the_total(self: Dirichlet, labels: Tensor) -> Tensor:
    return log_scores(self.alpha, labels).digamma()


def none(self: Dirichlet, labels: Tensor) -> Tensor:
    return torch.zeros_like(self.total)


def unnormalised(self: Dirichlet) -> Tensor:
    return self.alpha.log() - (self.total + 1).log().unsqueeze(-1)


def uniform(self: Dirichlet) -> Tensor:
    return torch.full_like(self.alpha, 1 / self.alpha.shape[-1]).log()


def softmax(self: Dirichlet) -> Tensor:
    return self.log_mu


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("expected_log_score", without_the_total),
        ("variance_penalty", none),
        ("log_mean", unnormalised),
        ("log_mean", uniform),
        ("log_mean", softmax),
    ],
)
def test_fails_with_a_broken_formula(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dirichlet, name, broken)
    assert not examine().passed


def test_fails_with_the_divergence_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_divergence(truth: Tensor, log_beliefs: Tensor) -> Tensor:
        return (log_beliefs.exp() * (log_beliefs - truth.log())).sum(-1)

    monkeypatch.setattr(known_truth, "divergence", reversed_divergence)
    assert not examine().passed
