"""Policies over the probability simplex, in log space throughout.

Near an edge of the simplex a sampled probability underflows float32 just where the reward is largest: with
α_y = 0.01, log a_y is −100 on average. So actions are sampled, stored and scored as log a and never clamped;
clamping a stored sample and then asking its density biases ∂log π/∂α by tens of nats a class.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores

Readout = Literal["mean", "mu", "implied"]
LARGEST_EXPONENTIAL = 32.0
"""Above all that a 32-bit generator can make, −log 2⁻³² = 22.2."""


@runtime_checkable
class SimplexPolicy(Protocol):
    """A distribution over beliefs; what RIC's actor must be able to do."""

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*batch classes"]:
        """log a for a ~ π, without gradient; drawn from torch's global generator unless one is given."""

    def log_prob(self, log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """log π(a), the density with respect to a."""

    def log_ratio(self, old: Any, log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """log π(a) − log π_old(a), for an old policy of the same family."""

    def log_mean(self) -> Float[Tensor, "*batch classes"]:
        """log E[a], the belief an agent acts with when it does not explore."""

    def expected_log_score(self, labels: Int64[Tensor, "batch"]) -> Float[Tensor, "*batch"]:
        """E[log a_y]."""

    def variance_penalty(self, labels: Int64[Tensor, "batch"]) -> Float[Tensor, "*batch"]:
        """log E[a_y] − E[log a_y], Lemma 2."""

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Differential entropy of π."""

    def read(self, readout: Readout) -> Float[Tensor, "*batch classes"]:
        """The log-belief to report."""

    def take(self, rows: slice) -> Any:
        """The policies of some examples."""


@dataclass(frozen=True)
class Dirichlet:
    """Dir(α) with α = μ·c + ε, the paper's policy: mean direction μ = softmax(logits) and concentration c."""

    log_mu: Float[Tensor, "*batch classes"]
    alpha: Float[Tensor, "*batch classes"]

    @classmethod
    def around(
        cls, log_mu: Float[Tensor, "*batch classes"], concentration: Float[Tensor, "*batch"], epsilon: float
    ) -> "Dirichlet":
        return cls(log_mu, log_mu.exp() * concentration.unsqueeze(-1) + epsilon)

    @property
    def total(self) -> Float[Tensor, "*batch"]:
        return self.alpha.sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*batch classes"]:
        """Gamma(α) = Gamma(α + 1) · U^{1/α}, taken in logarithms with −log U ~ Exponential(1), then normalised.

        The boosted Gamma has shape above 1, where it cannot underflow. The exponential is infinite once in about two
        billion draws where torch.compile makes it out of a U that may be 0, and 0·∞ would make the log-ratio NaN.
        """
        with torch.no_grad():
            boosted = torch._standard_gamma(self.alpha + 1, generator)
            exponential = torch.empty_like(self.alpha).exponential_(generator=generator)
            exponential = exponential.clamp(max=LARGEST_EXPONENTIAL)
            return (boosted.log() - exponential / self.alpha).log_softmax(-1)

    def log_prob(self, log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        return self.total.lgamma() + ((self.alpha - 1) * log_action - self.alpha.lgamma()).sum(-1)

    def log_ratio(self, old: "Dirichlet", log_action: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """log π(a) − log π_old(a), subtracted class by class before the sum.

        (α − α_old)·log a keeps its digits where the two log-densities, thousands of nats each, would lose them.
        """
        per_class = (self.alpha - old.alpha) * log_action - (self.alpha.lgamma() - old.alpha.lgamma())
        return per_class.sum(-1) + (self.total.lgamma() - old.total.lgamma())

    def marginal_log_ratio(
        self, old: "Dirichlet", log_action: Float[Tensor, "*batch classes"], labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "*batch"]:
        """The same of a_y alone, log p(a_y) − log p_old(a_y), where a_y ~ Beta(α_y, Σα of the other classes).

        These are summed, not subtracted from the whole, beside which they may be a thousandth.
        """
        index = labels.expand(log_action.shape[:-1]).unsqueeze(-1)
        others = log_action.scatter(-1, index, -math.inf).logsumexp(-1)  # log(1 − a_y)
        alpha, old_alpha = log_scores(self.alpha, labels), log_scores(old.alpha, labels)
        beta, old_beta = (policy.alpha.scatter(-1, index, 0.0).sum(-1) for policy in (self, old))
        moved = (alpha - old_alpha) * log_scores(log_action, labels) + (beta - old_beta) * others
        norms = (alpha.lgamma() - old_alpha.lgamma()) + (beta.lgamma() - old_beta.lgamma())
        return moved - norms + (self.total.lgamma() - old.total.lgamma())

    def log_mean(self) -> Float[Tensor, "*batch classes"]:
        return self.alpha.log() - self.total.log().unsqueeze(-1)

    def expected_log_score(self, labels: Int64[Tensor, "batch"]) -> Float[Tensor, "*batch"]:
        """E[log a_y] = ψ(α_y) − ψ(Σα)."""
        return log_scores(self.alpha, labels).digamma() - self.total.digamma()

    def variance_penalty(self, labels: Int64[Tensor, "batch"]) -> Float[Tensor, "*batch"]:
        """Lemma 2: E[D_F(a_y ‖ m_y)] = log m_y − E[log a_y], what acting at random costs in log-score."""
        return log_scores(self.log_mean(), labels) - self.expected_log_score(labels)

    def entropy(self) -> Float[Tensor, "*batch"]:
        classes = self.alpha.shape[-1]
        log_beta = self.alpha.lgamma().sum(-1) - self.total.lgamma()
        spread = (self.total - classes) * self.total.digamma() - ((self.alpha - 1) * self.alpha.digamma()).sum(-1)
        return log_beta + spread

    def log_implied(self) -> Float[Tensor, "*batch classes"]:
        """The q at which these α would be optimal: q_k ∝ 1/ψ'(α_k).

        With c bounded, maximising E_q[ψ(α_y)] − ψ(Σα) puts the mean short of q; its condition
        q_k·ψ'(α_k) = const inverts in closed form. Ours, not the paper's.
        """
        return (-torch.polygamma(1, self.alpha).log()).log_softmax(-1)

    def read(self, readout: Readout) -> Float[Tensor, "*batch classes"]:
        """The log-belief to report: the paper's `mean` α/Σα, the softmax `mu`, or the `implied` q."""
        if readout == "mean":
            return self.log_mean()
        return self.log_mu if readout == "mu" else self.log_implied()

    def take(self, rows: slice) -> "Dirichlet":
        return Dirichlet(self.log_mu[..., rows, :], self.alpha[..., rows, :])


@dataclass(frozen=True)
class LogisticNormal:
    """The logistic-normal, the paper's other policy: a = softmax(z) with z_k ~ N(m_k, σ²).

    Its density is exact. Its moments have no closed form: the mean is plugged in (softmax of m), and E[log a_y] is
    taken to second order in σ (the delta method), which overstates the cost of a wide policy (σ² well above 1).
    """

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

    def sample(self, generator: torch.Generator | None = None) -> Float[Tensor, "*batch classes"]:
        with torch.no_grad():
            noise = torch.empty_like(self.log_mu).normal_(generator=generator) * self.variance.sqrt().unsqueeze(-1)
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
