"""Checks Eq. 4, the decomposition of the log-score of a step into ceiling, bias penalty and variance penalty."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ricnet.core import mdp
from ricnet.methods import RIC
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.report.figures import BLUE, INK, ORANGE, SKY, letter, styled
from ricnet_paper.theory import known_truth, lemma2
from ricnet_paper.theory.finding import BOUND, Agreement, Finding, compare_pairs
from ricnet_paper.theory.known_truth import CONDITIONALS, Conditionals

CLAIM = (
    "At every step E[log a_{t,y}] is the ceiling −H(q), less the bias penalty KL(q ‖ μ_t), less the variance penalty "
    "of Lemma 2 (Eq. 4)."
)
METHOD = replace(known_truth.METHOD, alpha_floor=0.1)
"""ε = .1 instead of .01, so that the mean α/Σα differs measurably from the softmax."""
PARTS = {"ceiling": "−H(q)", "bias": "−KL(q ‖ μ_t)", "variance": "−E[D_F]"}


class Decomposition(NamedTuple):
    parts: dict[str, Float[Tensor, "steps contexts"]]
    """Means over the states of the roll-outs; their sum is the expected log-score."""
    agreement: Agreement
    """Sampled log-score against the sum, by step and context."""
    penalty: Agreement
    """Sampled D_F(a_{t,y} ‖ μ_{t,y}) against the variance penalty, for every y. The sum alone does not detect a wrong
    μ_t, because log μ_{t,y} cancels between bias and variance; nor does a mean over y ~ q, because
    Σ_y q_y·E[a_{t,y}]/μ_{t,y} is about 1 for any μ_t near q."""

    @property
    def largest(self) -> float:
        return max(self.agreement.largest, self.penalty.largest)

    @property
    def holds(self) -> bool:
        return self.agreement.holds and self.penalty.holds


def examine(updates: int = 80, rollouts: int = 4000, seed: int = 0) -> Finding:
    agents = {
        "before training": known_truth.untrained_agent(METHOD, CONDITIONALS, seed),
        f"after {updates} updates": known_truth.train_agent(METHOD, CONDITIONALS, updates, seed),
    }
    found = {stage: _decompose(METHOD, agent, CONDITIONALS, rollouts, seed) for stage, agent in agents.items()}
    largest = max(stage.largest for stage in found.values())
    first, last = (sum(stage.parts[part].mean() for part in ("bias", "variance")) for stage in found.values())
    statement = (
        f"{rollouts:,} roll-outs of {METHOD.horizon} steps in each of {len(CONDITIONALS)} contexts with known q, "
        f"before training and after {updates} updates: at every step the sampled means of log a_{{t,y}} and of "
        f"D_F(a_{{t,y}} ‖ μ_{{t,y}}), this for every y, are within {largest:.1f} standard errors of the sum of the "
        f"three terms and of the variance penalty of y (bound {BOUND:g}). Both penalties together went from "
        f"{-first:.2f} to {-last:.2f} nats."
    )
    passed = all(stage.holds for stage in found.values())
    rows = [row for stage, one in found.items() for row in _rows(stage, one, rollouts)]
    return Finding("decomposition", CLAIM, passed, statement, rows, _draw(found, rollouts))


def _decompose(method: RIC, agent: RecurrentClassifier, truth: Conditionals, rollouts: int, seed: int) -> Decomposition:
    """Average both sides over the states that the roll-outs visit."""
    count, classes = truth.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        labels = known_truth.draw_labels(truth, rollouts).T.flatten()
        rollout = replace(method, rollouts=1, label_baseline=False).roll_out(
            agent, agent.context(known_truth.contexts(truth).repeat(rollouts, 1))
        )
    policy, every = rollout.policy, truth.repeat(rollouts, 1)
    by_label = torch.stack([policy.variance_penalty(torch.full_like(labels, y)) for y in range(classes)], -1)
    log_actions, log_mean = rollout.log_actions.double(), policy.log_mean().double()
    bias = known_truth.divergence(every, log_mean)
    parts = {
        "ceiling": -known_truth.entropy(every).expand_as(bias),
        "bias": -bias,
        "variance": -(every * by_label).sum(-1),
    }
    by_context = {name: _by_context(part, count) for name, part in parts.items()}
    scores = _by_context(mdp.log_scores(log_actions, labels), count)
    sampled_penalty = lemma2.divergence(log_actions, log_mean)
    return Decomposition(
        {name: part.mean(0) for name, part in by_context.items()},
        compare_pairs(scores, sum(by_context.values(), torch.zeros_like(scores))),
        compare_pairs(_by_context(sampled_penalty, count), _by_context(by_label.double(), count)),
    )


def _by_context(states: Float[Tensor, "steps 1 states *y"], count: int) -> Float[Tensor, "rollouts steps contexts *y"]:
    return states.view(len(states), -1, count, *states.shape[3:]).transpose(0, 1)


def _rows(stage: str, found: Decomposition, rollouts: int) -> list[dict[str, Any]]:
    agreement = found.agreement
    columns = {**found.parts, "sum": agreement.expected, "sampled": agreement.sampled}
    columns["standard_error"] = agreement.standard_error
    columns["penalty_deviation"] = found.penalty.deviation.abs().amax(-1)  # standard errors, worst class
    steps, count = agreement.sampled.shape
    return [
        {"stage": stage, "step": t + 1, "context": x, "rollouts": rollouts}
        | {name: float(column[t, x]) for name, column in columns.items()}
        for t in range(steps)
        for x in range(count)
    ]


@styled
def _draw(found: dict[str, Decomposition], rollouts: int) -> Figure:
    figure = Figure(figsize=(6.6, 2.9), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for i, (ax, (stage, one)) in enumerate(zip(panels, found.items(), strict=True)):
        _draw_stack(ax, one)
        letter(ax, i, stage)
        ax.set_xlabel("step")
    panels[0].set_ylabel("log-score, nats")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(
        f"mean of {len(CONDITIONALS)} contexts, {rollouts:,} roll-outs each (bars: ± {BOUND:g} standard errors)",
        fontsize=7.5,
    )
    return figure


def _draw_stack(ax: Axes, found: Decomposition) -> None:
    """Bars of the three terms, averaged over contexts, and the sampled log-score."""
    steps = range(1, len(found.agreement.sampled) + 1)
    floor = torch.zeros(len(steps), dtype=torch.float64)
    for (part, name), shade, hatch in zip(PARTS.items(), (SKY, ORANGE, BLUE), ("", "////", ""), strict=True):
        height = found.parts[part].mean(1)
        ax.bar(steps, height, 0.8, floor, color=shade, hatch=hatch, edgecolor="white", linewidth=0, label=name)
        floor = floor + height
    error = found.agreement.standard_error.square().sum(1).sqrt() / found.agreement.sampled.shape[1]
    points: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linestyle": "none", "capsize": 2, "elinewidth": 0.9}
    ax.errorbar(
        steps, found.agreement.sampled.mean(1), BOUND * error, color=INK, label="sampled E[log a_{t,y}]", **points
    )
