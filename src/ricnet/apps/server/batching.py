"""Requests that arrive together are answered together: one thread runs the model, on all that wait for the same.

A batch costs little more than a single input, so whatever has come in while the model was busy makes the next one.
Clients that ask without a pause come back at once when they have been answered, and would fall into several groups,
each waiting for the others. So who asks right after a batch waits a moment for those who were there with it, unless it
has a deadline. Who comes later, or was alone before, never waits.

Where a model has exits nobody waits for those who look longer: requests enter its stages as they come (stages.py). Only
one that asks for something else than an answer, such as a trace or a deadline, is still answered by itself.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from jaxtyping import Num
from torch import Tensor

from ricnet.apps.server.limits import Refusal
from ricnet.apps.server.stages import Stages, in_stages
from ricnet.core.trajectory import Trajectory
from ricnet.training.classifier import Classifier

PATIENCE, AT_MOST = 0.01, 0.05
"""Seconds to wait for one more request, and for all of them, before going on with those that are there. For one, never
longer than the last batch took: where the model is quick, there is little to gain by company."""
DELIVERY, LONGEST_DELIVERY = 1e-3, 0.05
"""Seconds from the beliefs to the response: the first estimate, and the maximum that one response counts as."""
SHORTEST = 1e-3
"""Milliseconds that a request has whose time was up before the model was free; one step is always made."""


@dataclass(frozen=True, eq=False)
class Question:
    """The inputs of one request and how they are to be refined."""

    inputs: Num[Tensor, "n ..."]
    max_steps: int | None = None
    trace: bool = False
    """Whether the steps after the halt are wanted, too."""
    deadline: float | None = None
    """By time.perf_counter. Such a question is refined by itself, for the clock stops all of a batch."""
    classifier: Classifier | None = None
    """The same network under a budget of the request's own; None for the server's."""
    answer: "Future[Trajectory]" = field(default_factory=Future, compare=False)

    def joins(self, first: "Question") -> bool:
        """Budgets may differ only where each input leaves by itself, at the stages."""
        if self.plain and first.plain:
            return True
        alike = (self.max_steps, self.trace, self.budget) == (first.max_steps, first.trace, first.budget)
        return alike and self.deadline is None and first.deadline is None

    @property
    def budget(self) -> float | None:
        return None if self.classifier is None else self.classifier.budget

    @property
    def plain(self) -> bool:
        return self.max_steps is None and not self.trace and self.deadline is None


@dataclass
class Tally:
    """What the model has done so far."""

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
        self._answered = 0
        self._patience = 0.0
        self._delivery = DELIVERY
        room = 2 * max_batch  # so that some can enter while others are on their way
        self._stages: Stages[Question] | None = Stages(classifier, room) if in_stages(classifier) else None
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, question: Question) -> "Future[Trajectory]":
        """The beliefs, on the CPU, when they are there."""
        with self._change:
            if self._closed or not self.alive:
                raise Refusal(503, "the server is shutting down; ask again when it is back.")
            self._waiting.append(question)
            self._change.notify()
        return question.answer

    def delivered(self, seconds: float) -> None:
        """Record the time from the beliefs to the response. Deadlines allow for a moving average of it."""
        self._delivery += (min(seconds, LONGEST_DELIVERY) - self._delivery) / 4

    def close(self, timeout: float | None = None) -> None:
        """Answer what is waiting, and nothing more. A model that takes longer than `timeout` seconds is left behind:
        its thread ends with the process, which it must not keep from ending."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        while (batch := self._next()) or self._under_way:
            wanted = [question for question in batch if question.answer.set_running_or_notify_cancel()]
            started = time.perf_counter()
            if wanted:
                self._answer(wanted)
            if self._stages is not None and self._under_way:
                self._advance(self._stages)
            self._patience = min(PATIENCE, time.perf_counter() - started)

    @property
    def _under_way(self) -> int:
        """Inputs that wait at some stage."""
        return 0 if self._stages is None else self._stages.under_way

    def _next(self) -> list[Question]:
        """The one that has waited longest and those that can join it, as many as there is room for. Nothing once all is
        done; with others under way it may be nothing, too."""
        with self._change:
            if not self._under_way:
                expected, free = len(self._waiting) + self._answered, time.perf_counter()
                self._change.wait_for(lambda: self._waiting or self._closed)
                if time.perf_counter() - free < self._patience:
                    self._gather(expected)
            most = self._max_batch
            if self._stages is not None and self._waiting and self._waiting[0].plain:
                most = min(most, self._stages.room)
                if len(self._waiting[0].inputs) > most:
                    return []
            chosen = _choose(self._waiting, most)
            self._answered = len(chosen)
            return chosen

    def _gather(self, expected: int) -> None:
        """Wait for others while they come one soon after the other, and while they could still join the first."""
        ends = time.perf_counter() + AT_MOST
        before = 0
        while (
            before < len(self._waiting) < expected
            and not self._closed
            and _worth_waiting(self._waiting, self._max_batch)
        ):
            before = len(self._waiting)
            self._change.wait(min(self._patience, ends - time.perf_counter()))

    def _answer(self, batch: Sequence[Question]) -> None:
        started = time.perf_counter()
        try:
            if self._stages is not None and batch[0].plain:
                inputs = {question: question.inputs for question in batch}
                self._stages.enter(inputs, {question: question.classifier or self._classifier for question in batch})
                return self._count([], time.perf_counter() - started)
            path = self._refine(batch, started)
            sizes = [len(question.inputs) for question in batch]
            parts = [path.take(slice(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        except Exception as error:  # whatever it is, this thread must live on, and they must hear of it
            for question in batch:
                question.answer.set_exception(error)
            return
        self._count(sizes, time.perf_counter() - started)
        for question, part in zip(batch, parts, strict=True):
            question.answer.set_result(part)

    def _advance(self, stages: "Stages[Question]") -> None:
        """One stage of those who wait at it; who leaves there is answered."""
        started = time.perf_counter()
        try:
            left = {question: path.map(Tensor.cpu) for question, path in stages.advance().items()}
        except Exception as error:  # as above
            for question in stages.clear():
                question.answer.set_exception(error)
            return
        self._count([len(question.inputs) for question in left], time.perf_counter() - started, batches=0)
        for question, path in left.items():
            question.answer.set_result(path)

    def _refine(self, batch: Sequence[Question], now: float) -> Trajectory:
        first = batch[0]
        inputs = torch.cat([question.inputs for question in batch])
        max_ms = None if first.deadline is None else max(SHORTEST, 1000 * (first.deadline - self._delivery - now))
        classifier = first.classifier or self._classifier
        return classifier.refine(inputs, first.max_steps, not first.trace, max_ms).map(Tensor.cpu)

    def _count(self, sizes: Sequence[int], seconds: float, batches: int = 1) -> None:
        """Those who enter the stages of a model together are one batch, however they leave."""
        done = self.tally
        self.tally = Tally(
            done.requests + len(sizes), done.inputs + sum(sizes), done.batches + batches, done.model_seconds + seconds
        )


def _worth_waiting(waiting: deque[Question], most: int) -> bool:
    """Not where somebody's time is running, nor where a batch is full."""
    rows = sum(len(question.inputs) for question in waiting if question.joins(waiting[0]))
    return rows < most and all(question.deadline is None for question in waiting)


def _choose(waiting: deque[Question], most: int) -> list[Question]:
    """Take the first, and of the others those that ask for the same, while they fit; the rest keep their order."""
    if not waiting:
        return []
    chosen, rest = [waiting.popleft()], []
    rows = len(chosen[0].inputs)
    for question in waiting:
        if question.joins(chosen[0]) and rows + len(question.inputs) <= most:
            chosen.append(question)
            rows += len(question.inputs)
        else:
            rest.append(question)
    waiting.clear()
    waiting.extend(rest)
    return chosen
