import pytest
import torch
from torch import Tensor

from ricnet.core import mdp
from ricnet_paper.theory import lemma1

pytestmark = pytest.mark.usefixtures("_undrawn")
DRAWS = 2000


def test_holds() -> None:
    finding = lemma1.examine(DRAWS)
    assert finding.passed
    assert "2,000 geometric horizons" in finding.statement
    assert len(finding.rows) == len(lemma1.DISCOUNTS) * lemma1.SEQUENCES
    for row in finding.rows:
        away = (row["geometric_return"] - row["discounted_return"]) / row["standard_error"]
        assert row["deviation"] == pytest.approx(away)


def one_power_too_many(rewards: Tensor, gamma: float) -> Tensor:
    return gamma * torch.einsum("t,t...->...", mdp.discounts(len(rewards), gamma), rewards)


def without_the_prior(scores: Tensor, initial: float) -> Tensor:
    return torch.cat([scores[:1], scores[1:] - scores[:-1]])


def swapped(scores: Tensor, initial: float) -> Tensor:
    return torch.cat([torch.full_like(scores[:1], initial), scores[:-1]]) - scores


def not_normalised(steps: int, gamma: float) -> Tensor:
    return mdp.discounts(steps, gamma)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("discounted_return", one_power_too_many),
        ("rewards", without_the_prior),
        ("rewards", swapped),
        ("geometric_weights", not_normalised),
    ],
)
def test_fails_with_a_broken_formula(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdp, name, broken)
    assert not lemma1.examine(DRAWS).passed
