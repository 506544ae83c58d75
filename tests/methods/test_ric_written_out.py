"""RIC's loss, with our variants, against the same formulas written with lists and loops.

Nothing of ricnet.core is used on the other side, and only `RIC.loss` on this one, so that neither knows how the
other is divided into functions.
"""

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from networks import assert_same_loss
from torch import Tensor, nn
from torch.distributions import Beta, Dirichlet

from ricnet.methods import RIC, ClosedForm
from ricnet.methods.ric import Rollout
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier

CLASSES, BATCH = 3, 4
BASE = RIC(horizon=3, rollouts=2, gamma=0.7, gae_lambda=0.6, head_gain=1.0, alpha_floor=0.2, value_coef=0.3)


def network() -> RecurrentClassifier:
    model = BASE.build(Backbone(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), (5,)), CLASSES).double()
    with torch.no_grad():
        model.refiner.from_belief.weight.mul_(5)
        model.refiner.value.weight.mul_(3)
    return model


def estimate(scores: list[float], values: list[float], start: float, t: int, method: RIC) -> float:
    """Â_t = Σ_l (γλ)^l (r_{t+l} + γ V(s_{t+l+1}) − V(s_{t+l})), the reward of step t counted from `start`."""
    total, previous = 0.0, start
    for u in range(t, len(scores)):
        delta = scores[u] - previous + method.gamma * values[u + 1] - values[u]
        total += (method.gamma * method.gae_lambda) ** (u - t) * delta
        previous = scores[u]
    return total


def share(method: RIC, t: int) -> float:
    """Of log a_{t,y} in R̂_t: once as the gain of its step, and −γλ times as the start of the next."""
    return 1 - method.gamma * method.gae_lambda if t + 1 < method.horizon else 1.0


def assess(method: RIC, rollout: Rollout, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Advantages, how much better the sample of step t was than its policy where they leave that out, and the value's
    targets."""
    steps, rollouts = rollout.log_actions.shape[:2]
    advantages, own, targets = torch.zeros(3, steps, rollouts, BATCH).double()
    floor = -math.inf if method.reward_floor is None else math.log(method.reward_floor)
    for i in range(BATCH):
        y = int(labels[i])
        outcomes: dict[tuple[int, int], float] = {}
        for r in range(rollouts):
            made = [max(rollout.log_actions[t, r, i, y].item(), floor) for t in range(steps)]
            expected = [max(expected_score(rollout.policy.alpha[t, r, i], y).item(), floor) for t in range(steps)]
            apart = isinstance(method, ClosedForm) or method.credit == "marginal"
            scores, values = expected if apart else made, rollout.values[:, r, i].tolist()
            for t in range(steps):
                before = scores[t - 1] if t else -math.log(CLASSES)
                fed_back = made[t - 1] if t else -math.log(CLASSES)
                advantages[t, r, i] = estimate(scores, values, before, t, method)
                targets[t, r, i] = estimate(scores, values, fed_back, t, method) + values[t]
                outcomes[t, r] = estimate(scores, values, 0.0, t, method) + values[t]
                drawn = [*scores[:t], made[t], *scores[t + 1 :]]
                own[t, r, i] = estimate(drawn, values, before, t, method) - advantages[t, r, i]
                if method.credit == "marginal":
                    outcomes[t, r] -= share(method, t) * expected[t]
        if method.label_baseline:
            for t in range(steps):
                for r in range(rollouts):
                    others = [outcomes[t, other] for other in range(rollouts) if other != r]
                    advantages[t, r, i] = outcomes[t, r] - sum(others) / len(others)
    return advantages, own, targets


def expected_score(alpha: Tensor, label: int) -> Tensor:
    return alpha[label].digamma() - alpha.sum().digamma()


def surrogate(method: RIC, log_ratio: Tensor, advantage: float) -> Tensor:
    if method.log_ratio_clamp is not None:
        log_ratio = log_ratio.clamp(-method.log_ratio_clamp, method.log_ratio_clamp)
    move = log_ratio.exp() - 1
    if method.objective == "ppo":
        return torch.minimum(advantage * (1 + move), advantage * (1 + move.clamp(-method.epsilon, method.epsilon)))
    return advantage * (1 + move) - abs(advantage) * move**2 / (2 * method.epsilon)


def written_out(
    method: RIC, model: RecurrentClassifier, rollout: Rollout, inputs: Tensor, labels: Tensor, weights: Tensor
) -> Tensor:
    steps, rollouts = rollout.log_actions.shape[:2]
    advantages, own, targets = assess(method, rollout, labels)
    sampled = advantages + own
    mean, scale = 0.0, 1.0
    if method.normalize_advantages:
        count, mass = advantages.numel(), weights.sum() * steps * rollouts
        mean = ((advantages * weights).sum() / mass).item()
        centre = (sampled * weights).sum() / mass
        variance = ((sampled - centre) ** 2 * weights).sum() / mass * count / (count - 1)
        scale = variance.sqrt().item() + 1e-8
    context = model.refiner.read(model.backbone(inputs))
    loss = torch.zeros(()).double()
    for i in range(BATCH):
        for r in range(rollouts):
            thought, belief = torch.zeros(1, 6).double(), torch.full((1, CLASSES), 1 / CLASSES).double()
            for t in range(steps):
                thought = model.refiner.think(context[i : i + 1], thought, belief)
                logits, concentration, value = (head[0] for head in model.refiner.heads(thought))
                c = method.c_min + (method.c_max - method.c_min) * concentration.sigmoid()
                alpha = logits.softmax(-1) * c + method.alpha_floor
                belief = rollout.log_actions[t, r, i : i + 1].exp()
                y, old_alpha = int(labels[i]), rollout.policy.alpha[t, r, i]
                new, old = Dirichlet(alpha), Dirichlet(old_alpha)
                log_ratio = new.log_prob(belief[0]) - old.log_prob(belief[0])
                term = surrogate(method, log_ratio, (advantages[t, r, i].item() - mean) / scale)
                if method.credit == "marginal":
                    new_y, old_y = (Beta(a[y], a[:y].sum() + a[y + 1 :].sum()) for a in (alpha, old_alpha))
                    log_ratio = new_y.log_prob(belief[0, y]) - old_y.log_prob(belief[0, y])
                    term = term + surrogate(method, log_ratio, own[t, r, i].item() / scale)
                if isinstance(method, ClosedForm):
                    term = term + share(method, t) / scale * expected_score(alpha, y)
                term = term + method.entropy_coef * new.entropy()
                if method.step_weight == "discounted":
                    term = term * method.gamma**t
                error = (value - targets[t, r, i]) ** 2
                loss = loss + weights[i] * (method.value_coef * error - term)
    return loss / (steps * rollouts * BATCH)


VARIANTS: dict[str, dict[str, Any]] = {
    "Algorithm 1": {},
    "with several roll-outs against each other": {"label_baseline": True, "rollouts": 3},
    "as published, with floor and clamp": {"reward_floor": 0.2, "log_ratio_clamp": 0.1},
    "raw advantages": {"normalize_advantages": False},
    "PPO": {"objective": "ppo"},
    "discounted, with entropy": {"step_weight": "discounted", "entropy_coef": 0.2},
    "marginal credit": {"credit": "marginal"},
    "marginal credit, as in practice": {"credit": "marginal", "label_baseline": True, "gae_lambda": 0.0},
    "marginal credit, with floor and clamp": {"credit": "marginal", "reward_floor": 0.2, "log_ratio_clamp": 0.1},
    "marginal credit by PPO, raw": {"credit": "marginal", "objective": "ppo", "normalize_advantages": False},
    "closed form": {"kind": ClosedForm},
    "closed form, raw advantages": {"kind": ClosedForm, "normalize_advantages": False},
    "closed form, as in practice": {"kind": ClosedForm, "label_baseline": True, "step_weight": "discounted"},
}


def varied(kind: type[RIC] = RIC, **changes: Any) -> RIC:
    shared = {field.name: getattr(BASE, field.name) for field in fields(kind) if field.name != "objective"}
    return kind(**shared | changes)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_loss_and_gradient_are_those_written_out(
    changes: dict[str, Any], weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    method = varied(**changes)
    model, snapshot = network(), network()
    inputs, labels = torch.randn(BATCH, 5).double(), torch.tensor([0, 1, 2, 1])
    weights = torch.tensor([0.5, 2.0, 0.0, 1.5] if weighted else [1.0] * BATCH).double()
    rollout = method.roll_out(snapshot, snapshot.context(inputs))
    monkeypatch.setattr(RIC, "roll_out", lambda *_: rollout)
    loss, _ = method.loss(model, snapshot, inputs, labels, weights if weighted else None)
    expected = written_out(method, model, rollout, inputs, labels, weights)
    assert_same_loss(loss, expected, model)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_minibatch_in_parts_is_judged_as_a_whole(changes: dict[str, Any]) -> None:
    """Same noise, same advantages, same scale: the parts' losses, weighed by their rows, are the loss of the whole."""
    method, model, snapshot = varied(**changes), network(), network()
    inputs, labels = torch.randn(BATCH, 5).double(), torch.tensor([0, 1, 2, 1])
    weights = torch.tensor([0.5, 2.0, 0.3, 1.2]).double()
    torch.manual_seed(5)
    whole, _ = method.loss(model, snapshot, inputs, labels, weights)
    torch.manual_seed(5)
    parts = [(inputs[rows], labels[rows], weights[rows]) for rows in (slice(0, 3), slice(3, 4))]
    first, second = (loss for loss, _ in method.losses(model, snapshot, parts))
    torch.testing.assert_close((3 * first + second) / 4, whole)


@pytest.mark.parametrize("parts", [1, 2])
def test_roll_outs_depend_on_the_snapshot_only(parts: int) -> None:
    """Its encoder too: networks with other weights are judged by the same beliefs."""
    snapshot, inputs, labels = network(), torch.randn(BATCH, 5).double(), torch.tensor([0, 1, 2, 1])
    batches = list(zip(inputs.chunk(parts), labels.chunk(parts), strict=True))

    def returns(model: RecurrentClassifier, snapshot: RecurrentClassifier) -> list[float]:
        torch.manual_seed(6)
        return [metrics["return"].item() for _, metrics in BASE.losses(model, snapshot, batches)]

    assert returns(network(), snapshot) == returns(network(), snapshot)
    assert returns(snapshot, snapshot) != returns(snapshot, network())
