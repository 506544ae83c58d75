"""Batching: one thread runs the model on all waiting requests that ask for the same kind of answer.

A batch costs little more than a single input, so all requests that arrive while the model is busy form the next one.

With exits, inputs of all requests at the same stage are computed together, and new inputs enter at the first stage
while others are at later ones. Only requests with a trace, a deadline or max_steps are refined as a whole.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import torch
from jaxtyping import Int64, Num
from torch import Tensor

from ricnet.apps.server.limits import Refusal
from ricnet.core.trajectory import Trajectory
from ricnet.methods.inference import InSteps, Refinement, Steps
from ricnet.models.classifier import Classifier, as_inputs

DELIVERY = 2e-3  # seconds of a deadline that are kept for the response
SHORTEST = 1e-3  # milliseconds, if the deadline has passed before the model is free; one step is always made
PASSED_OVER = 0.1
"""Each time a stage is not chosen counts like this many more waiting inputs. A higher weight evens out response times,
a lower one makes batches larger: with 16 clients a narrow ResNet-18 had a mean batch of 6; with weight 1 it had 4 and
took longer."""


@dataclass(eq=False)
class Question:
    """The inputs of one request and how they are to be refined."""

    inputs: Num[Tensor, "n ..."]
    max_steps: int | None = None
    trace: bool = False  # whether to compute the steps after the halt too
    deadline: float | None = None  # by time.perf_counter; not batched, since the deadline stops the whole batch
    classifier: Classifier | None = None  # with the budget of the request; None for that of the server
    answer: "Future[Trajectory]" = field(default_factory=Future)

    def joins(self, first: "Question") -> bool:
        """Whether both fit in one batch. Requests without limits always do, also with different budgets: each input
        halts by its own rule."""
        if self.plain and first.plain:
            return True
        kinds = {(one.max_steps, one.trace, getattr(one.classifier, "budget", None)) for one in (self, first)}
        return len(kinds) == 1 and self.deadline is None and first.deadline is None

    @property
    def plain(self) -> bool:
        return self.max_steps is None and not self.trace and self.deadline is None


@dataclass
class Tally:
    """Counts of answered requests; inputs that enter the stages together count as one batch."""

    requests: int = 0
    inputs: int = 0
    batches: int = 0
    model_seconds: float = 0.0


class Batcher:
    def __init__(self, classifier: Classifier, max_batch: int) -> None:
        self.tally = Tally()
        self._classifier, self._max_batch = classifier, max_batch
        self._waiting: deque[Question] = deque()
        self._change = threading.Condition()
        self._closed = False
        capacity = 2 * max_batch  # so that new inputs can enter while others are at later stages
        self._stages = Stages(classifier, capacity) if in_stages(classifier) else None
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, question: Question) -> "Future[Trajectory]":
        """The beliefs, on the CPU, once they are computed."""
        with self._change:
            if self._closed or not self.alive:
                raise Refusal(503, "the server is shutting down; try again when it is back.")
            self._waiting.append(question)
            self._change.notify()
        return question.answer

    def close(self, timeout: float | None = None) -> None:
        """Answer waiting requests and stop. After `timeout` seconds the thread is left to end with the process."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        while (batch := self._next()) or self._at_stages:
            if wanted := [question for question in batch if question.answer.set_running_or_notify_cancel()]:
                self.tally.batches += 1
                self._deliver(wanted)
            if self._at_stages:
                self._deliver([])

    @property
    def _at_stages(self) -> bool:
        return self._stages is not None and bool(self._stages.waiting)

    def _next(self) -> list[Question]:
        """The first waiting request and those that can join it, up to the free capacity. Empty at shutdown, or if
        no input can enter the stages now."""
        with self._change:
            if not self._at_stages:
                self._change.wait_for(lambda: self._waiting or self._closed)
            most = self._max_batch
            if self._stages is not None and self._waiting and self._waiting[0].plain:
                most = min(most, len(self._stages.free))
                if len(self._waiting[0].inputs) > most:
                    return []
            return _choose(self._waiting, most)

    def _deliver(self, batch: Sequence[Question]) -> None:
        """Answer a batch; if it is empty, advance the inputs at the stages. After an error the thread continues, and
        the clients get the error."""
        started = time.perf_counter()
        try:
            found = {question: path.map(Tensor.cpu) for question, path in self._answer(batch).items()}
        except Exception as error:
            for question in batch or (self._stages.clear() if self._stages is not None else ()):
                question.answer.set_exception(error)
            return
        self.tally.requests += len(found)
        self.tally.inputs += sum(len(question.inputs) for question in found)
        self.tally.model_seconds += time.perf_counter() - started
        for question, path in found.items():
            question.answer.set_result(path)

    def _answer(self, batch: Sequence[Question]) -> dict[Question, Trajectory]:
        """Complete answers; a batch that enters the stages has none yet."""
        if self._stages is not None and not batch:
            return self._stages.advance()
        first = batch[0]
        if self._stages is not None and first.plain:
            self._stages.enter(batch)
            return {}
        inputs = torch.cat([question.inputs for question in batch])
        classifier, max_ms = first.classifier or self._classifier, None
        if first.deadline is not None:
            max_ms = max(SHORTEST, 1000 * (first.deadline - DELIVERY - time.perf_counter()))
        path = classifier.refine(inputs, first.max_steps, not first.trace, max_ms).map(Tensor.cpu)
        answers, start = {}, 0
        for question in batch:
            answers[question] = path.take(slice(start, start := start + len(question.inputs)))
        return answers


def _choose(waiting: deque[Question], most: int) -> list[Question]:
    """Remove the first request and all that can join it within `most` inputs; the rest keep their order."""
    chosen: list[Question] = []
    rows = 0
    for question in list(waiting):
        if not chosen or (question.joins(chosen[0]) and rows + len(question.inputs) <= most):
            chosen.append(question)
            rows += len(question.inputs)
            waiting.remove(question)
    return chosen


def in_stages(classifier: Classifier) -> bool:
    return isinstance(classifier.inference, InSteps) and bool(getattr(classifier.model, "costs", ()))


@dataclass(eq=False)
class Entry:
    """A request at the stages."""

    question: Question
    rule: InSteps[Any]  # its own, because budgets may differ
    steps: int  # maximum number
    places: list[int]  # columns of its inputs in `Stages.made`
    active: int  # number of inputs that have not halted


class Stages:
    """At most `capacity` inputs at a time; each has a column of `made` until its request is answered."""

    def __init__(self, classifier: Classifier, capacity: int) -> None:
        self.classifier, self.method, self.model = classifier, _rule(classifier), cast(Any, classifier.model.eval())
        self.device = self.model.backbone.mean.device
        one = self.method.start(self.model, self.model.backbone.mean.new_zeros(1, *classifier.input_shape))
        self.made = Steps.blank(len(self.model.costs), one.take(self._rows([0] * capacity)))
        self.entries: dict[int, Entry] = {}  # by column
        self.clear()

    def clear(self) -> list[Question]:
        """Drop all inputs; return the requests that were not answered."""
        dropped = dict.fromkeys(entry.question for entry in self.entries.values())
        self.entries.clear()
        self.free = list(range(self.made.active.shape[1]))
        self.waiting: dict[int, Refinement] = {}  # by the number of steps made
        self.passed_over = [0.0] * len(self.model.costs)
        return list(dropped)

    @torch.no_grad()
    def enter(self, questions: Sequence[Question]) -> None:
        """Add requests, for which there must be free columns."""
        shape, is_table = self.classifier.input_shape, self.classifier.columns is not None
        batch = torch.cat([as_inputs(question.inputs, shape, is_table) for question in questions])
        pool = self.method.start(self.model, batch.to(self.device))
        first = len(self.free) - len(batch)
        places = self.free[first:]
        self.made.output[:, places] = math.nan  # clear results of earlier requests
        self._wait(0, Refinement.begin(self.method, self.model, pool, self.made, self._rows(places)))
        del self.free[first:]  # after everything that may fail
        taken = iter(places)
        for question in questions:
            rule, own = _rule(question.classifier or self.classifier), list(islice(taken, len(question.inputs)))
            entry = Entry(question, rule, min(rule.horizon, len(self.model.costs)), own, len(own))
            self.entries |= dict.fromkeys(own, entry)

    @torch.no_grad()
    def advance(self) -> dict[Question, Trajectory]:
        """Make one step of the inputs at one stage; return the answers that are complete after it."""
        step = self._fullest()
        refinement = self.waiting.pop(step).advance(step)
        assert isinstance(refinement.rows, Tensor)
        assert refinement.step is not None
        entries = [self.entries[place] for place in refinement.rows.tolist()]
        active = {rule: rule.goes_on(refinement.step).tolist() for rule in {entry.rule for entry in entries}}
        stays = [active[entry.rule][row] and step + 1 < entry.steps for row, entry in enumerate(entries)]
        if any(stays):
            self._wait(step + 1, refinement.keep(self._rows([row for row, stay in enumerate(stays) if stay])))
        left = [entry for entry, stay in zip(entries, stays, strict=True) if not stay]
        for entry in left:
            entry.active -= 1
        return {entry.question: self._leave(entry) for entry in dict.fromkeys(left) if entry.active == 0}

    def _fullest(self) -> int:
        """The stage with the most waiting inputs, the last of several. A stage that was not chosen counts more each
        time."""
        chosen = max(self.waiting, key=lambda step: (self.waiting[step].size + self.passed_over[step], step))
        for step in self.waiting:
            self.passed_over[step] = 0.0 if step == chosen else self.passed_over[step] + PASSED_OVER
        return chosen

    def _wait(self, step: int, refinement: Refinement) -> None:
        self.waiting[step] = self.waiting[step].join(refinement) if step in self.waiting else refinement

    def _leave(self, entry: Entry) -> Trajectory:
        made = Steps(*(tensor[: entry.steps, self._rows(entry.places)] for tensor in self.made))
        path = entry.rule.conclude(self.model, made, halt=True)
        self.free += entry.places
        for place in entry.places:
            del self.entries[place]
        temperature = self.classifier.temperature
        return path if temperature == 1 else path.tempered(temperature).frozen()

    def _rows(self, places: list[int]) -> Int64[Tensor, "rows"]:
        return torch.tensor(places, dtype=torch.int64, device=self.device)


def _rule(classifier: Classifier) -> InSteps[Any]:
    assert isinstance(classifier.inference, InSteps)
    return classifier.inference
