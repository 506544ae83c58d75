"""Algorithm 1 as one would first write it: eager, float32, with torch's own modules. `gain.py` compares its speed.

The encoder and the settings are ricnet's. The GRU reads [e; a] at every step, roll-out and replay are loops over steps,
actions are probabilities, and images are cropped and flipped one by one on the host. A test checks that it computes the
loss of the package.
"""

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.distributions import Dirichlet
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ricnet.data import Augmentation, Dataset
from ricnet.methods.ric import RIC
from ricnet.models.config import Config
from ricnet.nets.backbone import embedding_size
from ricnet.nets.encoders import build_encoder


class Agent(nn.Module):
    def __init__(self, encoder: nn.Module, size: int, classes: int, settings: RIC) -> None:
        super().__init__()
        self.encoder, self.classes, self.settings = encoder, classes, settings
        self.gru = nn.GRUCell(size + classes, size)
        self.policy = nn.Linear(size, classes)
        self.concentration = nn.Linear(size, 1)
        self.value = nn.Linear(size, 1)

    def begin(self, images: Float[Tensor, "batch ..."]) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding, thought and belief before the first step, one row per roll-out of an image."""
        embedding = self.encoder(images).repeat(self.settings.rollouts, 1)
        thought = torch.zeros_like(embedding)
        belief = embedding.new_full((len(embedding), self.classes), 1 / self.classes)
        return embedding, thought, belief

    def forward(
        self,
        embedding: Float[Tensor, "rows size"],
        thought: Float[Tensor, "rows size"],
        belief: Float[Tensor, "rows classes"],
    ) -> tuple[Float[Tensor, "rows size"], Dirichlet, Float[Tensor, "rows"]]:
        """One step: next thought, policy and value."""
        low, high, floor = self.settings.c_min, self.settings.c_max, self.settings.alpha_floor
        thought = self.gru(torch.cat([embedding, belief], -1), thought)
        concentration = low + (high - low) * self.concentration(thought).sigmoid()
        alpha = self.policy(thought).softmax(-1) * concentration + floor
        # float32 rows of many classes do not sum to 1 as closely as torch's validation demands
        return thought, Dirichlet(alpha, validate_args=False), self.value(thought).squeeze(-1)


class Experience(NamedTuple):
    actions: list[Float[Tensor, "rows classes"]]
    log_probs: list[Float[Tensor, "rows"]]
    rewards: list[Float[Tensor, "rows"]]
    values: list[Float[Tensor, "rows"]]
    """One more than there are steps."""


@torch.no_grad()
def roll_out(agent: Agent, images: Float[Tensor, "batch ..."], labels: Int64[Tensor, "batch"]) -> Experience:
    settings, experience = agent.settings, Experience([], [], [], [])
    labels = labels.repeat(settings.rollouts).unsqueeze(-1)
    embedding, thought, belief = agent.begin(images)
    previous = torch.full_like(belief[:, 0], -math.log(agent.classes))
    for _ in range(settings.horizon):
        thought, policy, value = agent(embedding, thought, belief)
        belief = policy.sample()
        score = belief.gather(-1, labels).squeeze(-1).clamp(min=settings.reward_floor).log()
        experience.actions.append(belief)
        experience.log_probs.append(policy.log_prob(belief))
        experience.rewards.append(score - previous)
        experience.values.append(value)
        previous = score
    experience.values.append(agent(embedding, thought, belief)[2])
    return experience


def estimate_advantages(experience: Experience, settings: RIC) -> list[Float[Tensor, "rows"]]:
    """Generalised advantage estimation, backwards in time."""
    advantages: list[Tensor] = []
    following = torch.zeros_like(experience.rewards[0])
    for t in reversed(range(settings.horizon)):
        gain = experience.rewards[t] + settings.gamma * experience.values[t + 1] - experience.values[t]
        following = gain + settings.gamma * settings.gae_lambda * following
        advantages.insert(0, following)
    return advantages


def loss_of(agent: Agent, images: Float[Tensor, "batch ..."], experience: Experience) -> Float[Tensor, ""]:
    """Replay the actions with the current network: SPO and squared error of the value."""
    settings = agent.settings
    advantages = torch.stack(estimate_advantages(experience, settings))
    targets = advantages + torch.stack(experience.values[:-1])
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_probs, values = [], []
    embedding, thought, belief = agent.begin(images)
    for action in experience.actions:
        thought, policy, value = agent(embedding, thought, belief)
        log_probs.append(policy.log_prob(action))
        values.append(value)
        belief = action
    log_ratio = torch.stack(log_probs) - torch.stack(experience.log_probs)
    ratio = log_ratio.clamp(-settings.log_ratio_clamp, settings.log_ratio_clamp).exp()
    surrogate = advantages * ratio - advantages.abs() * (ratio - 1) ** 2 / (2 * settings.epsilon)
    return settings.value_coef * F.mse_loss(torch.stack(values), targets) - surrogate.mean()


class HostImages(TorchDataset[tuple[Tensor, int]]):
    """Images that are cropped, flipped and normalised one by one on the host."""

    def __init__(self, dataset: Dataset) -> None:
        self.images, self.labels, self.augmentation = dataset.train.inputs, dataset.train.labels, dataset.augmentation
        sample = self.images[:1000] / 255
        self.mean, self.std = sample.mean((0, 2, 3))[:, None, None], sample.std((0, 2, 3))[:, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Float[Tensor, "c h w"], int]:
        image = crop_and_flip(self.images[index], self.augmentation)
        return (image / 255 - self.mean) / self.std, int(self.labels[index])


def crop_and_flip(image: Tensor, augmentation: Augmentation) -> Tensor:
    pad, (_, height, width) = augmentation.crop_padding, image.shape
    top, left = torch.randint(2 * pad + 1, (2,)).tolist()
    image = F.pad(image, (pad, pad, pad, pad))[:, top : top + height, left : left + width]
    return image.flip(-1) if augmentation.flip and torch.rand(()) < 0.5 else image


class PlainTraining:
    """`step` makes an update with the next batch of the loader, `learn` with a given batch."""

    def __init__(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        encoder = build_encoder(config.network, dataset.input_shape)
        size = embedding_size(encoder, dataset.input_shape)
        self.settings, self.optimization, self.device = config.method, config.optimization, device
        self.agent = Agent(encoder, size, len(dataset.class_names), config.method).to(device)
        self.old_agent = copy.deepcopy(self.agent)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), config.optimization.lr)
        self.loader = DataLoader(HostImages(dataset), config.optimization.batch_size, shuffle=True, drop_last=True)
        self.batches: Iterator[list[Tensor]] = iter(self.loader)
        self.updates = 0

    def step(self) -> float:
        return self.learn(*self.next_batch())

    def next_batch(self) -> tuple[Float[Tensor, "batch c h w"], Int64[Tensor, "batch"]]:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return batch[0].to(self.device), batch[1].to(self.device)

    def learn(self, images: Float[Tensor, "batch c h w"], labels: Int64[Tensor, "batch"]) -> float:
        if self.updates % self.settings.updates_per_snapshot == 0:
            self.old_agent.load_state_dict(self.agent.state_dict())
        loss = loss_of(self.agent, images, roll_out(self.old_agent, images, labels))
        self.optimizer.zero_grad()
        loss.backward()
        if self.optimization.clip is not None:
            nn.utils.clip_grad_norm_(self.agent.parameters(), self.optimization.clip)
        self.optimizer.step()
        self.updates += 1
        return loss.item()
