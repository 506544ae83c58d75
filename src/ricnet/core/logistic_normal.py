"""The logistic-normal policy, the paper's other head: a = softmax(z) with z_k ~ N(m_k, σ²).

Its density is exact. Its moments have no closed form: the mean is plugged in (softmax of m), and E[log a_y] is taken
to second order in σ (the delta method), which overstates the cost of a wide policy (σ² well above 1).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.simplex import Readout


@dataclass(frozen=True)
class LogisticNormal:
    log_mu: Float[Tensor, "*batch classes"]
    """m up to a shift, which the softmax does not see: log softmax(m)."""
    variance: Float[Tensor, "*batch"]

    @classmethod
    def around(
        cls, log_mu: Float[Tensor, "*batch classes"], concentration: Float[Tensor, "*batch"]
    ) -> "LogisticNormal":
        """σ² = K/c, the leading term (c ≫ K) of ψ'(c/K), a Dirichlet's spread at the uniform belief. Where c is below
        K the Dirichlet is the wider of the two; the paper does not say how wide its own is."""
        return cls(log_mu, log_mu.shape[-1] / concentration)

    def sample(self) -> Float[Tensor, "*batch classes"]:
        with torch.no_grad():
            noise = torch.randn_like(self.log_mu) * self.variance.sqrt().unsqueeze(-1)
            return (self.log_mu + noise).log_softmax(-1)

    def log_prob(self, log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """A normal density of K − 1 dimensions on centred logarithms, times the Jacobian 1 / (√K Π a_k)."""
        return self._log_normal(log_action) - log_action.sum(-1) - 0.5 * math.log(log_action.shape[-1])

    def log_ratio(self, old: "LogisticNormal", log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """log π(a) − log π_old(a); the Jacobian is the same in both."""
        return self._log_normal(log_action) - old._log_normal(log_action)

    def log_mean(self) -> Float[Tensor, "*batch classes"]:
        return self.log_mu

    def expected_log_score(self, labels: Int64[Tensor, "batch"]) -> Float[Tensor, "*batch"]:
        return log_scores(self.log_mu, labels) - self._log_normalizer()

    def variance_penalty(self, labels: Int64[Tensor, "batch"]) -> Float[Tensor, "*batch"]:
        """Lemma 2 with the plugged-in mean; here the same for every label."""
        return self._log_normalizer()

    def entropy(self) -> Float[Tensor, "*batch"]:
        """That of the normal, plus the expected logarithm of the Jacobian's inverse, Σ E[log a_k]."""
        classes = self.log_mu.shape[-1]
        normal = 0.5 * (classes - 1) * (2 * math.pi * math.e * self.variance).log()
        return normal + 0.5 * math.log(classes) + self.log_mu.sum(-1) - classes * self._log_normalizer()

    def read(self, readout: Readout) -> Float[Tensor, "*batch classes"]:
        """`mean` and `mu` are one here; `implied` is a property of the Dirichlet."""
        return self.log_mu

    def take(self, rows: slice) -> "LogisticNormal":
        return LogisticNormal(self.log_mu[..., rows, :], self.variance[..., rows])

    def _log_normal(self, log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        gap = log_action - self.log_mu
        distance = (gap - gap.mean(-1, keepdim=True)).square().sum(-1)
        dimensions = log_action.shape[-1] - 1
        return -0.5 * (distance / self.variance + dimensions * (2 * math.pi * self.variance).log())

    def _log_normalizer(self) -> Float[Tensor, "*batch"]:
        """E[log Σ exp z_k] − log Σ exp m_k ≈ ½σ² (1 − Σ μ_k²)."""
        return 0.5 * self.variance * (1 - self.log_mu.exp().square().sum(-1))
