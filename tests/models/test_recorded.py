"""Recorded inference gives the same answers as eager inference. Without a GPU, functions replace CUDA graphs, so that
everything but the recording itself is tested."""

import gc
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.methods import METHODS, Method, inference
from ricnet.methods.inference import Iterative, Pool, Refinement, Step, Steps, run, select, step_until_level
from ricnet.methods.ric import RIC
from ricnet.models import recorded
from ricnet.models.recorded import LADDER, Messages, Part, RecordedPool, RecordedStages, Recorder, Recordings, rung
from ricnet.nets.backbone import GPU_BATCH, Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CLASSES, STEPS = 4, 8
ITERATIVE = sorted(set(METHODS) - {"supervised"})


def system(name: str) -> tuple[Method[Any], nn.Module]:
    """An untrained network whose examples stop at different steps."""
    method = METHODS[name]() if name == "supervised" else METHODS[name](horizon=STEPS)
    if name == "anytime":
        method = replace(method, confidence_threshold=0.9)
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


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs on a CPU take the path of inputs on a GPU."""
    monkeypatch.setattr(recorded, "on_gpu", lambda inputs: True)


@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_recorded_answers_equal_those_of_the_method(name: str, halt: bool) -> None:
    """Again and again, in batches that fill a size, that do not, that grow, with any number of steps; an old answer
    stays what it was."""
    (method, model), recordings = system(name), Recordings()
    asked = [(torch.randn(n, 7), None) for n in (8, 5, 1, 200, 30, 8, 129)]
    asked += [(asked[4][0], steps) for steps in (3, 1, STEPS + 3, 2)]
    answers = [recordings.refine(method, model, batch, steps, halt) for batch, steps in asked]
    for (batch, steps), answer in zip(asked, answers, strict=True):
        assert_same(answer, method.refine(model, batch, steps, halt))
    assert len(recordings._pools) == (name != "supervised")


@pytest.mark.parametrize("name", ["ric", "act", "supervised"])
def test_a_batch_above_the_largest_pool_is_refined_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, model = system(name)
    monkeypatch.setattr(recorded, "LADDER", (1, 8, 64))
    inputs, recordings = torch.randn(150, 7), Recordings()
    for halt in (False, True):
        assert_same(recordings.refine(method, model, inputs, None, halt), method.refine(model, inputs, None, halt))
    answers = iter([True, True, False])
    ours = recordings.refine(method, model, inputs, None, True, lambda: next(answers, False))
    assert len(ours.log_beliefs) == (1 if name == "supervised" else 2)


def test_weights_may_change_in_place_or_move_and_inputs_may_change_their_dtype() -> None:
    (method, model), recordings, inputs = system("ric"), Recordings(), torch.randn(40, 7)
    recordings.refine(method, model, inputs.long(), halt=True)
    first = recordings.refine(method, model, inputs, halt=True)
    assert_same(first, method.refine(model, inputs, halt=True))
    with torch.no_grad():
        model.refiner.policy.weight.mul_(0.5)
    changed = recordings.refine(method, model, inputs, halt=True)
    assert not torch.allclose(first.final, changed.final)
    assert_same(changed, method.refine(model, inputs, halt=True))
    model.double()
    assert_same(recordings.refine(method, model, inputs.double(), halt=True), method.refine(model, inputs, halt=True))


@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize("made", [1, 3])
def test_a_trajectory_ends_when_time_is_up(made: int, halt: bool) -> None:
    method, model = system("act")
    model.refiner.value.bias.data.fill_(-2.0)
    inputs, answers = torch.randn(40, 7), iter([True] * made + [False])
    ours = Recordings().refine(method, model, inputs, None, halt, lambda: next(answers))
    assert_same(ours, method.refine(model, inputs, made, halt))


def test_the_deadline_is_not_checked_after_all_examples_halted() -> None:
    """Otherwise the trajectory could end before its last step with nothing left to do."""
    (method, model), asked = system("ric"), list[bool]()
    model.refiner.value.bias.data.fill_(-9.0)
    ours = Recordings().refine(method, model, torch.randn(40, 7), None, True, lambda: asked.append(True) or True)
    assert (ours.steps, len(asked)) == (STEPS, 2)


def system_with_exits(name: str, steps_per_exit: int = 1) -> tuple[Method[Any], Any]:
    """Four stages; its examples leave at different ones."""
    method = METHODS[name]() if name == "supervised" else METHODS[name](horizon=4 * steps_per_exit)
    if name in ("anytime", "supervised"):
        method = replace(method, **{"value_coef": 0.5} if name == "anytime" else {"confidence_threshold": 0.33})
    parts = [nn.Sequential(nn.Conv2d(channels, 6, 3, padding=1), nn.Tanh()) for channels in (1, 6, 6, 6)]
    encoder = nn.Sequential(*parts, nn.Flatten(), nn.Linear(6 * 16, 8))
    encoder.stages = lambda exits: parts  # type: ignore[assignment]
    model = method.build(Backbone(encoder, (1, 4, 4), "stage", steps_per_exit), CLASSES).eval()
    if name == "supervised":
        return method, model
    with torch.no_grad():
        model.refiner.policy.weight.mul_(300)
        model.refiner.value.weight.normal_(0, 5)
        model.refiner.value.bias.fill_(-2)
        for part in (*model.refiner.from_features, *model.refiner.critic[::2]):
            part.weight.normal_()
        if method.halts_by_value:
            values = method.refine(model, torch.randn(200, 1, 4, 4)).values
            model.refiner.critic[2].bias.sub_(values[1].quantile(0.5))
    return method, model


@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize(
    ("name", "per_exit"), [("ric", 1), ("anytime", 2), ("act", 1), ("pondernet", 1), ("supervised", 1)]
)
def test_stages_are_recorded_too(name: str, per_exit: int, halt: bool) -> None:
    (method, model), recordings = system_with_exits(name, per_exit), Recordings()
    asked = [(torch.randn(n, 1, 4, 4), None) for n in (8, 5, 1, 90, 30, 70)]
    asked += [(asked[3][0], steps) for steps in (3, 1, 9)]
    answers = [recordings.refine(method, model, batch, steps, halt) for batch, steps in asked]
    for (batch, steps), answer in zip(asked, answers, strict=True):
        eager = method.refine(model, batch, steps, halt)
        assert_same(answer, eager)
        assert answer.costs == eager.costs
    if name != "pondernet":
        assert len(answers[3].halt_step.unique()) > 1
    assert len(recordings._stages) == 1


def test_only_examples_that_continue_enter_the_next_recorded_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded to the next pool size; the padding is not counted again."""
    (method, model), entered, heard = system_with_exits("anytime"), list[int](), list[int]()
    run_stage = model.run_stage
    monkeypatch.setattr(inference, "CPU_STAGE_BATCH", 1000)
    monkeypatch.setattr(model, "run_stage", lambda stage, seen: (entered.append(len(seen)), run_stage(stage, seen))[1])
    inputs, recordings = torch.randn(90, 1, 4, 4), Recordings()
    path = recordings.refine(method, model, inputs, halt=True)
    entered.clear()
    [stages] = recordings._stages.values()
    read = stages.messages.read
    monkeypatch.setattr(stages.messages, "read", lambda time: (heard.append(left := read(time)), left)[1])
    recordings.refine(method, model, inputs, halt=True)
    active = [int((path.halt_step > stage).sum()) for stage in range(4)]
    assert active[0] == 90 > 65 > active[1] > active[3] > 0
    assert heard == active[1:]
    assert entered == [rung(rows, recorded.STAGE_LADDER) for rows in active]


def test_recorded_stages_end_when_time_is_up() -> None:
    (method, model), answers = system_with_exits("anytime"), iter([True, True, False])
    model.refiner.critic[2].bias.data.fill_(9.0)
    inputs = torch.randn(9, 1, 4, 4)
    ours = Recordings().refine(method, model, inputs, None, True, lambda: next(answers))
    assert_same(ours, method.refine(model, inputs, 2, halt=True))


def test_selected_rows_keep_their_memory_format() -> None:
    images, rows = torch.randn(5, 3, 4, 4).contiguous(memory_format=torch.channels_last), torch.tensor([3, 1])
    assert torch.equal(select(images, rows), images[[3, 1]])
    assert select(images, rows).is_contiguous(memory_format=torch.channels_last)


class Counting(Iterative):
    """Each example halts at the step in its context, unless the trajectory ends before; later it would continue."""

    horizon = STEPS
    build = loss = None  # type: ignore[assignment]

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + torch.inf

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        step = step_until_level(model, pool._replace(memory=(pool.memory[0], pool.context[:, 0])), _count)
        return step._replace(active=step.pool.memory[0] != pool.context[:, 0])

    def trajectory(self, steps: Steps) -> Trajectory:
        return Trajectory(steps.output.log_softmax(-1), first_stop(steps.active))


def _count(progress: Tensor, heads: Heads) -> Tensor:
    return progress + 1


class Watched(RecordedPool):
    """Count replays."""

    def replayed(self) -> Counter[tuple[str, int]]:
        counts: Counter[tuple[str, int]] = Counter()

        def counted(key: tuple[object, ...], part: Part) -> Part:
            def replay() -> None:
                counts[key[:2]] += 1
                part()

            return replay

        self.replays = {key: counted(key, part) for key, part in self.replays.items()}
        return counts


def contexts(stops: list[int]) -> Float[Tensor, "batch gates"]:
    context = torch.randn(len(stops), 24)
    context[:, 0] = torch.tensor(stops)
    return context


def counting_model() -> RecurrentClassifier:
    return RecurrentClassifier(Backbone(nn.Identity(), (8,)), 8, CLASSES)


def eager(model: RecurrentClassifier, context: Tensor, steps: int, halt: bool) -> Trajectory:
    """The plain loop, from contexts on."""
    method = Counting()
    pool = method.gather(model, context)
    refinement, _ = run(Refinement.begin(method, model, pool, Steps.blank(steps, pool)), steps, halt)
    return method.conclude(model, refinement.made, halt)


LATE = {"first 256": 1, "next 256": 1, "shrink 32": 1, "next 32": 2, "shrink 8": 1, "next 8": 2, "conclude 256": 1}
SOON = {"first 8": 1, "next 8": 2, "shrink 1": 1, "next 1": 1, "conclude 8": 1}


@torch.no_grad()
@pytest.mark.parametrize(
    ("stops", "size", "halt", "expected"),
    [
        ([1] * 100 + [3] * 25 + [5] * 5, 256, True, LATE),
        ([2, 3, 1], 8, True, SOON),
        ([2, 3, 1], 8, False, {"first 8": 1, "next 8": STEPS - 1, "conclude 8": 1}),
    ],
)
def test_a_pool_shrinks_and_ends_one_step_late(
    stops: list[int], size: int, halt: bool, expected: dict[str, int]
) -> None:
    """Also after a batch in which no example halted. Without `halt` it does not shrink."""
    context, model = contexts(stops)[torch.randperm(len(stops))], counting_model()
    pool = Watched(Counting(), model, context, size, STEPS)
    pool._prepare(size, STEPS, halt)
    counts = pool.replayed()
    for _ in range(2):
        assert_same(pool.refine(context, STEPS, halt), eager(model, context, STEPS, halt))
        assert {f"{part} {rows}": count for (part, rows), count in counts.items()} == expected
        pool.refine(contexts([99] * size), STEPS, halt)
        counts.clear()


@torch.no_grad()
def test_the_host_reads_a_message_only_while_the_next_step_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    context, model, log = contexts([99] * 9), counting_model(), []
    pool = RecordedPool(Counting(), model, context, 32, STEPS)
    pool._prepare(32, 4, True)
    send, read, step = pool.messages.send, pool.messages.read, pool.replays["next", 32]
    monkeypatch.setattr(pool.messages, "send", lambda time, number: (log.append(f"send {time}"), send(time, number)))
    monkeypatch.setattr(pool.messages, "read", lambda time: (log.append(f"read {time}"), read(time))[1])
    pool.replays["next", 32] = lambda: (log.append("step"), step())[1]
    pool.refine(context, 4, True)
    assert log == ["send 0", "step", "send 1", "read 0", "step", "send 2", "read 1", "step"]


@given(st.lists(st.lists(st.integers(1, STEPS + 2), min_size=1, max_size=60), min_size=1, max_size=3), st.data())
@settings(max_examples=25)
@torch.no_grad()
def test_one_pool_serves_batches_of_any_size(batches: list[list[int]], data: st.DataObject) -> None:
    """Tensors still hold values of earlier batches."""
    model = counting_model()
    pool = RecordedPool(Counting(), model, contexts([1]), 128, STEPS)
    for stops in batches:
        steps, halt = data.draw(st.integers(1, STEPS)), data.draw(st.booleans())
        context = contexts(stops)
        ours = pool.refine(context, steps, halt)
        assert torch.equal(ours.halt_step, torch.tensor(stops).clamp(max=steps))
        assert_same(ours, eager(model, context, steps, halt))


@torch.no_grad()
@pytest.mark.parametrize("name", ITERATIVE)
def test_recorded_steps_do_not_synchronise(name: str) -> None:
    """On the meta device reading a number is an error, as it is while a graph is recorded."""
    method, model = system(name)
    pool = RecordedPool(method, model.to("meta"), torch.empty(40, 48, device="meta"), 256, STEPS)
    for halt in (False, True):
        pool._prepare(256, STEPS, halt)
    assert len(pool.replays) == 4 + 2 * LADDER.index(256)
    for part in pool.replays.values():
        part()


@torch.no_grad()
@pytest.mark.parametrize("name", ITERATIVE)
def test_recorded_stages_do_not_synchronise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, model = system_with_exits(name)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # such a device has none
    stages = RecordedStages(method, model.to("meta"), torch.empty(40, 1, 4, 4, device="meta"), 64)
    stages._start(48)
    for time in range(4):
        stages._advance(time, 48 >> time)
    stages._conclude(48, 4, True)


@given(st.integers(1, LADDER[-1]))
def test_rung_is_the_smallest_pool_size_with_room(examples: int) -> None:
    above = LADDER.index(rung(examples))
    assert LADDER[above] >= examples
    assert above == 0 or LADDER[above - 1] < examples
    assert GPU_BATCH in LADDER  # every batch that is encoded at once
    assert sorted(set(LADDER)) == list(LADDER)


def test_on_a_cpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name in ("RecordedNetwork", "RecordedPool"):
        monkeypatch.setattr(recorded, name, lambda *_: pytest.fail("recorded"))
    (method, model), inputs = system("ric"), torch.randn(5, 7)
    for halt in (False, True):
        assert_same(Recordings().refine(method, model, inputs, halt=halt), method.refine(model, inputs, halt=halt))


@pytest.mark.parametrize(("name", "setting"), [("ric", {"feedback": "sample"}), ("pondernet", {"halting": "sample"})])
def test_methods_that_sample_are_not_recorded(name: str, setting: dict[str, str]) -> None:
    method, model = system(name)
    method, inputs, recordings = replace(method, **setting), torch.randn(20, 7), Recordings()
    torch.manual_seed(1)
    ours = recordings.refine(method, model, inputs, halt=True)
    torch.manual_seed(1)
    assert_same(ours, method.refine(model, inputs, halt=True))
    assert not recordings._pools


def test_after_a_failed_recording_the_method_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(RecordedPool, "_prepare", fail)
    (method, model), recordings, inputs = system("ric"), Recordings(), torch.randn(5, 7)
    with pytest.warns(UserWarning, match="out of memory"):
        first = recordings.refine(method, model, inputs, halt=True)
    assert_same(first, method.refine(model, inputs, halt=True))
    assert_same(recordings.refine(method, model, inputs, halt=True), first)
    assert (recordings._pools, recordings._networks) == ({}, {})


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_graphs_answer_as_eager_inference_does(name: str, halt: bool) -> None:
    method, model = system(name)
    model.cuda()
    recordings = Recordings()
    for sizes, dtype in (((8, 5, 1, 30, 8), torch.float32), ((2000, 700, 20_000, 3), torch.float64)):
        model.to(dtype)  # moves the weights; of so many examples one may stop elsewhere in single precision
        batches = [torch.randn(n, 7, device="cuda", dtype=dtype) for n in sizes]
        answers = [recordings.refine(method, model, batch, None, halt) for batch in batches]
        for batch, answer in zip(batches, answers, strict=True):
            assert_same(answer, method.refine(model, batch, None, halt))
    assert not recordings._refused


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize("name", ["ric", "anytime", "act"])
def test_graphs_of_stages_answer_as_eager_inference_does(name: str, halt: bool) -> None:
    method, model = system_with_exits(name)
    model.double().cuda()
    recordings = Recordings()
    batches = [torch.randn(n, 1, 4, 4, device="cuda", dtype=torch.float64) for n in (8, 5, 1, 700, 3000, 32, 700)]
    answers = [recordings.refine(method, model, batch, None, halt) for batch in batches]
    for batch, answer in zip(batches, answers, strict=True):
        assert_same(answer, method.refine(model, batch, None, halt))
    assert not recordings._refused


@pytest.mark.gpu
@GPU
def test_graphs_respect_the_deadline() -> None:
    method, model = system("act")
    model.refiner.value.bias.data.fill_(-2.0)
    model.cuda()
    inputs, recordings = torch.randn(40, 7, device="cuda"), Recordings()
    answers = iter([True, True, True, False])
    ours = recordings.refine(method, model, inputs, None, True, lambda: next(answers))
    assert_same(ours, method.refine(model, inputs, 3, halt=True))


@pytest.mark.gpu
@GPU
def test_a_failed_recording_warns_and_answers_eagerly() -> None:
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


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]


class Tally:
    """Two recordings that change the same number."""

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
    counter = Tally(device)
    for part in (counter.add, counter.double, counter.double, counter.add):
        part()
    assert counter.number.item() == 5


def test_no_garbage_is_collected_during_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph", lambda _: nullcontext())
    monkeypatch.setattr(recorded, "_renew_generator", lambda _: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [None])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for error in (None, ValueError):
        with (
            nullcontext() if error is None else pytest.raises(error),
            recorded.capture(Mock(spec=torch.cuda.CUDAGraph)),
        ):
            assert not gc.isenabled()
            if error is not None:
                raise error
        assert gc.isenabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_that_becomes_garbage_does_not_end_the_recording_of_another() -> None:
    old = [Tally("cuda") for _ in range(recorded.WARM_UP + 1)]
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
def test_a_message_holds_the_number_at_the_time_of_sending(device: str) -> None:
    counter, messages = Tally(device), Messages(3, torch.device(device))
    for step in range(3):
        counter.add()
        messages.send(step, counter.number)
    counter.double()
    assert [messages.read(step) for step in (1, 0, 2)] == [2, 1, 3]
    messages.send(0, counter.number)
    assert messages.read(0) == 6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_stream_and_generator_are_restored_after_a_failed_recording() -> None:
    number, before = torch.ones((), device="cuda"), torch.cuda.current_stream()
    torch.manual_seed(0)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(0)
    with pytest.raises(RuntimeError):
        Recorder(number.device)(lambda: print(number.item()))  # the host waits for a number
    assert torch.cuda.current_stream() == before
    assert (number + 1).item() == 2
    assert torch.equal(torch.rand(3, device="cuda"), expected)
