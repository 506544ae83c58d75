"""What a CPU has in place of CUDA graphs and events, and, where there is a GPU, the same of the real ones."""

import pytest
import torch

from ricnet.training.recording import Messages, Part, Recorder

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
