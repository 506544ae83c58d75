"""`Trajectory`: the beliefs of a batch after every step, and the step at which each example halts."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ricnet.errors import RicnetError, whole_number


def halting_step(values: Float[Tensor, "steps batch"], threshold: float = 0.0) -> Int64[Tensor, "batch"]:
    """The smallest n ≥ 1 with V(s_{n+1}) below the threshold, else all steps. `values[t]` is V(s_{t+1}); V(s_1) is not
    used, because the first step is always made."""
    return stop_before(not_below(values, threshold))


def not_below(values: Float[Tensor, "*any"], threshold: float) -> Bool[Tensor, "*any"]:
    """Mask of examples that continue. NaN continues to the last step, whose belief is then NaN too."""
    return ~(values < threshold)


CERTAIN = 1e-12
"""Doubts below this are set to 0; the confidence, 1 − doubt, is then 1 within its precision."""


def doubt(log_beliefs: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """1 − confidence, as the sum over all other classes. (In float32, 1 − max p rounds to 0 for about one example in
    ten of a confident network.)"""
    surest = log_beliefs.argmax(-1, keepdim=True)
    others = log_beliefs.exp().scatter(-1, surest, 0.0).sum(-1)
    return torch.where(others < CERTAIN, 0.0, others)


def doubt_before(doubts: Float[Tensor, "steps batch"]) -> Float[Tensor, "steps batch"]:
    """Doubt before each step, used in place of a value: the doubt after the previous step, and 1 before the first."""
    return torch.cat([torch.ones_like(doubts[:1]), doubts[:-1]])


def first_stop(active: Bool[Tensor, "steps batch"]) -> Int64[Tensor, "batch"]:
    """First step at which an example does not continue, counted from 1, else the last."""
    return torch.cat([~active[:-1], torch.ones_like(active[:1])]).int().argmax(0) + 1


def stop_before(active: Bool[Tensor, "steps batch"]) -> Int64[Tensor, "batch"]:
    """Last step before the first False, where `active[t]` is decided before step t. `active[0]` is not used, because
    the first step is always made."""
    return first_stop(torch.cat([active[1:], active[:1]]))


Temperature = float | tuple[float, ...]
"""One temperature for all steps, or one per step."""


@dataclass(frozen=True)
class Trajectory:
    """Beliefs of a batch over the steps of refinement. A one-pass classifier has one step."""

    log_beliefs: Float[Tensor, "steps batch classes"]
    halt_step: Int64[Tensor, "batch"]
    """Number of steps made before halting, from 1 to `steps`."""
    values: Float[Tensor, "steps batch"] | None = None
    """V(s_{t+1}) at index t, computed before the step that makes `log_beliefs[t]`; with exits also before its stage."""
    halt_probability: Float[Tensor, "steps batch"] | None = None
    """Halting probability, for methods without a value (ACT, PonderNet)."""
    costs: tuple[float, ...] = ()
    """With exits, the cumulative share of compute after each step; else empty."""

    @property
    def steps(self) -> int:
        return len(self.log_beliefs)

    @property
    def final(self) -> Float[Tensor, "batch classes"]:
        """The answer: each example's log-belief at its own halt."""
        return self.log_beliefs[self.halt_step - 1, self._batch]

    def at(self, step: int) -> Float[Tensor, "batch classes"]:
        """Log-belief of each example after `step` steps; at 0 the uniform belief. In a halted trajectory, the default
        of `refine`, an example keeps its belief after its halt; with `halt=False` its steps continue."""
        step = whole_number(step, "step")
        if not 0 <= step <= self.steps:
            raise RicnetError(f"there is no step {step}; give one from 0, the uniform belief, to {self.steps}.")
        if step == 0:
            return torch.full_like(self.log_beliefs[0], -math.log(self.log_beliefs.shape[-1]))
        return self.log_beliefs[step - 1]

    @property
    def continuation(self) -> Float[Tensor, "steps batch"]:
        """Expected benefit of each step before it is made: the value, or the doubt if there is no value."""
        return doubt_before(doubt(self.log_beliefs)) if self.values is None else self.values

    @property
    def cost(self) -> Float[Tensor, "batch"] | None:
        """Share of compute of each example; None without exits."""
        if not self.costs:
            return None
        return torch.tensor(self.costs, device=self.halt_step.device)[self.halt_step - 1]

    @property
    def cell_evaluations(self) -> Int64[Tensor, "batch"]:
        """Number of evaluations of the recurrent cell. A value needs the next thought, so halting by it after n < T
        steps takes n + 1. It is n with exits, and for methods that halt by the step just made."""
        if self.values is None or self.costs:
            return self.halt_step
        return self.halt_step + (self.halt_step < self.steps)

    def frozen(self) -> "Trajectory":
        """A copy in which each belief and value is constant from the halt on, as halted inference returns it."""
        time = torch.arange(self.steps, device=self.halt_step.device).unsqueeze(1)
        made, asked = (time.minimum(self.halt_step - 1), self._batch), (time.minimum(self.halt_step), self._batch)
        return replace(
            self,
            log_beliefs=self.log_beliefs[made],
            values=None if self.values is None else self.values[asked],
            halt_probability=None if self.halt_probability is None else self.halt_probability[made],
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "Trajectory":
        """Apply a function to each tensor."""
        tensors = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **{name: change(part) for name, part in tensors.items()})  # type: ignore[arg-type]

    def take(self, rows: slice) -> "Trajectory":
        """Some examples of the batch."""
        return self.map(lambda part: part[rows] if part.ndim == 1 else part[:, rows])

    def until(self, steps: int) -> "Trajectory":
        """The first steps only; examples that would continue halt there."""
        values, probability = (None if part is None else part[:steps] for part in (self.values, self.halt_probability))
        halt_step = self.halt_step.clamp(max=steps)
        return Trajectory(self.log_beliefs[:steps], halt_step, values, probability, self.costs[:steps])

    def tempered(self, temperature: Temperature) -> "Trajectory":
        """Beliefs at a temperature T: p ∝ a^{1/T}, softer above 1, sharper below. Halting stays the same."""
        if isinstance(temperature, tuple):
            each = self.log_beliefs.new_tensor(temperature[: self.steps]).view(-1, 1, 1)
            return replace(self, log_beliefs=(self.log_beliefs / each).log_softmax(-1))
        return replace(self, log_beliefs=(self.log_beliefs / temperature).log_softmax(-1))

    @property
    def _batch(self) -> Int64[Tensor, "batch"]:
        return torch.arange(len(self.halt_step), device=self.halt_step.device)
