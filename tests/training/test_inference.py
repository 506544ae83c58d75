"""Recorded inference answers as the eager one does. Without a GPU, functions stand in for CUDA graphs: what is tested
then is all but the recording itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.methods import METHODS, Method
from ricnet.methods.ric import RIC
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training import inference
from ricnet.training.inference import RecordedSteps, RecordedWhole, Recordings

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CLASSES, STEPS = 4, 8


class Replayed:
    """In place of a graph: runs its part again."""

    def __init__(self, part: Callable[[], None]) -> None:
        self.part, self.count = part, 0

    def replay(self) -> None:
        self.count += 1
        self.part()


@pytest.fixture
def _no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(*parts: Callable[[], None]) -> list[Replayed]:
        for part in parts:
            part()
        return [Replayed(part) for part in parts]

    monkeypatch.setattr(inference, "_graphs", run_once)


def system(name: str) -> tuple[Method[Any], nn.Module]:
    """An untrained network whose examples stop at different steps."""
    method = METHODS[name]() if name == "supervised" else METHODS[name](horizon=STEPS)
    backbone = Backbone(nn.Sequential(nn.Linear(7, 16), nn.Tanh()), (7,))
    model = method.build(backbone, CLASSES).eval()
    if isinstance(model, RecurrentClassifier):
        with torch.no_grad():
            model.refiner.policy.weight.mul_(300)
            model.refiner.value.weight.mul_(3)
            model.refiner.value.bias.fill_(0.0 if name == "ric" else -1.0)
    return method, model


def assert_same(ours: Trajectory, theirs: Trajectory) -> None:
    assert torch.equal(ours.halt_step, theirs.halt_step)
    for part in ("log_beliefs", "values", "halt_probability"):
        torch.testing.assert_close(getattr(ours, part), getattr(theirs, part), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def check(replay: Callable[[Tensor, None], Trajectory], eager: Callable[[Tensor], Trajectory], device: str) -> None:
    """Again and again, with batches that fill the size and such that do not; an old answer stays what it was."""
    batches = [torch.randn(n, 7, device=device) for n in (8, 5, 1, 8)]
    answers = [replay(batch, None) for batch in batches]
    for batch, answer in zip(batches, answers, strict=True):
        assert_same(answer, eager(batch))


@pytest.mark.usefixtures("_no_graphs")
@pytest.mark.parametrize("name", ["ric", "act", "pondernet", "anytime"])
def test_recorded_steps_answer_as_halted_inference_does(name: str) -> None:
    method, model = system(name)
    if name == "anytime":
        method = replace(method, confidence_threshold=0.9)
    with torch.no_grad():
        steps = RecordedSteps(method, model, torch.randn(8, 7), STEPS)
    check(steps, lambda batch: method.refine(model, batch, halt=True), "cpu")


@pytest.mark.usefixtures("_no_graphs")
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_recorded_whole_answers_as_full_inference_does(name: str) -> None:
    method, model = system(name)
    with torch.no_grad():
        whole = RecordedWhole(method, model, torch.randn(8, 7), 3)
    check(whole, lambda batch: method.refine(model, batch, 3), "cpu")


@pytest.mark.usefixtures("_no_graphs")
@torch.no_grad()
def test_steps_are_replayed_only_until_all_have_halted() -> None:
    method, model = system("ric")
    steps = RecordedSteps(method, model, torch.randn(8, 7), STEPS)
    counts = set()
    for _ in range(20):
        steps.next.count = 0
        path = steps(torch.randn(1, 7), None)
        assert steps.next.count + 1 == path.cell_evaluations.item()
        counts.add(steps.next.count)
    assert len(counts) > 1


@pytest.mark.usefixtures("_no_graphs")
@torch.no_grad()
def test_recorded_steps_end_when_time_does() -> None:
    method, model = system("ric")
    model.refiner.value.bias.fill_(9.0)  # nobody wants to stop
    steps, inputs = RecordedSteps(method, model, torch.randn(8, 7), STEPS), torch.randn(5, 7)
    answers: Iterator[bool] = iter([True, True, False])
    assert_same(steps(inputs, lambda: next(answers)), method.refine(model, inputs, 3, halt=True))


def test_on_a_cpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_record", lambda *_: pytest.fail("recorded on a CPU"))
    method, model = system("ric")
    inputs = torch.randn(5, 7)
    for halt in (False, True):
        assert_same(Recordings().refine(method, model, inputs, halt=halt), method.refine(model, inputs, halt=halt))


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_graphs_answer_as_eager_inference_does(name: str, halt: bool) -> None:
    method, model = system(name)
    model.cuda()
    recordings = Recordings()
    check(
        lambda batch, time_left: recordings.refine(method, model, batch, None, halt, time_left),
        lambda batch: method.refine(model, batch, None, halt),
        "cuda",
    )
    assert len(recordings._kept) == 2  # for batches of 8 and of 1
    assert all(replay is not None for replay in recordings._kept.values())
    model.double()  # moves the weights
    inputs = torch.randn(3, 7, device="cuda").double()
    assert_same(recordings.refine(method, model, inputs, 2, halt), method.refine(model, inputs, 2, halt))


@pytest.mark.gpu
@GPU
def test_what_cannot_be_recorded_is_done_eagerly_with_a_warning() -> None:
    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (1.0 if x.sum().item() > 1e9 else 2.0)  # the host waits for a number

    method = RIC(horizon=3)
    model = method.build(Backbone(Waiting(), (7,)), CLASSES).eval().cuda()
    inputs, recordings = torch.randn(3, 7, device="cuda"), Recordings()
    with pytest.warns(UserWarning, match="cannot be recorded"):
        first = recordings.refine(method, model, inputs, halt=True)
    assert_same(first, method.refine(model, inputs, halt=True))
    assert_same(recordings.refine(method, model, inputs, halt=True), first)
