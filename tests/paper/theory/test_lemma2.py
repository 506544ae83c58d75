import pytest
import torch
from scipy import special
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.policies import Dirichlet
from ricnet_paper.theory import lemma2

pytestmark = pytest.mark.usefixtures("_undrawn")
DRAWS = 2000


def test_holds() -> None:
    finding = lemma2.examine(DRAWS)
    assert finding.passed
    assert len(finding.rows) == len(lemma2.MEANS) * len(lemma2.CONCENTRATIONS)
    row = next(row for row in finding.rows if row["mu_y"] == 0.2 and row["c"] == 10)
    expected = special.digamma(2.0) - special.digamma(10.0)
    assert row["expected_log_score"] == pytest.approx(expected)
    assert row["penalty"] == pytest.approx(special.xlogy(1, 0.2) - expected)
    assert row["quadratic_penalty"] == pytest.approx(0.2 * 0.8 / 11 / (2 * 0.04))


def without_the_total(self: Dirichlet, labels: Tensor) -> Tensor:
    return log_scores(self.alpha, labels).digamma()


def half(self: Dirichlet, labels: Tensor) -> Tensor:
    return (log_scores(self.log_mean(), labels) - self.expected_log_score(labels)) / 2


def of_another_class(self: Dirichlet) -> Tensor:
    alpha = self.alpha.roll(1, -1)
    return torch.distributions.Dirichlet(alpha.clamp(min=0.1)).sample().log()


@pytest.mark.parametrize(
    ("name", "broken"),
    [("expected_log_score", without_the_total), ("variance_penalty", half), ("sample", of_another_class)],
)
def test_fails_with_a_broken_formula(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dirichlet, name, broken)
    assert not lemma2.examine(DRAWS).passed
