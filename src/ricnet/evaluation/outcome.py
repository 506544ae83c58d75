"""Run a method over a split: the outcome holds its answers and a summary of every step."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Temperature, Trajectory, asked_before, doubt, halting_step
from ricnet.data import Split
from ricnet.distributed import ALONE, Processes
from ricnet.methods import Asked
from ricnet.methods.inference import InSteps

MIN_POOL, MAX_POOL = 512, 8192
POOL_NUMBERS = 2**20
"""Beliefs (examples × classes) per step and pool: 4 MB, with 20 steps and intermediate results some hundred MB."""


@dataclass(frozen=True)
class Outcome:
    """The trajectories of a split: beliefs at the halt, and a summary of the belief at each step."""

    log_beliefs: Float[Tensor, "n classes"]
    labels: Int64[Tensor, "n"]
    halt_step: Int64[Tensor, "n"]
    cell_evaluations: Int64[Tensor, "n"]
    step_scores: Float[Tensor, "steps n"]
    """log a_{t,y}."""
    step_confidence: Float[Tensor, "steps n"]
    step_correct: Bool[Tensor, "steps n"]
    step_entropy: Float[Tensor, "steps n"]
    """Entropy of the belief, in nats."""
    values: Float[Tensor, "steps n"] | None = None
    """V(s_{t+1}) at index t; None for a method without a value."""
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the cumulative share of compute after each step."""
    step_doubt: Float[Tensor, "steps n"] | None = None
    """With exits and without a value: 1 − confidence, in more digits."""

    @property
    def continuation(self) -> Float[Tensor, "steps n"]:
        """What a halting threshold is compared with, as in a trajectory."""
        if self.values is not None:
            return self.values
        return asked_before(1 - self.step_confidence if self.step_doubt is None else self.step_doubt)

    @property
    def cost(self) -> Float[Tensor, "n"] | None:
        """Share of compute of each example; None without exits."""
        return None if self.costs is None else self.costs[self.halt_step - 1]

    @classmethod
    def of(cls, path: Trajectory, labels: Int64[Tensor, "n"], max_steps: int | None = None) -> "Outcome":
        """Examples halt after `max_steps` at the latest; the summary includes later steps."""
        confidence, answer = path.log_beliefs.max(-1)
        halted = path if max_steps is None else path.until(max_steps)
        return cls(
            halted.final,
            labels,
            halted.halt_step,
            halted.cell_evaluations,
            log_scores(path.log_beliefs, labels),
            confidence.exp(),
            answer == labels,
            torch.special.entr(path.log_beliefs.exp()).sum(-1),
            path.values,
            torch.tensor(path.costs, dtype=torch.float64) if path.costs else None,
            doubt(path.log_beliefs) if path.costs and path.values is None else None,
        )

    def take(self, rows: slice | Int64[Tensor, "some"]) -> "Outcome":
        """The outcome of some examples."""
        whole = ("log_beliefs", "costs")
        kept: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in whole}
        some: dict[str, Any] = {name: part if part is None else part[..., rows] for name, part in kept.items()}
        return Outcome(self.log_beliefs[rows], **some, costs=self.costs)

    @classmethod
    def join(cls, parts: "list[Outcome]") -> "Outcome":
        """Concatenate examples: the first axis of the beliefs, the last of all else."""
        kept = [field.name for field in fields(cls) if getattr(parts[0], field.name) is not None]
        arrays = {name: [getattr(part, name).cpu() for part in parts] for name in kept if name != "costs"}
        joined = {name: torch.cat(pieces, 0 if name == "log_beliefs" else -1) for name, pieces in arrays.items()}
        return cls(**joined, costs=parts[0].costs)


@dataclass(frozen=True)
class Reading:
    """How trajectories are read: temperature and halting rule."""

    temperature: Temperature = 1.0
    halt_threshold: float | None = None
    """Halt if the value, or without one 1 − confidence, falls below this; None: the rule of the method."""
    max_steps: int | None = None
    """Maximum steps; None for all."""
    step: int | None = None
    """Halt after exactly this many steps; None: by the rule."""

    def read(self, path: Trajectory) -> Trajectory:
        """The trajectory with tempered beliefs and new halting steps; steps after the halt are kept."""
        path = path if self.temperature == 1 else path.tempered(self.temperature)
        halt = path.halt_step
        if self.halt_threshold is not None:
            halt = halting_step(path.continuation, self.halt_threshold)
        if self.step is not None:
            halt = torch.full_like(halt, self.step)
        return replace(path, halt_step=halt if self.max_steps is None else halt.clamp(max=self.max_steps))


AS_TRAINED = Reading()


def observe(
    method: Asked,
    model: nn.Module,
    split: Split,
    pool: int | None = None,
    max_steps: int | None = None,
    reading: Reading = AS_TRAINED,
    processes: Processes = ALONE,
) -> Outcome:
    """Refine every example of a split, all steps, in eval mode, `pool` examples at a time."""
    return observe_each(method, model, split, [reading], pool, max_steps, processes)[0]


@torch.no_grad()
def observe_each(
    method: Asked,
    model: nn.Module,
    split: Split,
    readings: Sequence[Reading],
    pool: int | None = None,
    max_steps: int | None = None,
    processes: Processes = ALONE,
) -> list[Outcome]:
    """The outcome for each reading of the same trajectories. Several processes share the examples; the first of them
    returns the whole outcome."""
    draws = isinstance(method, InSteps) and method.draws  # each process then refines all, to draw the same numbers
    shared = processes.count > 1 and not draws and len(split) >= processes.count
    mine = processes.slice(len(split)) if shared else slice(0, len(split))
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    rows = pool or pool_size(int(split.labels.max()) + 1)
    parts: list[list[Outcome]] = [[] for _ in readings]
    for start in range(mine.start, mine.stop, rows):
        some = slice(start, min(start + rows, mine.stop))
        inputs, labels = split.inputs[some].to(device), split.labels[some].to(device)
        path = method.refine(model, inputs, max_steps)
        for reading, part in zip(readings, parts, strict=True):
            part.append(Outcome.of(reading.read(path), labels, reading.max_steps))
    model.train(was_training)
    outcomes = [Outcome.join(part) for part in parts]
    return [Outcome.join(processes.gather(outcome)) for outcome in outcomes] if shared else outcomes


def pool_size(classes: int) -> int:
    """Examples to refine at a time, as many as memory allows for the beliefs of all steps."""
    return max(MIN_POOL, min(MAX_POOL, POOL_NUMBERS // classes))
