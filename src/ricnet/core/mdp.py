"""The Markov decision process of Section 3.1 and its objectives: rewards, advantages, SPO and PPO, value loss.

The first axis of every tensor is the step, so `rewards[0]` is the paper's r_1; any number of batch axes may follow.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

PerStep = Float[Tensor, "steps *batch"]
Elementwise = Float[Tensor, "*any"]
Labels = Int64[Tensor, "batch"] | Float[Tensor, "batch classes"]
"""The class y of each example, or a distribution q over classes (soft labels: label smoothing, mixup)."""


def is_soft(labels: Labels) -> bool:
    return labels.is_floating_point()


def smoothed(labels: Labels, share: float, classes: int) -> Labels:
    """Label smoothing, q = (1 − s)·e_y + s/K; unchanged labels if the share s is 0."""
    if share == 0:
        return labels
    truth = labels if is_soft(labels) else F.one_hot(labels, classes).to(torch.get_default_dtype())
    return (1 - share) * truth + share / classes


def log_scores(log_beliefs: Float[Tensor, "*steps batch classes"], labels: Labels) -> Float[Tensor, "*steps batch"]:
    """log a_{t,y}: log-probability of the true class in each belief; Σ_k q_k log a_{t,k} for soft labels."""
    if is_soft(labels):
        return (log_beliefs * labels).sum(-1)
    index = labels.expand(log_beliefs.shape[:-1]).unsqueeze(-1)
    return log_beliefs.gather(-1, index).squeeze(-1)


def rewards(scores: PerStep, initial: float | Float[Tensor, "batch"]) -> PerStep:
    """Eq. 1, r_t = log a_{t,y} − log a_{t−1,y}; `initial` is the score of a_0."""
    return scores - previous_scores(scores, initial)


def previous_scores(scores: PerStep, initial: float | Float[Tensor, "batch"]) -> PerStep:
    """Score of the previous step; `initial`, the score of a_0, for the first step."""
    return torch.cat([torch.zeros_like(scores[:1]) + initial, scores[:-1]])


def discounted_return(rewards: PerStep, gamma: float) -> Float[Tensor, "*batch"]:
    """Σ_t γ^{t−1} r_t, the objective J_{x,y} of Section 2 for one roll-out."""
    return torch.einsum("t,t...->...", discounts(len(rewards), gamma, rewards.device).to(rewards.dtype), rewards)


def normalized_return(score: Float[Tensor, "*batch"], classes: int) -> Float[Tensor, "*batch"]:
    """Σ_t r_t / log K, which telescopes to 1 + log a_{T,y} / log K: 0 for the uniform belief, 1 for certainty."""
    return 1 + score / math.log(classes)


def discounts(steps: int, gamma: float, device: torch.device | None = None) -> Float[Tensor, "steps"]:
    """γ^{t−1} for t = 1 … steps."""
    return gamma ** torch.arange(steps, dtype=torch.float64, device=device)


def geometric_weights(steps: int, gamma: float, device: torch.device | None = None) -> Float[Tensor, "steps"]:
    """(1 − γ) γ^{t−1}, the probability that the random horizon of Lemma 1 is t. They sum to 1 − γ^steps."""
    return (1 - gamma) * discounts(steps, gamma, device)


def advantages(rewards: PerStep, values: Float[Tensor, "steps+1 *batch"], gamma: float, lam: float) -> PerStep:
    """Generalised advantage estimation, Â_t = Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V(s_{t+1}) − V(s_t).

    The episode is truncated at T, not terminated, so `values` has one more entry than `rewards`: V(s_{T+1}) is the
    bootstrap value.
    """
    deltas = rewards + gamma * values[1:] - values[:-1]
    estimates = [deltas[-1]]
    for delta in reversed(deltas[:-1].unbind()):
        estimates.append(torch.add(delta, estimates[-1], alpha=gamma * lam))
    return torch.stack(estimates[::-1])


def remaining_gain(rewards: PerStep, values: Float[Tensor, "steps+1 *batch"], stops: bool) -> PerStep:
    """Undiscounted sum of the rewards from each step on. With `stops`, the target of optimal stopping: only the rewards
    before the first later step whose value is not positive. `values[t]` is the value before step t."""
    gains = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        following = gains[t] = rewards[t] + (following * (values[t + 1] > 0) if stops else following)
    return gains


class Gains(NamedTuple):
    """Advantages, returns and value targets of a roll-out."""

    advantages: PerStep
    """Â_t."""
    returns: PerStep
    """R̂_t = Â_t + V(s_t)."""
    targets: PerStep
    """Targets of the value: R̂_t, or with exits the remaining gain."""
    discount: float
    """Weight of the next step's reward in Â_t."""


def estimate(
    rewards: PerStep,
    values: Float[Tensor, "steps+1 *batch"],
    gamma: float,
    gae_lambda: float,
    costs: Float[Tensor, "steps"] | None = None,
    price: float = 0.0,
) -> Gains:
    """Generalised advantage estimation. With exits (if `costs` of the steps are given) the value estimates the
    undiscounted gain minus its price, so it is used only as the baseline of Monte-Carlo returns."""
    if costs is None:
        estimates = advantages(rewards, values, gamma, gae_lambda)
        returns = estimates + values[:-1]
        return Gains(estimates, returns, returns, gamma * gae_lambda)
    returns = advantages(rewards, torch.zeros_like(values), gamma, 1.0)
    net_rewards = rewards - price * costs.view(-1, *(1,) * (rewards.ndim - 1))
    targets = remaining_gain(net_rewards, values, stops=price > 0)
    return Gains(returns - values[:-1], returns, targets, gamma)


def leave_one_out(outcomes: Float[Tensor, "steps rollouts batch"]) -> Float[Tensor, "steps rollouts batch"]:
    """Advantages with a baseline that depends on the label: the mean outcome of the other roll-outs of the same input,
    where an outcome is R̂_t + log a_{t−1,y}.

    V(s_t) does not depend on y. So the advantage Â_t contains two terms that a_t cannot change: −log a_{t−1,y}, and the
    difficulty of the input and its label. Removing them reduces the variance of the policy gradient and, at ρ = 1, does
    not change its mean. Not in the paper.
    """
    rollouts = outcomes.shape[1]
    if rollouts == 1:
        return outcomes
    return (outcomes - outcomes.mean(1, keepdim=True)) * rollouts / (rollouts - 1)


def mean(estimates: Float[Tensor, "*any batch"], weights: Float[Tensor, "batch"] | None = None) -> Float[Tensor, ""]:
    """Mean over all axes, weighted by example."""
    if weights is None:
        return estimates.mean()
    return (estimates * weights).mean() / weights.mean().clamp(min=1e-12)


def std(estimates: Float[Tensor, "*any batch"], weights: Float[Tensor, "batch"] | None = None) -> Float[Tensor, ""]:
    """Standard deviation over all axes, weighted by example, plus 1e-8 against division by 0."""
    if weights is None:
        return estimates.std(correction=min(1, estimates.numel() - 1)) + 1e-8
    variance = mean((estimates - mean(estimates, weights)).square(), weights)
    return (variance * estimates.numel() / max(1, estimates.numel() - 1)).sqrt() + 1e-8


# Objectives, elementwise: the caller weights the steps and averages


def spo(ratio: Elementwise, advantage: Elementwise, epsilon: float) -> Elementwise:
    """Simple Policy Optimization (Xie et al. 2025): Â ρ − |Â| (ρ − 1)² / 2ε, with its maximum at ρ = 1 + sign(Â) ε.
    Beyond the maximum its gradient moves ρ back; that of PPO's clip is 0 there."""
    return advantage * ratio - advantage.abs() * (ratio - 1).square() / (2 * epsilon)


def ppo(ratio: Elementwise, advantage: Elementwise, epsilon: float) -> Elementwise:
    """Proximal Policy Optimization (Schulman et al. 2017): min(Â ρ, Â clip(ρ, 1 − ε, 1 + ε)); an ablation here."""
    return (advantage * ratio).minimum(advantage * ratio.clamp(1 - epsilon, 1 + epsilon))


def explained_variance(values: Elementwise, targets: Elementwise) -> Float[Tensor, ""]:
    """1 − Var(R̂ − V) / Var(R̂): 1 for an exact value, 0 for a constant one."""
    return 1 - (targets - values).var() / targets.var().clamp(min=1e-12)


def weighted_mean(terms: Elementwise, weights: Float[Tensor, "batch"] | None) -> Float[Tensor, ""]:
    """Mean of terms times example weights; the last axis of `terms` is the batch. It divides by the number of terms,
    because weights are 1 on average over the data set; a minibatch with larger weights has a larger loss."""
    return terms.mean() if weights is None else (terms * weights).mean()


@torch.no_grad()
def accuracy(log_beliefs: Float[Tensor, "*steps batch classes"], labels: Labels) -> Float[Tensor, ""]:
    """Share of beliefs whose most probable class is the label, of soft labels the class of largest weight."""
    truth = labels.argmax(-1) if is_soft(labels) else labels
    return (log_beliefs.argmax(-1) == truth).float().mean()
