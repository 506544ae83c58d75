import copy
import math
from dataclasses import fields, replace
from typing import Any

import networks
import pytest
import torch
from networks import CLASSES
from torch import Tensor, nn
from torch.distributions import Dirichlet as TorchDirichlet

from refusals import refusal
from ricnet.core import mdp
from ricnet.core.policies import LogisticNormal
from ricnet.errors import RicnetError
from ricnet.methods import RIC, ClosedForm, OnPolicy
from ricnet.methods.inference import Steps
from ricnet.methods.ric import Estimates
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier

BATCH = 6
SMALL = RIC(horizon=5, rollouts=3)


def network(method: RIC = SMALL) -> RecurrentClassifier:
    return networks.network(method)


def batch() -> tuple[Tensor, Tensor]:
    return networks.batch(BATCH)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_ratio_is_one_right_after_a_snapshot_also_with_batch_norm(dtype: torch.dtype, tolerance: float) -> None:
    encoder = nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.Tanh())
    model, (inputs, labels) = SMALL.build(Backbone(encoder, (7,)), CLASSES).to(dtype).train(), batch()
    _, metrics = SMALL.loss(model, copy.deepcopy(model), inputs.to(dtype), labels)
    assert metrics["ratio_deviation"].item() <= tolerance
    assert metrics["approx_kl"].item() == pytest.approx(0, abs=tolerance)


def test_bootstrap_value_is_that_of_the_state_after_the_last_action() -> None:
    model, (inputs, _) = network(), batch()
    rollout = SMALL.roll_out(model, model.context(inputs))
    assert rollout.values.shape == (6, 3, BATCH)
    longer = replace(SMALL, horizon=6).replay(
        model, model.context(inputs), torch.cat([rollout.log_actions, rollout.log_actions[:1]])
    )
    torch.testing.assert_close(longer.value, rollout.values)


def test_no_gradient_reaches_the_snapshot() -> None:
    model, snapshot, (inputs, labels) = network(), network(), batch()
    SMALL.loss(model, snapshot, inputs, labels)[0].backward()
    assert all(p.grad is None for p in snapshot.parameters())


def test_it_is_rewarded_by_equation_1(monkeypatch: pytest.MonkeyPatch) -> None:
    method = replace(SMALL, normalize_advantages=False)
    model, (inputs, labels) = network(method), batch()
    rollout = method.roll_out(model, model.context(inputs))
    monkeypatch.setattr(mdp, "rewards", lambda scores, initial: torch.zeros_like(scores))
    expected = mdp.advantages(torch.zeros_like(rollout.values[1:]), rollout.values, method.gamma, method.gae_lambda)
    torch.testing.assert_close(method.estimate_advantages(rollout, labels).advantages, expected)


@pytest.mark.parametrize("label_baseline", [False, True])
def test_the_estimate_of_the_variants_contains_algorithm_1(label_baseline: bool) -> None:
    """Joint credit without exits: the same bits from the general formula, with no gain left out."""
    method = replace(SMALL, normalize_advantages=False, label_baseline=label_baseline)
    model, (inputs, labels) = network(method), batch()
    rollout = method.roll_out(model, model.context(inputs))
    plain, general = method.estimate_advantages(rollout, labels), method._estimate_variant(rollout, labels)
    assert all(map(torch.equal, plain[:3], general[:3]))
    assert general.own_advantages.abs().max() == 0


def test_metrics_by_their_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    model, snapshot, (inputs, labels) = network(), network(), batch()
    rollout = SMALL.roll_out(snapshot, snapshot.context(inputs))
    monkeypatch.setattr(RIC, "roll_out", lambda *_: rollout)
    _, metrics = SMALL.loss(model, snapshot, inputs, labels)
    heads = SMALL.replay(model, model.context(inputs), rollout.log_actions)
    policy = SMALL.policy(heads)
    new, old = TorchDirichlet(policy.alpha), TorchDirichlet(rollout.policy.alpha)
    log_ratio = new.log_prob(rollout.log_actions.exp()) - old.log_prob(rollout.log_actions.exp())
    mean = policy.alpha / policy.alpha.sum(-1, keepdim=True)
    expected = policy.alpha.digamma() - policy.alpha.sum(-1, keepdim=True).digamma()
    rewards = mdp.rewards(mdp.log_scores(rollout.log_actions, labels), -math.log(CLASSES))
    targets = mdp.advantages(rewards, rollout.values, 0.8, 0.95) + rollout.values[:-1]
    by_hand = {
        "approx_kl": (log_ratio.exp() - 1 - log_ratio).mean(),
        "mean_c": (1 + 9 * heads.concentration.sigmoid()).mean(),
        "entropy": new.entropy().mean(),
        "variance_penalty": mdp.log_scores(mean.log() - expected, labels).mean(),
        "explained_variance": 1 - (targets - heads.value).var() / targets.var(),
        "return": 1 + mdp.log_scores(rollout.log_actions[-1], labels).mean() / math.log(CLASSES),
        "accuracy": (heads.logits[-1].argmax(-1) == labels).double().mean(),
        "logit_norm": heads.logits.square().sum(-1).sqrt().mean(),
    }
    for name, value in by_hand.items():
        assert metrics[name].item() == pytest.approx(value.item(), rel=1e-5, abs=1e-7), name


def test_reward_floor_limits_the_cost_of_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (inputs, labels) = network(), batch()
    rollout = SMALL.roll_out(model, model.context(inputs))
    hopeless = rollout._replace(log_actions=torch.full_like(rollout.log_actions, -500.0))
    monkeypatch.setattr(RIC, "roll_out", lambda *_: hopeless)
    for floor, worst in ((None, -500.0), (1e-4, math.log(1e-4))):
        _, metrics = replace(SMALL, reward_floor=floor).loss(model, model, inputs, labels)
        assert metrics["return"].item() == pytest.approx(1 + worst / math.log(CLASSES))


def test_another_reward_counts_from_its_own_score_of_the_uniform_belief() -> None:
    """Without discount or values, the advantage of the first step is all that was gained: here in Brier score."""

    class Brier(RIC):
        def score(self, log_beliefs: Tensor, labels: Tensor) -> Tensor:
            truth = nn.functional.one_hot(labels, log_beliefs.shape[-1])
            return -(log_beliefs.exp() - truth).square().sum(-1)

    method = Brier(horizon=3, gamma=1.0, gae_lambda=1.0, normalize_advantages=False)
    model, (inputs, labels) = network(method), batch()
    rollout = method.roll_out(model, model.context(inputs))
    rollout = rollout._replace(values=torch.zeros_like(rollout.values))
    estimates = method.estimate_advantages(rollout, labels)
    final = method.score(rollout.log_actions[-1], labels)
    torch.testing.assert_close(estimates.advantages[0], final + (1 - 1 / CLASSES))
    assert method.loss(model, model, inputs, labels)[0].isfinite()


@pytest.mark.parametrize(
    ("quieter", "noise", "otherwise"),
    [
        ({"label_baseline": True}, 0.9, {}),
        ({"credit": "marginal"}, 0.9, {}),
        ({"credit": "marginal"}, 0.5, {"gae_lambda": 0.0, "label_baseline": True, "step_weight": "discounted"}),
        ({"kind": ClosedForm}, 0.05, {}),
        ({"kind": ClosedForm}, 0.05, {"step_weight": "discounted"}),
    ],
)
def test_less_noise_leaves_the_expected_gradient_as_it_is(
    quieter: dict[str, Any], noise: float, otherwise: dict[str, Any]
) -> None:
    """Averaged over many roll-outs, both advantages push the policy the same way; one of them with less noise."""
    torch.manual_seed(1)
    method = OnPolicy(horizon=3, rollouts=4, normalize_advantages=False, value_coef=0.0, **otherwise)
    model, inputs, labels = network(method), torch.randn(2, 7).double(), torch.tensor([0, 1])
    with torch.no_grad():
        model.refiner.policy.weight.mul_(50)
    inputs, labels = inputs.repeat(100, 1), labels.repeat(100)

    def gradients(draws: int, **changes: Any) -> Tensor:
        asked = as_kind(method, **changes)
        losses = (asked.loss(model, model, inputs, labels)[0] for _ in range(draws))
        return torch.stack([torch.autograd.grad(loss, model.refiner.policy.weight)[0].flatten() for loss in losses])

    plain, quiet = gradients(40), gradients(40, **quieter)
    error = (plain.var(0) / 40 + quiet.var(0) / 40).sqrt()
    assert ((plain.mean(0) - quiet.mean(0)) / error).square().mean() < 2.5
    assert quiet.var(0).sum() < noise * plain.var(0).sum()
    assert quiet.mean(0).norm() > 3 * error.norm()


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"objective": "expected"}, ("--credit marginal", "joint")),
        ({"head": "logistic-normal"}, ("--credit marginal", "joint with --head logistic-normal")),
    ],
)
def test_marginal_credit_is_refused_where_it_has_no_meaning(beside: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(RicnetError) as refused:
        OnPolicy(credit="marginal", **beside)
    assert all(part in str(refused.value) for part in named)


def test_accuracy_and_return_are_those_of_the_last_step() -> None:
    """Two steps: first right and sure, then wrong."""
    logits = torch.tensor([[9.0, 0, 0, 0], [0, 9.0, 0, 0]]).expand(1, 1, 2, 4).transpose(0, 2)
    heads = Heads(logits, torch.zeros(2, 1, 1), torch.tensor([[[1.0]], [[2.0]]]))
    scores = torch.tensor([[[0.0]], [[-math.log(2)]]])
    estimates = Estimates(scores, scores, torch.tensor([[[1.0]], [[4.0]]]))
    metrics = SMALL.metrics(heads, SMALL.policy(heads), torch.zeros(2, 1, 1), estimates, torch.tensor([0]))
    assert metrics["accuracy"].item() == 0
    assert metrics["return"].item() == pytest.approx(0.5)
    assert metrics["explained_variance"].item() == pytest.approx(1 - 2 / 4.5)


def test_the_policy_is_of_the_family_and_size_that_the_settings_say() -> None:
    """A logistic-normal of variance K/c; a policy head of orthogonal rows of the given length."""
    heads = Heads(torch.randn(3, CLASSES), torch.zeros(3), torch.zeros(3))
    policy = RIC(head="logistic-normal", c_min=1.0, c_max=9.0).policy(heads)
    assert isinstance(policy, LogisticNormal)
    torch.testing.assert_close(policy.variance, torch.full((3,), CLASSES / 5))
    weight = network(replace(SMALL, head_gain=0.3)).refiner.policy.weight
    torch.testing.assert_close(weight @ weight.T, 0.09 * torch.eye(CLASSES).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("outputs", [0, -1, 2.5, None])
def test_too_few_spread_outputs_are_refused(outputs: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RIC, "spread_outputs", lambda *_: outputs)
    with refusal(f"RIC.spread_outputs({CLASSES}) is {outputs}"):
        network()


def test_a_clipped_concentration_starts_in_the_middle_and_has_no_gradient_outside() -> None:
    method = RIC(c_range="clip")
    raw = torch.tensor([0.0, 2.0, 7.0, -20.0], requires_grad=True)
    heads = Heads(torch.zeros(4, CLASSES), raw, torch.zeros(4))
    total = method.policy(heads).alpha.sum(-1) - CLASSES * 0.01
    torch.testing.assert_close(total.detach(), torch.tensor([5.5, 7.5, 10.0, 1.0]))
    total.sum().backward()
    torch.testing.assert_close(raw.grad, torch.tensor([1.0, 1.0, 0.0, 0.0]))


def test_concentration_stays_in_its_range_and_the_mean_under_its_cap() -> None:
    model, inputs = network(), 1e6 * batch()[0]
    with torch.no_grad():
        model.refiner.policy.weight.mul_(1e4)
        model.refiner.concentration.bias.fill_(50)
    policy = SMALL.policy(
        SMALL.replay(model, model.context(inputs), SMALL.roll_out(model, model.context(inputs)).log_actions)
    )
    c = policy.total - CLASSES * 0.01
    assert c.min() >= 1
    assert c.max() <= 10 + 1e-9
    assert policy.log_mean().exp().max().item() <= 10.01 / 10.04 + 1e-9


def test_refine_feeds_the_mean_back_and_asks_the_value_first() -> None:
    model, (inputs, _) = network(), batch()
    path = SMALL.refine(model, inputs)
    context = model.refiner.read(model.backbone(inputs))
    thought, belief = torch.zeros(BATCH, 8).double(), torch.full((BATCH, CLASSES), 1 / CLASSES).double()
    for t in range(5):
        thought = model.refiner.think(context, thought, belief)
        heads = model.refiner.heads(thought)
        alpha = heads.logits.softmax(-1) * (1 + 9 * heads.concentration.sigmoid())[:, None] + 0.01
        belief = alpha / alpha.sum(-1, keepdim=True)
        torch.testing.assert_close(path.log_beliefs[t].exp(), belief)
        torch.testing.assert_close(path.values[t], heads.value)


def test_it_stops_before_the_first_step_whose_value_is_below_the_threshold() -> None:
    """V(s_1) is never asked; a value at the threshold goes on, and so does NaN."""
    values = torch.tensor([[-1.0, -1.0, 5.0], [0.5, 0.4, math.nan], [0.4, 9.0, 0.5], [0.6, 0.6, 0.6]])
    steps = Steps(torch.zeros(4, 3, CLASSES), values, torch.ones(4, 3, dtype=torch.bool))
    assert RIC(halt_threshold=0.5).trajectory(steps).halt_step.tolist() == [2, 1, 4]
    assert RIC(halt_threshold=0.5).goes_on(steps)[:, 0].tolist() == [False, True, False, True]
    model, (inputs, _) = network(), batch()
    threshold = SMALL.refine(model, inputs).values.amax().item() + 1  # all would stop at once
    with torch.no_grad():
        made = replace(SMALL, halt_threshold=threshold).step(model, SMALL.start(model, inputs), first=True)
    assert made.active.all()


def test_readouts_share_weights_values_and_halts() -> None:
    """The mean is fed back whatever is reported, so the values must agree to the last digit."""
    model, (inputs, _) = network(), batch()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(300)
    paths = {r: replace(SMALL, readout=r).refine(model, inputs) for r in ("mean", "mu", "implied")}
    for path in paths.values():
        assert torch.equal(path.values, paths["mean"].values)
        assert torch.equal(path.halt_step, paths["mean"].halt_step)
        torch.testing.assert_close(path.log_beliefs.exp().sum(-1), torch.ones(5, BATCH).double())
    assert not torch.allclose(paths["mu"].log_beliefs, paths["mean"].log_beliefs)
    assert not torch.allclose(paths["implied"].log_beliefs, paths["mean"].log_beliefs)


def test_snapshot_period_in_passes_and_in_updates() -> None:
    assert RIC(passes_per_snapshot=5).snapshot_period(updates_per_pass=9) == 45
    assert RIC(updates_per_snapshot=10).snapshot_period(updates_per_pass=9) == 10
    assert OnPolicy().snapshot_period(updates_per_pass=9) == ClosedForm().snapshot_period(updates_per_pass=9) == 1


@pytest.mark.parametrize("settings", [{"c_min": 0.0}, {"c_min": 11.0}, {"compute_price": -0.1}, {"reward_floor": 1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with refusal(*(name.replace("_", "-") for name in settings)):
        RIC(**settings)


def test_lambda_has_an_effect_only_without_exits() -> None:
    assert ["gae_lambda" in RIC().without_effect(exits) for exits in (False, True)] == [False, True]


def test_inference_is_random_only_with_sampled_feedback() -> None:
    assert [RIC(feedback=feedback).draws for feedback in ("mean", "sample")] == [False, True]


def test_passes_have_no_effect_beside_updates_per_snapshot() -> None:
    assert "passes_per_snapshot" in RIC(updates_per_snapshot=2).without_effect(exits=False)
    assert "passes_per_snapshot" not in RIC().without_effect(exits=False)


def test_a_logistic_normal_head_trains_refines_and_keeps_the_ratio_at_one() -> None:
    method = replace(SMALL, head="logistic-normal")
    model, (inputs, labels) = network(method), batch()
    loss, metrics = method.loss(model, model, inputs, labels)
    loss.backward()
    assert model.refiner.policy.weight.grad.abs().sum() > 0
    assert model.refiner.concentration.weight.grad.abs().sum() > 0
    assert metrics["ratio_deviation"].item() == pytest.approx(0, abs=1e-12)
    path = method.refine(model, inputs)
    torch.testing.assert_close(path.log_beliefs.logsumexp(-1), torch.zeros(5, BATCH).double())


def test_the_expected_objective_is_the_geometric_mixture_of_expected_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    method = OnPolicy(horizon=5, rollouts=3, objective="expected", value_coef=0.0)
    model, (inputs, labels) = network(), batch()
    rollout = method.roll_out(model, model.context(inputs))
    monkeypatch.setattr(RIC, "roll_out", lambda *_: rollout)
    loss, _ = method.loss(model, copy.deepcopy(model), inputs, labels)
    alpha = rollout.policy.alpha
    score = torch.digamma(alpha[..., range(BATCH), labels]) - torch.digamma(alpha.sum(-1))
    expected = sum(0.2 * 0.8**t * score[t].mean().item() for t in range(5))
    assert loss.item() == pytest.approx(-expected, rel=1e-9)


def test_sampled_feedback_asks_the_value_where_it_was_learned() -> None:
    """The first step sees the uniform belief either way; later ones see samples, not means."""
    model, (inputs, _) = network(), batch()
    plain, sampled = SMALL.refine(model, inputs), replace(SMALL, feedback="sample").refine(model, inputs)
    torch.testing.assert_close(plain.log_beliefs[0], sampled.log_beliefs[0])
    assert (plain.values[1:] - sampled.values[1:]).abs().min() > 0
    torch.manual_seed(3)
    rollout = replace(SMALL, rollouts=1).roll_out(model, model.context(inputs))
    torch.manual_seed(3)
    again = replace(SMALL, feedback="sample").refine(model, inputs)
    torch.testing.assert_close(again.values, rollout.values[:-1, 0])


FAST = OnPolicy(
    rollouts=4, gae_lambda=0.0, label_baseline=True, credit="marginal", c_max=100.0, alpha_floor=0.1, head_gain=1.0
)


def as_kind(method: RIC, kind: type[RIC] | None = None, **changes: Any) -> RIC:
    """The same settings, as far as a method of that kind has them."""
    kind = kind or type(method)
    return kind(**{field.name: getattr(method, field.name) for field in fields(kind)} | changes)


def noise(method: RIC) -> float:
    """How far the policy's gradient is from its mean over draws, relative to that mean."""
    torch.manual_seed(0)
    model = method.build(Backbone(nn.Sequential(nn.Linear(7, 16), nn.Tanh()), (7,)), 10)
    inputs, labels = torch.randn(64, 7), torch.randint(10, (64,))

    def gradient() -> Tensor:
        loss, _ = method.loss(model, model, inputs, labels)
        return torch.autograd.grad(loss, model.refiner.policy.weight)[0]

    draws = torch.stack([gradient() for _ in range(20)])
    return float((draws - draws.mean(0)).square().sum((1, 2)).mean().sqrt() / draws.mean(0).norm())


def test_the_gradient_of_fast_depends_on_the_samples() -> None:
    method = replace(FAST, horizon=5, value_coef=0.0)
    assert noise(method) > 3 * noise(as_kind(method, ClosedForm))
