"""Batching: one thread runs the model on all waiting requests that ask for the same kind of answer.

A batch costs little more than a single input, so all requests that arrive while the model is busy form the next one.
Clients that ask without a pause would fall into groups that wait for each other. So right after a batch the model waits
a moment for its clients to return. Requests with a deadline, or after a pause, never wait.

With exits, requests enter the stages as they arrive and none waits for the deepest (stages.py); only those with a
trace, a deadline or max_steps are still refined as a whole.
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
from ricnet.models.classifier import Classifier

PATIENCE, AT_MOST = 0.01, 0.05
"""Seconds to wait for one more request (at most the time of the last batch), and for all of them."""
DELIVERY, LONGEST_DELIVERY = 1e-3, 0.05
"""Seconds from the beliefs to the response: the first estimate, and the maximum that one response counts as."""
SHORTEST = 1e-3
"""Milliseconds for a request whose deadline has passed before the model is free; one step is always made."""


@dataclass(eq=False)
class Question:
    """The inputs of one request and how they are to be refined."""

    inputs: Num[Tensor, "n ..."]
    max_steps: int | None = None
    trace: bool = False
    """Whether to compute the steps after the halt too."""
    deadline: float | None = None
    """By time.perf_counter. Such a question is not batched, since the deadline stops the whole batch."""
    classifier: Classifier | None = None
    """The same network with a budget of the request's own; None for the server's."""
    answer: "Future[Trajectory]" = field(default_factory=Future)
    answered: float = 0.0
    """Time of the answer, by time.perf_counter."""

    def joins(self, first: "Question") -> bool:
        """Whether both fit in one batch. Different budgets do only if each input leaves by itself, at the stages."""
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

    def finish(self, path: Trajectory) -> None:
        self.answered = time.perf_counter()
        self.answer.set_result(path)


@dataclass
class Tally:
    """Counts of what the model has answered."""

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
        self._delivery = DELIVERY
        self._answered = 0
        """Requests of the last batch."""
        self._patience = 0.0
        room = 2 * max_batch  # so that new inputs can enter while others are at later stages
        self._stages: Stages[Question] | None = Stages(classifier, room) if in_stages(classifier) else None
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

    def delivered(self, seconds: float) -> None:
        """Record the time from the beliefs to the response. Deadlines allow for a moving average of it."""
        self._delivery += (min(seconds, LONGEST_DELIVERY) - self._delivery) / 4

    def close(self, timeout: float | None = None) -> None:
        """Answer what is waiting and stop. After `timeout` seconds, leave the thread to end with the process."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        while (batch := self._next()) or self._at_stages:
            wanted = [question for question in batch if question.answer.set_running_or_notify_cancel()]
            started = time.perf_counter()
            if wanted:
                self._answer(wanted)
            if self._stages is not None and self._at_stages:
                self._advance(self._stages)
            self._patience = min(PATIENCE, time.perf_counter() - started)

    @property
    def _at_stages(self) -> int:
        """Inputs that wait at some stage."""
        return 0 if self._stages is None else self._stages.under_way

    def _next(self) -> list[Question]:
        """The first that waits and those that can join it, up to the free room. Empty at the end, or if no input can
        enter the stages now."""
        with self._change:
            if not self._at_stages:
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
        """Wait while requests keep arriving, up to the expected number, and could still join the first."""
        ends, before = time.perf_counter() + AT_MOST, 0
        while before < len(self._waiting) < expected and not self._closed:
            if not _worth_waiting(self._waiting, self._max_batch):
                return
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
        except Exception as error:  # the thread goes on, and the clients get the error
            for question in batch:
                question.answer.set_exception(error)
            return
        self._count(sizes, time.perf_counter() - started)
        for question, part in zip(batch, parts, strict=True):
            question.finish(part)

    def _advance(self, stages: "Stages[Question]") -> None:
        """Compute one stage, and answer those that leave there."""
        started = time.perf_counter()
        try:
            left = {question: path.map(Tensor.cpu) for question, path in stages.advance().items()}
        except Exception as error:  # as above
            for question in stages.clear():
                question.answer.set_exception(error)
            return
        self._count([len(question.inputs) for question in left], time.perf_counter() - started, batches=0)
        for question, path in left.items():
            question.finish(path)

    def _refine(self, batch: Sequence[Question], now: float) -> Trajectory:
        first = batch[0]
        inputs = torch.cat([question.inputs for question in batch])
        max_ms = None if first.deadline is None else max(SHORTEST, 1000 * (first.deadline - self._delivery - now))
        classifier = first.classifier or self._classifier
        return classifier.refine(inputs, first.max_steps, not first.trace, max_ms).map(Tensor.cpu)

    def _count(self, sizes: Sequence[int], seconds: float, batches: int = 1) -> None:
        """Inputs that enter the stages together count as one batch."""
        done = self.tally
        self.tally = Tally(
            done.requests + len(sizes), done.inputs + sum(sizes), done.batches + batches, done.model_seconds + seconds
        )


def _worth_waiting(waiting: deque[Question], most: int) -> bool:
    """Not with a deadline, nor if the batch is full."""
    rows = sum(len(question.inputs) for question in waiting if question.joins(waiting[0]))
    return rows < most and all(question.deadline is None for question in waiting)


def _choose(waiting: deque[Question], most: int) -> list[Question]:
    """Remove the first and all that can join it within `most` inputs; the rest keep their order."""
    chosen: list[Question] = []
    rows = 0
    for question in list(waiting):
        if not chosen or (question.joins(chosen[0]) and rows + len(question.inputs) <= most):
            chosen.append(question)
            rows += len(question.inputs)
            waiting.remove(question)
    return chosen
