"""Where a model has exits, inputs at the same stage are computed together, whoever sent them and whenever.

New ones enter at the first stage while older ones go deeper. Next comes the stage at which most are waiting; to be
passed over counts for it, so that nobody waits forever. Each asker has a rule of its own who goes on, for budgets may
differ.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar, cast

import torch
from jaxtyping import Int64, Num
from torch import Tensor

from ricnet.core.trajectory import Trajectory
from ricnet.methods.iterative import InSteps, Pool, Steps
from ricnet.training.classifier import Classifier, as_inputs

Asker = TypeVar("Asker", bound=Hashable)
PASSED_OVER = 0.1
"""How much it counts, in inputs that wait. Raise it and answers come more evenly, lower it and batches grow: with 16
clients a narrow ResNet-18 had 6 in a batch, and with 1 it had 4 and took longer."""


def in_stages(classifier: Classifier) -> bool:
    return isinstance(classifier.asked, InSteps) and bool(getattr(classifier.model, "costs", ()))


def _rule(classifier: Classifier) -> InSteps[Any]:
    assert isinstance(classifier.asked, InSteps)
    return classifier.asked


class Stages(Generic[Asker]):
    """The inputs that are under way, `room` of them at most, each in a place of its own until its asker is answered."""

    def __init__(self, classifier: Classifier, room: int) -> None:
        self.classifier, self.method, self.model = classifier, _rule(classifier), cast(Any, classifier.model.eval())
        self.device = self.model.backbone.mean.device
        nobody = self.method.start(self.model, self.model.backbone.mean.new_zeros(1, *classifier.input_shape))
        everybody = nobody.take(torch.zeros(room, dtype=torch.int64, device=self.device))
        self.made = Steps.blank(len(self.model.costs), everybody)
        first = self.method.first_value(self.model, nobody)
        self.ahead = first is not None
        if first is not None:
            self.made.value[0] = first.detach()
        self._make_room(room)

    def _make_room(self, room: int) -> None:
        self.free = list(range(room))
        self.waiting: dict[int, tuple[Pool, Tensor]] = {}
        """Who has made so many steps, and the places."""
        self.passed_over = [0.0] * len(self.model.costs)
        self.askers: dict[int, Asker] = {}
        """Who is in a place."""
        self.places: dict[Asker, list[int]] = {}
        self.going: dict[Asker, int] = {}
        """How many of an asker's inputs are still on their way."""
        self.rules: dict[Asker, InSteps[Any]] = {}
        """Who goes on, and for how long."""

    @property
    def under_way(self) -> int:
        return sum(len(places) for _, places in self.waiting.values())

    @property
    def room(self) -> int:
        return len(self.free)

    @torch.no_grad()
    def enter(self, inputs: Mapping[Asker, Num[Tensor, "n ..."]], within: Mapping[Asker, Classifier]) -> None:
        """There must be room for them. `within` has the same network for each, under its own rule."""
        classifier = self.classifier
        batch = [as_inputs(some, classifier.input_shape, classifier.columns is not None) for some in inputs.values()]
        pool = self.method.start(self.model, torch.cat(batch).to(self.device))
        first = len(self.free) - len(pool.context)
        places = self.free[first:]
        self.made.output[:, places] = math.nan  # not what another left there
        self._wait(0, pool, self._rows(places))
        del self.free[first:]  # only now: who could not enter holds no place
        taken = iter(places)
        for asker, some in inputs.items():
            self.places[asker] = [next(taken) for _ in some]
            self.going[asker] = len(some)
            self.rules[asker] = _rule(within[asker])
            self.askers |= dict.fromkeys(self.places[asker], asker)

    @torch.no_grad()
    def advance(self) -> dict[Asker, Trajectory]:
        """One step of those at one stage, and the answers to whom it was the last."""
        time = self._fullest()
        pool, places = self.waiting.pop(time)
        step = self.method.advance(self.model, pool, time)
        self.made.write(time, step, places, self.ahead)
        askers = [self.askers[place] for place in places.tolist()]
        going = {rule: rule.goes_on(step).tolist() for rule in {self.rules[asker] for asker in askers}}
        stays = [going[self.rules[asker]][row] and time + 1 < self._steps(asker) for row, asker in enumerate(askers)]
        if any(stays):
            rows = self._rows([row for row, stay in enumerate(stays) if stay])
            self._wait(time + 1, step.pool.take(rows), places[rows])
        left = [asker for asker, stay in zip(askers, stays, strict=True) if not stay]
        for asker in left:
            self.going[asker] -= 1
        return {asker: self._leave(asker) for asker in dict.fromkeys(left) if self.going[asker] == 0}

    def clear(self) -> list[Asker]:
        """Nobody is under way any more; those that were."""
        askers = list(self.places)
        self._make_room(self.made.going.shape[1])
        return askers

    def _fullest(self) -> int:
        """The deepest of those at which most are waiting."""
        chosen = max(self.waiting, key=lambda time: (len(self.waiting[time][1]) + self.passed_over[time], time))
        for time in self.waiting:
            self.passed_over[time] = 0.0 if time == chosen else self.passed_over[time] + PASSED_OVER
        return chosen

    def _wait(self, time: int, pool: Pool, places: Int64[Tensor, "pool"]) -> None:
        if time in self.waiting:
            others, theirs = self.waiting[time]
            pool, places = others.join(pool), torch.cat([theirs, places])
        self.waiting[time] = (pool, places)

    def _leave(self, asker: Asker) -> Trajectory:
        places = self.places.pop(asker)
        del self.going[asker]
        self.free += places
        made = Steps(*(tensor[: self._steps(asker), self._rows(places)] for tensor in self.made))
        path = self.rules.pop(asker).conclude(self.model, made, halt=True)
        temperature = self.classifier.temperature
        return path if temperature == 1 else path.tempered(temperature).frozen()

    def _steps(self, asker: Asker) -> int:
        """The most that it takes."""
        return min(self.rules[asker].horizon, len(self.model.costs))

    def _rows(self, places: list[int]) -> Int64[Tensor, "rows"]:
        return torch.tensor(places, dtype=torch.int64, device=self.device)
