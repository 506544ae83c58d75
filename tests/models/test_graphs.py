"""Recordings are replayed in any order; without a GPU, functions stand in for CUDA graphs."""

import gc
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from ricnet.models import graphs
from ricnet.models.graphs import Messages, Part, Recorder

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]


class Counter:
    """Two parts that work on the same number."""

    def __init__(self, device: str) -> None:
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        record = Recorder(self.number.device)
        self.add: Part = record(self._add, before=self._clear)
        self.double: Part = record(self._double)
        self._clear()

    def _add(self) -> None:
        self.number += 1

    def _double(self) -> None:
        self.number *= 2

    def _clear(self) -> None:
        self.number.zero_()


@pytest.mark.parametrize("device", DEVICES)
def test_recordings_are_replayed_in_any_order(device: str) -> None:
    counter = Counter(device)
    for part in (counter.add, counter.double, counter.double, counter.add):
        part()
    assert counter.number.item() == 5


def test_no_garbage_is_collected_during_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph", lambda _: nullcontext())
    monkeypatch.setattr(graphs, "_renew_generator", lambda _: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [None])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for error in (None, ValueError):
        with nullcontext() if error is None else pytest.raises(error), graphs.capture(Mock(spec=torch.cuda.CUDAGraph)):
            assert not gc.isenabled()
            if error is not None:
                raise error
        assert gc.isenabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_that_becomes_garbage_does_not_end_the_recording_of_another() -> None:
    old = [Counter("cuda") for _ in range(graphs.WARM_UP + 1)]
    number = torch.zeros((), dtype=torch.int64, device="cuda")

    def part() -> None:
        circle: list[object] = [old.pop()]
        circle.append(circle)
        del circle
        number.add_(len([[] for _ in range(10_000)]))  # so many new objects bring the collector

    replay = Recorder(number.device)(part)
    number.zero_()
    replay()
    assert number.item() == 10_000


@pytest.mark.parametrize("device", DEVICES)
def test_a_message_says_what_was_true_when_it_was_sent(device: str) -> None:
    counter, messages = Counter(device), Messages(3, torch.device(device))
    for step in range(3):
        counter.add()
        messages.send(step, counter.number)
    counter.double()
    assert [messages.read(step) for step in (1, 0, 2)] == [2, 1, 3]
    messages.send(0, counter.number)
    assert messages.read(0) == 6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_after_a_recording_that_failed_work_goes_on_where_it_was() -> None:
    number, before = torch.ones((), device="cuda"), torch.cuda.current_stream()
    torch.manual_seed(0)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(0)
    with pytest.raises(RuntimeError):
        Recorder(number.device)(lambda: print(number.item()))  # the host waits for a number
    assert torch.cuda.current_stream() == before
    assert (number + 1).item() == 2
    assert torch.equal(torch.rand(3, device="cuda"), expected)
