import threading
import time
from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.apps.server.batching import Batcher, Question, _choose, _worth_waiting
from ricnet.apps.server.limits import Refusal
from ricnet.core.trajectory import Trajectory
from ricnet.models.classifier import Classifier


@dataclass(frozen=True)
class Watched(Classifier):
    """Waits to be let go, and remembers what it was asked."""

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def refine(self, inputs: Any, max_steps: Any = None, halt: bool = True, max_ms: Any = None) -> Trajectory:
        self.entered.set()
        assert self.gate.wait(10)
        self.calls.append((len(inputs), max_steps, halt, max_ms))
        return super().refine(inputs, max_steps, halt, max_ms)


@pytest.fixture
def watched(digits: Classifier) -> Watched:
    return Watched(**{f.name: getattr(digits, f.name) for f in fields(Classifier)})


def start(batcher: Batcher, watched: Watched, first: Question) -> None:
    """Whatever is asked from now on has to wait for the first."""
    batcher.ask(first)
    assert watched.entered.wait(10)


def test_what_waits_is_answered_together_and_each_gets_its_own(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=64)
    questions = [Question(inputs[i : i + 1 + i % 2]) for i in range(6)]
    start(batcher, watched, questions[0])
    for question in questions[1:]:
        batcher.ask(question)
    watched.gate.set()
    batcher.close()
    assert [call[0] for call in watched.calls] == [1, 8]
    assert (batcher.tally.requests, batcher.tally.inputs, batcher.tally.batches) == (6, 9, 2)
    for question in questions:
        alone = watched.refine(question.inputs)
        together = question.answer.result(0)
        assert together.halt_step.tolist() == alone.halt_step.tolist()
        assert torch.allclose(together.final, alone.final, atol=1e-5)


def test_those_who_ask_for_something_else_wait_for_their_turn(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    one = inputs[:1]
    start(batcher, watched, Question(one))
    later = [Question(one), Question(one, 2), Question(one, trace=True), Question(one, 2), Question(inputs[:4])]
    later += [Question(one, deadline=time.perf_counter() + 60) for _ in range(2)]
    for question in later:
        batcher.ask(question)
    watched.gate.set()
    batcher.close()
    assert [call[:3] for call in watched.calls] == [
        *((1, None, True), (1, None, True), (2, 2, True), (1, None, False), (4, None, True)),
        *((1, None, True), (1, None, True)),
    ]
    assert [call[3] is None for call in watched.calls] == [True] * 5 + [False] * 2
    assert all(1000 < call[3] < 60_000 for call in watched.calls[5:])
    assert later[2].answer.result(0).steps == 4


def test_time_spent_waiting_counts(watched: Watched, inputs: torch.Tensor) -> None:
    """Its time is up before the model is free: one step is made all the same."""
    batcher = Batcher(watched, max_batch=4)
    start(batcher, watched, Question(inputs[:1]))
    late = Question(inputs[:1], deadline=time.perf_counter() - 1)
    batcher.ask(late)
    watched.gate.set()
    batcher.close()
    assert late.answer.result(0).steps == 1


def test_deadlines_allow_for_what_comes_after_the_model(watched: Watched, inputs: torch.Tensor) -> None:
    """By a clock of the test's own."""
    batcher = Batcher(watched, max_batch=4)
    watched.gate.set()
    question = Question(inputs[:1], deadline=10.05)

    def milliseconds(now: float) -> float:
        batcher._refine([question], now)
        return float(watched.calls[-1][3])

    assert milliseconds(10.0) == pytest.approx(50 - 1)
    assert milliseconds(10.02) == pytest.approx(30 - 1)
    for _ in range(40):
        batcher.delivered(0.004)
    assert milliseconds(10.0) == pytest.approx(50 - 4, abs=0.01)
    batcher.delivered(9.0)  # one response that took long is no reason to give all others up
    assert milliseconds(10.0) > 30
    assert milliseconds(10.05) == milliseconds(11.0) == 1e-3
    batcher.close()


def test_a_failure_is_told_and_survived(digits: Classifier, inputs: torch.Tensor) -> None:
    batcher = Batcher(digits, max_batch=4)
    with pytest.raises(Exception, match="shape"):
        batcher.ask(Question(inputs[:, :, :5])).result(10)
    assert batcher.ask(Question(inputs[:1])).result(10).halt_step.shape == (1,)
    assert batcher.alive
    batcher.close()
    assert not batcher.alive
    with pytest.raises(Refusal, match="shutting down"):
        batcher.ask(Question(inputs[:1]))


def test_a_model_that_does_not_end_keeps_nobody_from_ending(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    start(batcher, watched, Question(inputs[:1]))
    batcher.close(timeout=0.05)
    assert batcher.alive
    with pytest.raises(Refusal):
        batcher.ask(Question(inputs[:1]))
    watched.gate.set()
    batcher.close()


def test_company_is_waited_for_only_right_after_a_batch(
    watched: Watched, inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(watched, max_batch=4)
    expected: list[int] = []
    monkeypatch.setattr(batcher, "_gather", expected.append)
    start(batcher, watched, Question(inputs[:1]))
    together = [Question(inputs[:1]) for _ in range(2)]
    for question in together:
        batcher.ask(question)
    time.sleep(0.02)  # the model takes its time, so that there is something to gain by company
    watched.gate.set()
    for question in together:
        question.answer.result(10)
    assert expected == [3], "the two that waited, and the one that may come back"
    time.sleep(0.05)
    batcher.ask(Question(inputs[:1])).result(10)
    assert expected == [3], "nobody is on the way back any more"
    batcher.close()


def test_nobody_waits_who_has_no_time_or_whose_batch_is_full() -> None:
    one, two = Question(torch.zeros(1, 1)), Question(torch.zeros(2, 1))
    assert _worth_waiting(deque([one, two]), 4)
    assert not _worth_waiting(deque([one, two]), 3)
    assert _worth_waiting(deque([one, replace(two, max_steps=2)]), 3)
    assert not _worth_waiting(deque([one, replace(one, deadline=1.0)]), 4)


def test_who_has_gone_is_not_answered(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    start(batcher, watched, Question(inputs[:1]))
    gone = Question(inputs[:1], max_steps=2)
    batcher.ask(gone)
    assert gone.answer.cancel()
    watched.gate.set()
    batcher.close()
    assert len(watched.calls) == 1


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([None, 1, 2]), st.booleans(), st.booleans()), max_size=20),
    st.integers(1, 12),
)
def test_everyone_is_chosen_once_and_none_is_passed_by_forever(asked: list[tuple[Any, ...]], most: int) -> None:
    waiting = deque(Question(torch.zeros(n, 1), steps, trace, 1.0 if late else None) for n, steps, trace, late in asked)
    everyone, seen = list(waiting), []
    while waiting:
        first = waiting[0]
        batch = _choose(waiting, most)
        assert batch[0] is first
        assert len(batch) == 1 or sum(len(question.inputs) for question in batch) <= most
        assert len({(question.max_steps, question.trace) for question in batch}) == 1
        assert len(batch) == 1 or all(question.deadline is None for question in batch)
        seen += batch
    assert {id(question) for question in seen} == {id(question) for question in everyone}
    assert len(seen) == len(everyone)
    assert _choose(waiting, most) == []
