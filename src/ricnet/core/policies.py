"""Policies over the probability simplex, in log space throughout, and the random generator of a run.

With α_y = 0.01, log a_y is −100 on average, so that a_y underflows float32. Actions are therefore sampled, stored and
scored as log a, and never clamped: the density of a clamped sample biases ∂log π/∂α by tens of nats per class.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ricnet.core.mdp import Labels, is_soft, log_scores

Beliefs = Float[Tensor, "*batch classes"]
PerExample = Float[Tensor, "*batch"]
Readout = Literal["mean", "mu", "implied"]
LARGEST_EXPONENTIAL = 32.0
"""Larger than any exponential variable from a 32-bit generator, −log 2⁻³² = 22.2."""
MANY_DRAWS = 4_096
"""Gamma draws on a CPU from which drawing all at once is faster than torch's kernels, which make one at a time."""


@runtime_checkable
class SimplexPolicy(Protocol):
    """Interface of a distribution over beliefs, RIC's policy."""

    def sample(self, generator: torch.Generator | None = None) -> Beliefs:
        """log a for a ~ π, without gradient; uses torch's global generator if none is given."""

    def log_prob(self, log_action: Beliefs) -> PerExample:
        """log π(a), the density with respect to a."""

    def log_ratio(self, old: Any, log_action: Beliefs) -> PerExample:
        """log π(a) − log π_old(a), for an old policy of the same family."""

    def log_mean(self) -> Beliefs:
        """log E[a], the action at inference."""

    def expected_log_score(self, labels: Labels) -> PerExample:
        """E[log a_y]; E[Σ q_k log a_k] for soft labels, as in `log_scores`."""

    def variance_penalty(self, labels: Labels) -> PerExample:
        """log E[a_y] − E[log a_y], Lemma 2."""

    def entropy(self) -> PerExample:
        """Differential entropy of π."""

    def read(self, readout: Readout) -> Beliefs:
        """The log-belief to report."""

    def take(self, rows: slice) -> Any:
        """The policies of these rows of the batch."""


@dataclass(frozen=True)
class Dirichlet:
    """Dir(α) with α = μ·c + ε, the paper's policy: mean direction μ = softmax(logits) and concentration c."""

    log_mu: Beliefs
    alpha: Beliefs

    @classmethod
    def around(cls, log_mu: Beliefs, concentration: PerExample, epsilon: float) -> "Dirichlet":
        return cls(log_mu, log_mu.exp() * concentration.unsqueeze(-1) + epsilon)

    @property
    def total(self) -> PerExample:
        return self.alpha.sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Beliefs:
        """Gamma(α) = Gamma(α + 1) · U^{1/α} in log space, with −log U ~ Exponential(1), then normalised.

        Gamma(α + 1) cannot underflow. The exponential is clamped, because under torch.compile about one in two billion
        is infinite, and 0·∞ would make the log-ratio NaN.
        """
        with torch.no_grad():
            many = self.alpha.device.type == "cpu" and self.alpha.numel() >= MANY_DRAWS
            at_once = many and not torch.compiler.is_compiling()  # the number of rejected draws varies
            boosted = (gamma_at_once if at_once else torch._standard_gamma)(self.alpha + 1, generator)
            exponential = torch.empty_like(self.alpha)
            if at_once:
                exponential.uniform_(generator=generator).log_().neg_()
            else:
                exponential.exponential_(generator=generator)
            exponential.clamp_(max=LARGEST_EXPONENTIAL).div_(self.alpha)
            return boosted.log_().sub_(exponential).log_softmax(-1)

    def log_prob(self, log_action: Beliefs) -> PerExample:
        return self.total.lgamma() + ((self.alpha - 1) * log_action - self.alpha.lgamma()).sum(-1)

    def log_ratio(self, old: "Dirichlet", log_action: Beliefs) -> PerExample:
        """log π(a) − log π_old(a), subtracted per class before the sum: the two log-densities can be thousands of nats,
        so that their difference would lose precision."""
        per_class = (self.alpha - old.alpha) * log_action - (self.alpha.lgamma() - old.alpha.lgamma())
        return per_class.sum(-1) + (self.total.lgamma() - old.total.lgamma())

    def own_log_ratio(self, log_action: Beliefs) -> PerExample:
        """`log_ratio` of the policy to itself: 0, but with its gradient, ∂log π(a)/∂α_k = log a_k − ψ(α_k) + ψ(Σα)."""
        with torch.no_grad():
            score = (log_action - self.alpha.digamma()).add_(self.total.digamma().unsqueeze(-1))
        return _without_value((self.alpha * score).sum(-1))

    def own_marginal_log_ratio(self, log_action: Beliefs, labels: Labels) -> PerExample:
        """`marginal_log_ratio` of the policy to itself: 0, but with the gradient of log p(a_y), a_y ~ Beta(α_y, β)."""
        alpha, total = log_scores(self.alpha, labels), self.total
        with torch.no_grad():
            index = labels.expand(log_action.shape[:-1]).unsqueeze(-1)
            others = log_action.scatter(-1, index, -math.inf).logsumexp(-1)  # log(1 − a_y)
            beta = self.alpha.scatter(-1, index, 0.0).sum(-1)
            of_alpha, of_beta = log_scores(log_action, labels) - alpha.digamma(), others - beta.digamma()
            of_total = of_beta + total.digamma()
        return _without_value(alpha * (of_alpha - of_beta) + total * of_total)

    def marginal_log_ratio(self, old: "Dirichlet", log_action: Beliefs, labels: Labels) -> PerExample:
        """log p(a_y) − log p_old(a_y) of the marginal a_y ~ Beta(α_y, Σα of the other classes), which is summed
        directly, because Σα − α_y would lose precision."""
        index = labels.expand(log_action.shape[:-1]).unsqueeze(-1)
        others = log_action.scatter(-1, index, -math.inf).logsumexp(-1)  # log(1 − a_y)
        alpha, old_alpha = log_scores(self.alpha, labels), log_scores(old.alpha, labels)
        beta, old_beta = (policy.alpha.scatter(-1, index, 0.0).sum(-1) for policy in (self, old))
        moved = (alpha - old_alpha) * log_scores(log_action, labels) + (beta - old_beta) * others
        norms = (alpha.lgamma() - old_alpha.lgamma()) + (beta.lgamma() - old_beta.lgamma())
        return moved - norms + (self.total.lgamma() - old.total.lgamma())

    def marginal_log_ratios(self, old: "Dirichlet", log_action: Beliefs) -> Beliefs:
        """`marginal_log_ratio` of every class."""
        others = _log_others(log_action)  # log(1 − a_k)
        beta, old_beta = _others(self.alpha), _others(old.alpha)
        moved = (self.alpha - old.alpha) * log_action + (beta - old_beta) * others
        norms = (self.alpha.lgamma() - old.alpha.lgamma()) + (beta.lgamma() - old_beta.lgamma())
        return moved - norms + (self.total.lgamma() - old.total.lgamma()).unsqueeze(-1)

    def log_mean(self) -> Beliefs:
        return self.alpha.log() - self.total.log().unsqueeze(-1)

    def expected_log(self) -> Beliefs:
        """E[log a_k] = ψ(α_k) − ψ(Σα) of every class."""
        return self.alpha.digamma() - self.total.digamma().unsqueeze(-1)

    def expected_log_score(self, labels: Labels) -> PerExample:
        """E[log a_y] = ψ(α_y) − ψ(Σα), or the mean of E[log a_k] under soft labels."""
        if is_soft(labels):
            return log_scores(self.expected_log(), labels)
        return log_scores(self.alpha, labels).digamma() - self.total.digamma()

    def variance_penalty(self, labels: Labels) -> PerExample:
        """Lemma 2: E[D_F(a_y ‖ m_y)] = log m_y − E[log a_y], the log-score lost by sampling instead of the mean m."""
        return log_scores(self.log_mean(), labels) - self.expected_log_score(labels)

    def entropy(self) -> PerExample:
        classes = self.alpha.shape[-1]
        log_beta = self.alpha.lgamma().sum(-1) - self.total.lgamma()
        spread = (self.total - classes) * self.total.digamma() - ((self.alpha - 1) * self.alpha.digamma()).sum(-1)
        return log_beta + spread

    def log_implied(self) -> Beliefs:
        """log of the label distribution q for which these α are optimal, q_k ∝ 1/ψ'(α_k). With bounded c, the maximum
        of E_q[ψ(α_y)] − ψ(Σα) has a mean less confident than q. Its first-order condition, q_k·ψ'(α_k) = const, gives
        q. Not in the paper."""
        return (-torch.polygamma(1, self.alpha).log()).log_softmax(-1)

    def read(self, readout: Readout) -> Beliefs:
        """The log-belief to report: the paper's `mean` α/Σα, the softmax `mu`, or the `implied` q."""
        if readout == "mean":
            return self.log_mean()
        return self.log_mu if readout == "mu" else self.log_implied()

    def take(self, rows: slice) -> "Dirichlet":
        return Dirichlet(self.log_mu[..., rows, :], self.alpha[..., rows, :])


def gamma_at_once(shape: Beliefs, generator: torch.Generator | None = None) -> Beliefs:
    """Draws from Gamma(shape) for shapes ≥ 1, by the rejection method of Marsaglia and Tsang (2000), that of torch's
    kernel. Nine in ten draws pass the first test; those that fail the second are replaced by draws of the kernel."""
    shapes, one = shape.flatten(), torch.ones((), dtype=shape.dtype)
    centre = shapes - 1 / 3
    normal = torch.empty_like(shapes).normal_(generator=generator)
    square = normal * normal
    cube = torch.addcmul(one, (9 * centre).rsqrt_(), normal).pow_(3)
    uniform = torch.empty_like(shapes).uniform_(generator=generator)
    unsure = (uniform >= torch.addcmul(one, square, square, value=-0.0331)).nonzero().squeeze(1)
    d, u, v, x2 = (part[unsure] for part in (centre, uniform, cube, square))
    passed = u.log() < 0.5 * x2 + d * (1 - v + v.log())  # False where v ≤ 0, whose logarithm is NaN or −∞
    failed = unsure[~passed]
    draws = centre * cube
    draws[failed] = torch._standard_gamma(shapes[failed], generator)
    return draws.view(shape.shape)


def _others(terms: Beliefs) -> Beliefs:
    """For each class the sum over the others, as the sums before and after it: total − class would lose precision."""
    before, after = terms.cumsum(-1), terms.flip(-1).cumsum(-1).flip(-1)
    zero = torch.zeros_like(terms[..., :1])
    return torch.cat([zero, before[..., :-1]], -1) + torch.cat([after[..., 1:], zero], -1)


def _log_others(log_terms: Beliefs) -> Beliefs:
    """`_others` in log space."""
    before, after = log_terms.logcumsumexp(-1), log_terms.flip(-1).logcumsumexp(-1).flip(-1)
    nothing = torch.full_like(log_terms[..., :1], -math.inf)
    return torch.logaddexp(torch.cat([nothing, before[..., :-1]], -1), torch.cat([after[..., 1:], nothing], -1))


def own_log_ratio(policy: SimplexPolicy, log_action: Beliefs) -> PerExample:
    """log π(a) − log π(a) = 0, with the gradient of log π(a)."""
    if isinstance(policy, Dirichlet):
        return policy.own_log_ratio(log_action)
    return _without_value(policy.log_prob(log_action))


def _without_value(terms: PerExample) -> PerExample:
    """0, with the gradient of `terms`."""
    return terms - terms.detach()


@dataclass(frozen=True)
class LogisticNormal:
    """The logistic-normal, the paper's other policy: a = softmax(z) with z_k ~ N(m_k, σ²).

    Its density is exact. Its moments have no closed form: the mean is approximated by softmax(m), and E[log a_y] to
    second order in σ (delta method), which overestimates the variance penalty for σ² well above 1.
    """

    log_mu: Beliefs
    """log softmax(m), which is m up to a constant."""
    variance: PerExample

    @classmethod
    def around(cls, log_mu: Beliefs, concentration: PerExample) -> "LogisticNormal":
        """σ² = K/c, the leading term for c ≫ K of ψ'(c/K), the variance of the log-Gamma variables of a Dirichlet at
        the uniform belief; for c < K the Dirichlet is wider. The paper does not specify σ²."""
        return cls(log_mu, log_mu.shape[-1] / concentration)

    def sample(self, generator: torch.Generator | None = None) -> Beliefs:
        with torch.no_grad():
            noise = torch.empty_like(self.log_mu).normal_(generator=generator) * self.variance.sqrt().unsqueeze(-1)
            return (self.log_mu + noise).log_softmax(-1)

    def log_prob(self, log_action: Beliefs) -> PerExample:
        """Normal density in K − 1 dimensions of the centred log-probabilities, times the Jacobian 1 / (√K Π a_k)."""
        return self._log_normal(log_action) - log_action.sum(-1) - 0.5 * math.log(log_action.shape[-1])

    def log_ratio(self, old: "LogisticNormal", log_action: Beliefs) -> PerExample:
        """log π(a) − log π_old(a); the Jacobians cancel."""
        return self._log_normal(log_action) - old._log_normal(log_action)

    def log_mean(self) -> Beliefs:
        return self.log_mu

    def expected_log_score(self, labels: Labels) -> PerExample:
        return log_scores(self.log_mu, labels) - self._log_normalizer()

    def variance_penalty(self, labels: Labels) -> PerExample:
        """Lemma 2 with the approximate moments, which give the same value for every label."""
        return self._log_normalizer()

    def entropy(self) -> PerExample:
        """Entropy of the normal, plus the expected log of the inverse Jacobian, ½ log K + Σ E[log a_k]."""
        classes = self.log_mu.shape[-1]
        normal = 0.5 * (classes - 1) * (2 * math.pi * math.e * self.variance).log()
        return normal + 0.5 * math.log(classes) + self.log_mu.sum(-1) - classes * self._log_normalizer()

    def read(self, readout: Readout) -> Beliefs:
        """`mean` and `mu` are the same; `implied` exists only for the Dirichlet."""
        return self.log_mu

    def take(self, rows: slice) -> "LogisticNormal":
        return LogisticNormal(self.log_mu[..., rows, :], self.variance[..., rows])

    def _log_normal(self, log_action: Beliefs) -> PerExample:
        gap = log_action - self.log_mu
        distance = (gap - gap.mean(-1, keepdim=True)).square().sum(-1)
        dimensions = log_action.shape[-1] - 1
        return -0.5 * (distance / self.variance + dimensions * (2 * math.pi * self.variance).log())

    def _log_normalizer(self) -> PerExample:
        """E[log Σ exp z_k] − log Σ exp m_k ≈ ½σ² (1 − Σ μ_k²)."""
        return 0.5 * self.variance * (1 - self.log_mu.exp().square().sum(-1))


# Random numbers: torch's global generator is shared by all threads, so two runs in two threads would not repeat. A
# trainer on a CPU therefore has its own generator. On a GPU, where updates are recorded as graphs, the device's default
# generator is used and `current` returns None.

_CURRENT: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


def current() -> torch.Generator | None:
    """The `generator` argument for torch functions in this thread; None means torch's global generator."""
    return _CURRENT.get()


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Make `generator` the current one of this thread."""
    token = _CURRENT.set(generator)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def building_with(generator: torch.Generator | None) -> AbstractContextManager[Any]:
    """Context in which modules draw their initial weights from `generator`, a CPU generator. Constructors of modules
    take no generator, so it is passed to every torch function for random numbers that this thread calls."""
    return nullcontext() if generator is None else _Building(generator)


_DRAWS = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
    *("uniform_", "normal_", "exponential_", "log_normal_", "cauchy_", "geometric_", "random_", "bernoulli_"),
}


class _Building(TorchFunctionMode):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        # functions of torch.nn.init pass on a `generator` that may be None
        draws = "generator" in options or getattr(function, "__name__", "") in _DRAWS
        if draws and options.get("generator") is None and _is_on_cpu(args, options):
            options["generator"] = self.generator
        return function(*args, **options)


def _is_on_cpu(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    tensor = next((value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)), None)
    device = tensor.device if tensor is not None else options.get("device")
    return device is None or torch.device(device).type == "cpu"
