import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.core.policies import (
    MANY_DRAWS,
    Dirichlet,
    LogisticNormal,
    building_with,
    current,
    drawing_from,
    gamma_at_once,
    own_log_ratio,
)


def dirichlet(alpha: torch.Tensor, epsilon: float = 0.0) -> Dirichlet:
    direction = alpha - epsilon
    return Dirichlet((direction / direction.sum(-1, keepdim=True)).log(), alpha)


def random_policy(classes: int, seed: int, rows: int = 4, concentration: float = 10.0) -> Dirichlet:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=generator)
    return Dirichlet.around(logits.log_softmax(-1), torch.full((rows,), concentration), 0.01)


def test_alpha_is_mu_times_c_plus_epsilon() -> None:
    policy = Dirichlet.around(torch.tensor([0.9, 0.1]).log(), torch.tensor(10.0), 0.01)
    assert policy.alpha.tolist() == pytest.approx([9.01, 1.01])


@given(st.sampled_from([2, 3, 10]), st.integers(0, 1000))
def test_log_prob_and_entropy_agree_with_scipy(classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alpha = rng.uniform(0.3, 8, classes)
    action = rng.dirichlet(np.ones(classes))
    policy = dirichlet(torch.tensor(alpha))
    reference = stats.dirichlet(alpha)
    log_prob = policy.log_prob(torch.tensor(np.log(action)))
    assert log_prob.item() == pytest.approx(reference.logpdf(action), rel=1e-9, abs=1e-9)
    assert policy.entropy().item() == pytest.approx(reference.entropy(), rel=1e-9, abs=1e-9)


@given(st.sampled_from([2, 3, 10]), st.integers(0, 1000))
def test_the_marginal_of_one_class_is_a_beta(classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    new, old = rng.uniform(0.3, 8, (2, classes))
    action, label = rng.dirichlet(np.ones(classes)), int(rng.integers(classes))
    reference = [stats.beta(alpha[label], alpha.sum() - alpha[label]).logpdf(action[label]) for alpha in (new, old)]
    log_action, labels = torch.tensor(np.log(action))[None], torch.tensor([label])
    new_policy, old_policy = (dirichlet(torch.tensor(alpha)[None]) for alpha in (new, old))
    ratio = new_policy.marginal_log_ratio(old_policy, log_action, labels)
    assert ratio.item() == pytest.approx(reference[0] - reference[1], rel=1e-7, abs=1e-9)
    if classes == 2:  # a_y is all there is to know
        torch.testing.assert_close(ratio, new_policy.log_ratio(old_policy, log_action))


@pytest.mark.parametrize("classes", [10, 1000])
def test_the_gradient_of_the_beta_density_keeps_its_digits_in_single_precision(classes: int) -> None:
    """Where nearly all of c is on the label, the α of the others are lost in the digits of the whole."""
    labels = torch.zeros(64, dtype=torch.int64)
    logits = torch.randn(64, classes) + 20 * torch.nn.functional.one_hot(labels, classes)
    policy = Dirichlet.around(logits.log_softmax(-1), torch.full((64,), 10.0 * classes), 0.1 / classes)
    log_action = policy.sample()

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        alpha = policy.alpha.to(dtype).requires_grad_()
        ratio = dirichlet(alpha).marginal_log_ratio(dirichlet(alpha.detach()), log_action.to(dtype), labels)
        assert not ratio.any()
        return torch.autograd.grad(ratio.sum(), alpha)[0].double()

    torch.testing.assert_close(gradient(torch.float32), gradient(torch.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("alpha", [[0.01, 10.01], [0.01, 0.01, 0.5], [1.01] * 10, [0.5, 3.0, 9.0]])
def test_samples_have_beta_marginals_also_in_the_far_tail(alpha: list[float]) -> None:
    """Kolmogorov–Smirnov on log a_k: a clamped or underflowed sampler fails at α = 0.01."""
    draws = dirichlet(torch.tensor(alpha).expand(4000, -1)).sample()
    rest = sum(alpha[1:])
    # −log a_1 is far beyond float range in a; betainc takes the probability, so compare where it is positive.
    representable = draws[:, 0] > -80
    below = special.betainc(alpha[0], rest, math.exp(-80))
    assert (~representable).double().mean().item() == pytest.approx(below, abs=0.03)
    conditional = (special.betainc(alpha[0], rest, draws[representable, 0].double().exp().numpy()) - below) / (
        1 - below
    )
    assert stats.kstest(conditional, "uniform").pvalue > 1e-3


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([2, 10, 100, 1000]), st.integers(0, 100))
def test_samples_lie_on_the_simplex_and_stay_finite(classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    policy = random_policy(classes, seed, rows=64)
    draws = policy.sample()
    assert draws.isfinite().all()
    assert draws.dtype == torch.float32
    torch.testing.assert_close(draws.exp().sum(-1), torch.ones(64))
    assert policy.log_prob(draws).isfinite().all()


@pytest.mark.parametrize("shape", [1.01, 1.1, 2.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_gamma_draws_have_the_gamma_distribution(shape: float, dtype: torch.dtype) -> None:
    """Kolmogorov–Smirnov; without the second test of the rejection method, it fails at shape 1.01."""
    draws = gamma_at_once(torch.full((100, 400), shape, dtype=dtype), torch.Generator().manual_seed(0))
    assert draws.dtype == dtype
    assert stats.kstest(draws.flatten().double().numpy(), stats.gamma(shape).cdf).pvalue > 1e-3


def test_many_draws_where_the_uniform_number_is_0_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self, generator: self.zero_())
    assert dirichlet(torch.full((MANY_DRAWS, 2), 0.1)).sample().isfinite().all()


def test_an_infinite_draw_leaves_a_finite_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled exponential is −log of a uniform number that may be exactly 0."""

    def infinite(self: torch.Tensor, generator: object) -> torch.Tensor:
        return self.fill_(1.0).index_fill_(-1, torch.tensor(0), torch.inf)

    monkeypatch.setattr(torch.Tensor, "exponential_", infinite)
    policy = dirichlet(torch.tensor([[0.1, 2.0, 5.0]]))
    log_action = policy.sample()
    assert log_action.isfinite().all()
    assert policy.log_ratio(policy, log_action).item() == 0


def test_expected_log_score_agrees_with_samples_and_known_values() -> None:
    """Known values at K = 10, ε = 0.01, c = 10: uniform −2.82, confidently wrong −102.8, μ_y = 0.9 −0.120."""
    uniform = dirichlet(torch.full((1, 10), 1.01).double())
    wrong = dirichlet(torch.tensor([[0.01] * 9 + [10.01]]).double())
    assert uniform.expected_log_score(torch.tensor([0])).item() == pytest.approx(-2.82, abs=0.005)
    assert wrong.expected_log_score(torch.tensor([0])).item() == pytest.approx(-102.8, abs=0.1)
    likely = Dirichlet.around(torch.tensor([[0.9] + [0.1 / 9] * 9]).double().log(), torch.tensor([10.0]).double(), 0.01)
    assert likely.expected_log_score(torch.tensor([0])).item() == pytest.approx(-0.120, abs=0.001)
    draws = dirichlet(torch.tensor([0.3, 2.0, 5.0]).expand(200_000, -1)).sample()[:, 0]
    assert draws.mean().item() == pytest.approx(special.digamma(0.3) - special.digamma(7.3), abs=0.03)


def test_the_expected_score_of_soft_labels_agrees_with_samples() -> None:
    """q = (0.2, 0.5, 0.3) and α = (0.3, 2, 5): Σ q_k ψ(α_k) − ψ(7.3)."""
    alpha, soft = torch.tensor([0.3, 2.0, 5.0]), torch.tensor([[0.2, 0.5, 0.3]])
    expected = 0.2 * special.digamma(0.3) + 0.5 * special.digamma(2) + 0.3 * special.digamma(5) - special.digamma(7.3)
    assert dirichlet(alpha[None]).expected_log_score(soft).item() == pytest.approx(expected, abs=1e-5)
    torch.manual_seed(0)
    draws = log_scores(dirichlet(alpha.expand(200_000, -1)).sample(), soft.expand(200_000, -1))
    assert draws.mean().item() == pytest.approx(expected, abs=4 * draws.std().item() / 200_000**0.5)
    normal = logistic_normal(3, 0.1, rows=200_000)
    soft = soft.expand(200_000, -1)
    assert log_scores(normal.sample(), soft).mean().item() == pytest.approx(
        normal.expected_log_score(soft).mean().item(), abs=0.01
    )


@pytest.mark.parametrize("classes", [2, 10, 300])
def test_the_marginal_ratios_of_all_classes_are_those_of_each(classes: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, classes) + 20 * torch.nn.functional.one_hot(torch.zeros(5, dtype=torch.int64), classes)
    old = Dirichlet.around(logits.log_softmax(-1), torch.full((5,), 50.0), 0.1 / classes)
    new = Dirichlet.around((logits + torch.randn(5, classes)).log_softmax(-1), torch.full((5,), 40.0), 0.1 / classes)
    log_action = old.sample()
    together = new.marginal_log_ratios(old, log_action)
    each = [new.marginal_log_ratio(old, log_action, torch.full((5,), k)) for k in range(classes)]
    torch.testing.assert_close(together, torch.stack(each, -1), rtol=1e-4, atol=1e-4)


@given(st.integers(2, 20), st.integers(0, 1000), st.floats(1, 1000))
def test_variance_penalty_is_positive_and_vanishes_as_c_grows(classes: int, seed: int, c: float) -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    log_mu = random_policy(classes, seed).log_mu.double()
    loose, tight = (Dirichlet.around(log_mu, torch.full((4,), k * c).double(), epsilon=0.0) for k in (1, 100))
    assert (loose.variance_penalty(labels) > 0).all()
    assert (tight.variance_penalty(labels) < loose.variance_penalty(labels)).all()


def test_variance_penalty_is_the_expected_bregman_divergence() -> None:
    """Lemma 2 by numerical integration over the Beta marginal, and its ½Var/m² approximation at large α."""
    a, b = 3.0, 4.0
    mean = a / (a + b)
    density = stats.beta(a, b).pdf
    divergence, _ = integrate.quad(lambda x: (x / mean - math.log(x / mean) - 1) * density(x), 0, 1)
    exact = dirichlet(torch.tensor([[a, b]]).double()).variance_penalty(torch.tensor([0])).item()
    assert exact == pytest.approx(divergence, rel=1e-7)
    large = dirichlet(torch.tensor([[3000.0, 4000.0]]).double())
    approximate = (1 - mean) / mean / (2 * 7001)
    assert large.variance_penalty(torch.tensor([0])).item() == pytest.approx(approximate, rel=1e-3)


def test_readouts_by_hand() -> None:
    policy = Dirichlet.around(torch.tensor([0.8, 0.2]).double().log(), torch.tensor(4.0).double(), epsilon=0.5)
    assert policy.read("mean").exp().tolist() == pytest.approx([3.7 / 5, 1.3 / 5])
    assert policy.read("mu").exp().tolist() == pytest.approx([0.8, 0.2])
    weights = 1 / special.polygamma(1, [3.7, 1.3])
    assert policy.read("implied").exp().tolist() == pytest.approx((weights / weights.sum()).tolist())


@pytest.mark.parametrize("q", [0.6, 0.9, 0.99])
def test_implied_readout_returns_q_at_the_optimum_and_the_mean_falls_short(q: float) -> None:
    """Maximise E_q[ψ(α_y)] − ψ(Σα) at c = 10, K = 10 with an independent optimiser."""
    classes, c, epsilon = 10, 10.0, 0.01
    target = np.array([q] + [(1 - q) / (classes - 1)] * (classes - 1))

    def alpha_of(logit: float) -> np.ndarray:
        mu = np.exp(np.array([logit] + [0.0] * (classes - 1)))
        return mu / mu.sum() * c + epsilon

    def loss(logit: float) -> float:
        alpha = alpha_of(logit)
        return float(-(target @ special.digamma(alpha)) + special.digamma(alpha.sum()))

    alpha = alpha_of(optimize.minimize_scalar(loss, bounds=(0, 15), method="bounded", options={"xatol": 1e-10}).x)
    policy = dirichlet(torch.tensor(alpha), epsilon)
    assert policy.read("implied").exp()[0].item() == pytest.approx(q, abs=1e-4)
    assert policy.read("mean").exp()[0].item() < q - 0.05
    if q == 0.9:
        assert policy.read("mean").exp()[0].item() == pytest.approx(0.727, abs=0.001)


@given(st.sampled_from([2, 10, 1000]), st.integers(0, 100))
def test_log_ratio_is_the_difference_of_log_probs_and_exactly_zero_for_the_same_policy(classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    old = random_policy(classes, seed)
    draws = old.sample()
    assert old.log_ratio(random_policy(classes, seed), draws).abs().max().item() == 0
    new = Dirichlet(old.log_mu, old.alpha * (1 + 0.01 * torch.randn_like(old.alpha)))
    double = [Dirichlet(p.log_mu.double(), p.alpha.double()) for p in (new, old)]
    expected = double[0].log_prob(draws.double()) - double[1].log_prob(draws.double())
    torch.testing.assert_close(new.log_ratio(old, draws).double(), expected, rtol=1e-3, atol=2e-2)


@given(st.sampled_from([2, 3, 10]), st.integers(0, 1000))
def test_the_ratio_to_itself_is_zero_with_the_gradient_of_the_density(classes: int, seed: int) -> None:
    policy = random_policy(classes, seed, concentration=30.0)
    alpha, labels = policy.alpha.double().requires_grad_(), torch.arange(4) % classes
    policy, old = Dirichlet(policy.log_mu, alpha), Dirichlet(policy.log_mu, alpha.detach())
    log_action = policy.sample(torch.Generator().manual_seed(seed))
    pairs = [
        (own_log_ratio(policy, log_action), policy.log_ratio(old, log_action)),
        (policy.own_marginal_log_ratio(log_action, labels), policy.marginal_log_ratio(old, log_action, labels)),
    ]
    for ours, theirs in pairs:
        assert ours.abs().max() == 0
        torch.testing.assert_close(*(torch.autograd.grad(ratio.sum(), alpha)[0] for ratio in (ours, theirs)))


def test_the_ratio_of_another_policy_to_itself_has_the_gradient_of_its_density() -> None:
    log_mu, variance = torch.randn(4, 3).double().log_softmax(-1).requires_grad_(), torch.ones(4).double()
    policy, log_action = LogisticNormal(log_mu, variance), torch.randn(4, 3).double().log_softmax(-1)
    ratio, density = own_log_ratio(policy, log_action), policy.log_prob(log_action)
    assert ratio.abs().max() == 0
    torch.testing.assert_close(*(torch.autograd.grad(terms.sum(), log_mu)[0] for terms in (ratio, density)))


def test_no_gradient_flows_through_samples_and_gradients_are_finite_at_the_edge() -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)
    policy = Dirichlet.around(logits.log_softmax(-1), torch.tensor([10.0]), 0.01)
    draws = policy.sample()
    assert not draws.requires_grad
    policy.log_prob(draws).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(("c_max", "epsilon"), [(10.0, 0.01), (1000.0, 1e-4), (10_000.0, 0.1)])
def test_a_thousand_classes_keep_their_digits_in_float32(c_max: float, epsilon: float) -> None:
    """In the paper's range of α and in both of `fast`: against float64 on the same parameters and actions."""
    logits = 3 * torch.randn(64, 1000)
    moved = logits + 0.01 * torch.randn_like(logits)
    labels = torch.randint(1000, (64,))

    def policy(of: torch.Tensor) -> Dirichlet:
        return Dirichlet.around(of.log_softmax(-1), torch.full((64,), c_max / 2, dtype=of.dtype), epsilon)

    old, new, exact = policy(logits), policy(moved), policy(moved.double())
    actions = old.sample()
    assert actions.isfinite().all()
    assert (old.log_ratio(old, actions) == 0).all()
    expected = exact.log_ratio(policy(logits.double()), actions.double())
    torch.testing.assert_close(new.log_ratio(old, actions).double(), expected, atol=0.03, rtol=0)
    for readout in ("mean", "mu", "implied"):
        torch.testing.assert_close(new.read(readout).double(), exact.read(readout), atol=1e-4, rtol=0)
    score = exact.expected_log_score(labels)
    torch.testing.assert_close(new.expected_log_score(labels).double(), score, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(new.entropy().double(), exact.entropy(), atol=0.1, rtol=1e-5)


def logistic_normal(classes: int, variance: float, seed: int = 0, rows: int = 1) -> LogisticNormal:
    logits = torch.randn(classes, generator=torch.Generator().manual_seed(seed)).double()
    return LogisticNormal(logits.log_softmax(-1).expand(rows, -1), torch.full((rows,), variance, dtype=torch.float64))


@given(st.integers(2, 8), st.floats(0.1, 5), st.integers(0, 100))
def test_density_agrees_with_a_normal_on_additive_log_ratios(classes: int, variance: float, seed: int) -> None:
    """The textbook route: log(a_k/a_K) is normal with covariance σ²(I + 11ᵀ), and the Jacobian is 1/Π a_k."""
    ours = logistic_normal(classes, variance, seed)
    log_action = torch.tensor(np.log(np.random.default_rng(seed).dirichlet(np.ones(classes)))).unsqueeze(0)
    covariance = variance * (np.eye(classes - 1) + 1)
    ratios = (log_action[0, :-1] - log_action[0, -1]).numpy()
    centre = (ours.log_mu[0, :-1] - ours.log_mu[0, -1]).numpy()
    reference = stats.multivariate_normal(centre, covariance).logpdf(ratios) - log_action.sum().item()
    assert ours.log_prob(log_action).item() == pytest.approx(reference, rel=1e-9, abs=1e-9)


def test_density_integrates_to_one_over_two_classes() -> None:
    grid = torch.linspace(1e-4, 1 - 1e-4, 20_001).double()
    log_actions = torch.stack([grid.log(), (1 - grid).log()], -1)
    density = logistic_normal(2, 0.5, rows=1).log_prob(log_actions).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-3)


def test_the_ratio_is_the_difference_of_the_densities() -> None:
    new, old = logistic_normal(5, 0.7, 1, rows=9), logistic_normal(5, 1.3, 2, rows=9)
    log_action = old.sample()
    torch.testing.assert_close(new.log_ratio(old, log_action), new.log_prob(log_action) - old.log_prob(log_action))


def test_samples_have_the_density_they_claim() -> None:
    """E[π_new/π_old] = 1 under π_old, and the log-ratios of the classes have variance 2σ²."""
    torch.manual_seed(0)
    old, new = logistic_normal(4, 1.0, 1, rows=200_000), logistic_normal(4, 0.8, 1, rows=200_000)
    draws = old.sample()
    assert new.log_ratio(old, draws).exp().mean().item() == pytest.approx(1, abs=0.02)
    assert (draws[:, 0] - draws[:, 1]).var().item() == pytest.approx(2.0, rel=0.02)
    assert draws.logsumexp(-1).abs().max().item() < 1e-12


@pytest.mark.parametrize("variance", [0.01, 0.1, 0.3])
def test_expected_score_penalty_and_entropy_are_right_to_second_order(variance: float) -> None:
    torch.manual_seed(1)
    ours = logistic_normal(5, variance, 3, rows=200_000)
    labels = torch.full((200_000,), 2)
    draws = ours.sample()
    tolerance = 0.25 * variance**2 + 4 * math.sqrt(variance / 200_000)
    assert ours.expected_log_score(labels)[0].item() == pytest.approx(draws[:, 2].mean().item(), abs=tolerance)
    penalty = (ours.log_mu[:, 2] - draws[:, 2]).mean().item()
    assert ours.variance_penalty(labels)[0].item() == pytest.approx(penalty, abs=tolerance)
    assert ours.entropy()[0].item() == pytest.approx(-ours.log_prob(draws).mean().item(), abs=5 * tolerance + 0.02)


def test_its_spread_is_the_dirichlets_at_the_uniform_belief() -> None:
    """σ² = K/c is the leading term of Var(log a_i − log a_j)/2 = ψ'(c/K)."""
    uniform, concentration = torch.full((4,), 0.25).double().log(), torch.tensor(400.0).double()
    ours = LogisticNormal.around(uniform, concentration)
    theirs = Dirichlet.around(uniform, concentration, 0.0)
    assert ours.variance.item() == pytest.approx(torch.polygamma(1, theirs.alpha[0]).item(), rel=0.01)


def test_gradient_reaches_mean_and_variance_and_a_thousand_classes_keep_their_digits() -> None:
    logits, concentration = torch.randn(3, 4, requires_grad=True), torch.full((3,), 5.0, requires_grad=True)
    ours = LogisticNormal.around(logits.log_softmax(-1), concentration)
    ours.log_prob(ours.sample()).sum().backward()
    assert logits.grad.abs().min() > 0
    assert concentration.grad.abs().min() > 0
    logits = 3 * torch.randn(64, 1000)
    moved = logits + 0.01 * torch.randn_like(logits)

    def around(of: torch.Tensor) -> LogisticNormal:
        return LogisticNormal.around(of.log_softmax(-1), torch.full((64,), 5000.0, dtype=of.dtype))

    old = around(logits)
    actions = old.sample()
    expected = around(moved.double()).log_ratio(around(logits.double()), actions.double())
    torch.testing.assert_close(around(moved).log_ratio(old, actions).double(), expected, atol=2e-3, rtol=0)
    assert (old.log_ratio(old, actions) == 0).all()
    torch.testing.assert_close(around(moved).entropy().double(), around(moved.double()).entropy(), atol=0.05, rtol=1e-5)


MAKERS: dict[str, Callable[[], Tensor]] = {
    "linear": lambda: nn.Linear(7, 5).weight,
    "convolution": lambda: nn.Conv2d(3, 4, 3).weight,
    "embedding": lambda: nn.Embedding(20, 3).weight,
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 4)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(4, 4)),
    "rand": lambda: torch.rand(3, 4),
    "randn": lambda: torch.randn(3, 4),
    "randint": lambda: torch.randint(9, (20,)),
    "randint from": lambda: torch.randint(3, 9, (20,)),
    "randperm": lambda: torch.randperm(20),
    "recurrent": lambda: nn.GRU(3, 4).weight_hh_l0,
    "uniform": lambda: torch.empty(3, 4).uniform_(-1, 1),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.5)),
    "own generator": lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_building_with_a_generator_draws_as_torch_and_keeps_its_state(name: str) -> None:
    torch.manual_seed(8)
    expected = MAKERS[name]().detach().clone()
    following = torch.rand(3) if name != "own generator" else None
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(8)
    with building_with(generator):
        made = MAKERS[name]().detach()
    assert torch.equal(made, expected)
    assert torch.equal(torch.get_rng_state(), state)
    if following is not None:
        assert torch.equal(torch.rand(3, generator=generator), following)


def test_without_a_generator_torch_draws() -> None:
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    with building_with(None):
        assert torch.equal(torch.rand(3), expected)


def test_each_thread_has_its_own() -> None:
    generator = torch.Generator()
    assert current() is None
    with drawing_from(generator), ThreadPoolExecutor(1) as other:
        assert current() is generator
        assert other.submit(current).result() is None
        with drawing_from(None):
            assert current() is None
        assert current() is generator
    assert current() is None


def test_compiled_code_takes_the_kernel_whose_shapes_do_not_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.core.policies.gamma_at_once", None)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    policy = Dirichlet(torch.full((MANY_DRAWS, 2), 0.5).log(), torch.ones(MANY_DRAWS, 2))
    assert policy.sample().isfinite().all()
