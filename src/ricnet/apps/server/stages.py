"""Requests to a model with exits: inputs at the same stage are computed together, whichever request they belong to.

New inputs enter at the first stage while others are deeper. The next stage to be computed is the one where most inputs
wait; each time a stage is passed over counts in its favour. Each request has its own halting rule, because budgets may
differ.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar, cast

import torch
from jaxtyping import Int64, Num
from torch import Tensor

from ricnet.core.trajectory import Trajectory
from ricnet.methods.inference import InSteps, Steps, Walk
from ricnet.models.classifier import Classifier, as_inputs

Asker = TypeVar("Asker", bound=Hashable)
PASSED_OVER = 0.1
"""Weight of a pass-over, in waiting inputs. Higher evens out response times, lower makes batches larger: with 16
clients a narrow ResNet-18 had a mean batch of 6; with weight 1 it had 4 and took longer."""


def in_stages(classifier: Classifier) -> bool:
    return isinstance(classifier.asked, InSteps) and bool(getattr(classifier.model, "costs", ()))


def _rule(classifier: Classifier) -> InSteps[Any]:
    assert isinstance(classifier.asked, InSteps)
    return classifier.asked


class Stages(Generic[Asker]):
    """At most `room` inputs at a time; each has a column of `made` until its request is answered."""

    def __init__(self, classifier: Classifier, room: int) -> None:
        self.classifier, self.method, self.model = classifier, _rule(classifier), cast(Any, classifier.model.eval())
        self.device = self.model.backbone.mean.device
        one = self.method.start(self.model, self.model.backbone.mean.new_zeros(1, *classifier.input_shape))
        self.made = Steps.blank(len(self.model.costs), one.take(self._rows([0] * room)))
        self._make_room(room)

    def _make_room(self, room: int) -> None:
        self.free = list(range(room))
        self.waiting: dict[int, Walk] = {}
        """Inputs by the number of steps they have made."""
        self.passed_over = [0.0] * len(self.model.costs)
        self.askers: dict[int, Asker] = {}
        """The request of each column."""
        self.places: dict[Asker, list[int]] = {}
        self.going: dict[Asker, int] = {}
        """Number of inputs of a request that have not halted."""
        self.rules: dict[Asker, InSteps[Any]] = {}
        """Halting rule of each request."""

    @property
    def under_way(self) -> int:
        return sum(walk.size for walk in self.waiting.values())

    @property
    def room(self) -> int:
        return len(self.free)

    @torch.no_grad()
    def enter(self, inputs: Mapping[Asker, Num[Tensor, "n ..."]], within: Mapping[Asker, Classifier]) -> None:
        """Add requests, for which there must be room. `within` has the same network for each, with its own rule."""
        classifier = self.classifier
        batch = [as_inputs(some, classifier.input_shape, classifier.columns is not None) for some in inputs.values()]
        pool = self.method.start(self.model, torch.cat(batch).to(self.device))
        first = len(self.free) - len(pool.context)
        places = self.free[first:]
        self.made.output[:, places] = math.nan  # clear results of earlier requests
        self._wait(0, Walk.begin(self.method, self.model, pool, self.made, self._rows(places)))
        del self.free[first:]  # after everything that may fail
        taken = iter(places)
        for asker, some in inputs.items():
            self.places[asker] = [next(taken) for _ in some]
            self.going[asker] = len(some)
            self.rules[asker] = _rule(within[asker])
            self.askers |= dict.fromkeys(self.places[asker], asker)

    @torch.no_grad()
    def advance(self) -> dict[Asker, Trajectory]:
        """Make one step of the inputs at one stage; return the answers that are complete after it."""
        time = self._fullest()
        walk = self.waiting.pop(time).advance(time)
        assert isinstance(walk.rows, Tensor)
        assert walk.step is not None
        askers = [self.askers[place] for place in walk.rows.tolist()]
        going = {rule: rule.goes_on(walk.step).tolist() for rule in {self.rules[asker] for asker in askers}}
        stays = [going[self.rules[asker]][row] and time + 1 < self._steps(asker) for row, asker in enumerate(askers)]
        if any(stays):
            self._wait(time + 1, walk.keep(self._rows([row for row, stay in enumerate(stays) if stay])))
        left = [asker for asker, stay in zip(askers, stays, strict=True) if not stay]
        for asker in left:
            self.going[asker] -= 1
        return {asker: self._leave(asker) for asker in dict.fromkeys(left) if self.going[asker] == 0}

    def clear(self) -> list[Asker]:
        """Drop all inputs; return the requests that were not answered."""
        askers = list(self.places)
        self._make_room(self.made.going.shape[1])
        return askers

    def _fullest(self) -> int:
        """The stage where most inputs wait; of several the deepest."""
        chosen = max(self.waiting, key=lambda time: (self.waiting[time].size + self.passed_over[time], time))
        for time in self.waiting:
            self.passed_over[time] = 0.0 if time == chosen else self.passed_over[time] + PASSED_OVER
        return chosen

    def _wait(self, time: int, walk: Walk) -> None:
        self.waiting[time] = self.waiting[time].join(walk) if time in self.waiting else walk

    def _leave(self, asker: Asker) -> Trajectory:
        places = self.places.pop(asker)
        del self.going[asker]
        self.free += places
        made = Steps(*(tensor[: self._steps(asker), self._rows(places)] for tensor in self.made))
        path = self.rules.pop(asker).conclude(self.model, made, halt=True)
        temperature = self.classifier.temperature
        return path if temperature == 1 else path.tempered(temperature).frozen()

    def _steps(self, asker: Asker) -> int:
        """Largest number of steps of a request."""
        return min(self.rules[asker].horizon, len(self.model.costs))

    def _rows(self, places: list[int]) -> Int64[Tensor, "rows"]:
        return torch.tensor(places, dtype=torch.int64, device=self.device)
