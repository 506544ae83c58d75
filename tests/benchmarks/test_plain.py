"""The plain update of `gain.py` computes the same as that of the package."""

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import gain
import plain
from common import random_images
from ricnet.core import mdp
from ricnet.data import Augmentation
from ricnet.methods import RIC
from ricnet.methods.ric import Rollout
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.recipes import configure

CLASSES, BATCH, SIZE = 4, 6, 8
MEASURED = configure(random_images(side=8), "ric", "fast", **gain.SETTINGS).method
SETTINGS = replace(MEASURED, horizon=5, rollouts=3)


class Twins(NamedTuple):
    """The same weights in both forms."""

    network: RecurrentClassifier
    agent: plain.Agent


def twins() -> Twins:
    encoder = nn.Sequential(nn.Linear(7, SIZE), nn.Tanh())
    network = SETTINGS.build(Backbone(encoder, (7,)), CLASSES)
    nn.init.normal_(network.refiner.policy.weight)  # as built, the policy is all but uniform
    agent, refiner = plain.Agent(encoder, SIZE, CLASSES, SETTINGS), network.refiner
    weights = {
        "weight_ih": torch.cat([refiner.from_embedding.weight, refiner.from_belief.weight], 1),
        "bias_ih": refiner.from_embedding.bias,
        "weight_hh": refiner.from_thought.weight,
        "bias_hh": refiner.from_thought.bias,
    }
    agent.gru.load_state_dict(weights)
    for head in ("policy", "concentration", "value"):
        getattr(agent, head).load_state_dict(getattr(refiner, head).state_dict())
    return Twins(network.double(), agent.double())


def rows_of(experience: list[Tensor]) -> Tensor:
    """(steps, roll-outs · batch, …) as the package has it: (steps, roll-outs, batch, …)."""
    return torch.stack(experience).unflatten(1, (SETTINGS.rollouts, BATCH))


def as_rollout(experience: plain.Experience, snapshot: RecurrentClassifier, inputs: Tensor) -> Rollout:
    """What the package's snapshot thinks of the plain agent's actions, by its own replay. Of one action more than there
    are only the value before it is used."""
    log_actions = rows_of(experience.actions).log()
    heads = SETTINGS.replay(snapshot, snapshot.context(inputs), torch.cat([log_actions, log_actions[:1]]))
    made = type(heads)(*(head[:-1] for head in heads))
    return Rollout(log_actions, SETTINGS.policy(made), heads.value)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 7).double(), torch.randint(CLASSES, (BATCH,))


def test_roll_outs_have_the_densities_values_and_advantages_of_the_package() -> None:
    (network, agent), (inputs, labels) = twins(), batch()
    experience = plain.roll_out(agent, inputs, labels)
    with torch.no_grad():
        rollout = as_rollout(experience, network, inputs)
    torch.testing.assert_close(rows_of(experience.log_probs), rollout.policy.log_prob(rollout.log_actions))
    torch.testing.assert_close(rows_of(experience.values), rollout.values)
    scores = mdp.log_scores(rollout.log_actions, labels).clamp(min=math.log(SETTINGS.reward_floor))
    expected = mdp.advantages(
        mdp.rewards(scores, -math.log(CLASSES)), rollout.values, SETTINGS.gamma, SETTINGS.gae_lambda
    )
    torch.testing.assert_close(rows_of(plain.estimate_advantages(experience, SETTINGS)), expected)


def test_loss_and_gradient_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, (inputs, labels) = twins(), twins(), batch()
    experience = plain.roll_out(old.agent, inputs, labels)
    with torch.no_grad():
        rollout = as_rollout(experience, old.network, inputs)
    monkeypatch.setattr(RIC, "roll_out", lambda *_: rollout)
    expected, _ = SETTINGS.loss(new.network, old.network, inputs, labels)
    loss = plain.loss_of(new.agent, inputs, experience)
    torch.testing.assert_close(loss, expected)
    ours, theirs = new.network.refiner.from_thought.weight, new.agent.gru.weight_hh
    torch.testing.assert_close(torch.autograd.grad(loss, theirs)[0], torch.autograd.grad(expected, ours)[0])


def test_images_are_moved_by_at_most_the_padding_and_may_be_mirrored() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 3, 3)
    padded = nn.functional.pad(image, (1, 1, 1, 1))
    windows = [padded[:, top : top + 3, left : left + 3] for top in range(3) for left in range(3)]
    possible = {tuple(w.flatten().tolist()) for window in windows for w in (window, window.flip(-1))}
    seen = {
        tuple(plain.crop_and_flip(image, Augmentation(crop_padding=1, flip=True)).flatten().tolist())
        for _ in range(400)
    }
    assert seen == possible
