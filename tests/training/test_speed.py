"""CUDA graphs, compiled parts and the feed: what a CPU has in their place, and where there is a GPU, the real ones."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ricnet.data import Dataset
from ricnet.methods import Supervised
from ricnet.training import speed
from ricnet.training.api import configure, run
from ricnet.training.run import RunFolder
from ricnet.training.speed import Feed, Messages, Part, Recorder, compile_method

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


SCRIPT = """
import functools
import torch
from ricnet.methods import RIC
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier
from ricnet.training.speed import compile_encoder, compile_method

built = []

def works(graph, inputs):
    built.append(graph)
    return graph.forward

def fails(graph, inputs):
    raise RuntimeError("no compiler here")

real = torch.compile
method, labels = RIC.fast(rows=100, classes=4), torch.tensor([0, 1, 2, 3, 0])
model = RecurrentClassifier(Backbone(torch.nn.Linear(3, 8), (3,)), 8, 4)
rollout = method.roll_out(model, model.context(torch.randn(5, 3)).detach())
heads = Heads(torch.randn(20, 2, 5, 4), torch.randn(20, 2, 5), torch.randn(20, 2, 5))

def losses(method, weights=None):
    estimates = method.estimate_advantages(rollout, labels, weights)
    return method.actor_critic_loss(heads, rollout, estimates, labels, weights)

expected, metrics = losses(method)
for backend in (works, fails):
    torch._dynamo.reset()
    torch.compile = functools.partial(real, backend=backend)
    loss, same = losses(compile_method(method))
    torch.testing.assert_close(loss, expected)
    assert same.keys() == metrics.keys()
assert len(built) == 2, "advantages and loss must be one graph each"

weights = torch.tensor([0.5, 1.5, 1.0, 0.5, 1.5])
expected, _ = losses(method, weights)
torch._dynamo.reset()
built.clear()
torch.compile = functools.partial(real, backend=works)
loss, _ = losses(compile_method(method), weights)
torch.testing.assert_close(loss, expected)
assert len(built) == 2, "with weights too"
built.clear()

torch.compile = functools.partial(real, backend=works)
encoder, inputs = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)), torch.randn(16, 3)
expected = encoder(inputs)
compile_encoder(encoder)
encoder.eval()(inputs)
assert not built, "evaluation must stay as it was"
torch.testing.assert_close(encoder.train()(inputs), expected)
assert len(built) == 1
"""


def test_compiled_parts_do_the_same_and_fall_back_where_they_cannot_be_compiled() -> None:
    """In a process of its own, where nothing checks types: torch cannot trace through the checks. The backend stands in
    for the real one, which takes half a minute: it runs what was traced, or fails as a missing compiler does."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_methods_have_nothing_to_compile() -> None:
    method = Supervised()
    assert compile_method(method) is method


CPU = torch.device("cpu")
INPUTS = torch.arange(60.0).view(20, 3)


def test_what_fits_is_indexed_where_it_is() -> None:
    resident = Feed(INPUTS, CPU, 2)
    assert not resident.streams
    assert resident.inputs is INPUTS


def test_what_does_not_fit_comes_batch_after_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "fits", lambda *_: False)
    streaming = Feed(INPUTS, CPU, 5)
    order = torch.randperm(20).split(5)
    place = streaming.staged
    for rows, following in [(0, 1), (1, 2), (2, 0), (3, 1), (1, 1), (1, 3)]:  # twice it is not what was foretold
        streaming.stage(order[rows], order[following])
        assert torch.equal(streaming.staged, INPUTS[order[rows]])
        assert streaming.staged is place


def test_a_gpu_holds_what_leaves_it_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(speed, "free_bytes", lambda _: 2 * INPUTS.nbytes)
    assert speed.fits(INPUTS, gpu)
    assert not speed.fits(torch.cat([INPUTS, INPUTS[:1]]), gpu)


def test_what_is_on_the_device_stays_there_however_little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "free_bytes", lambda _: 0)
    device = torch.device("meta")
    resident = Feed(INPUTS.to(device), device, 2)
    assert not resident.streams
    assert not speed.fits(INPUTS, torch.device("cuda"))


def test_a_gpu_without_a_number_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    cuda, first, second = (torch.device(name) for name in ("cuda", "cuda:0", "cuda:1"))
    assert speed.is_same(second, cuda)
    assert not speed.is_same(first, cuda)
    assert speed.is_same(first, first)
    assert not speed.is_same(first, second)
    assert not speed.is_same(CPU, first)
    assert speed.is_same(torch.device("mps:0"), torch.device("mps"))


def test_training_does_not_depend_on_where_the_data_lies(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(dataset, "ric", "fast", epochs=2, batch_size=20, width=0.1, horizon=2)
    run(config, dataset, RunFolder(tmp_path / "resident"), CPU)
    monkeypatch.setattr(speed, "fits", lambda *_: False)
    run(config, dataset, RunFolder(tmp_path / "streaming"), CPU)
    resident, streaming = (load_file(tmp_path / n / "model.safetensors") for n in ("resident", "streaming"))
    assert all(torch.equal(resident[name], streaming[name]) for name in resident)
