from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.methods import METHODS, RIC, Anytime
from ricnet.methods.inference import Iterative, Pool, Refinement, Step, Steps, norms, run, step_until_level, unroll
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier, Refiner

CLASSES, BATCH, STEPS = 4, 30, 5


class Counting(Iterative):
    """Each example stops at its own step, if there is no end before."""

    horizon = STEPS
    build = loss = None  # type: ignore[assignment]
    stops: Int64[Tensor, "batch"]

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + self.stops

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        assert first == (pool.memory[0] == 0).all()
        return step_until_level(model, pool, _count)

    def trajectory(self, steps: Steps) -> Trajectory:
        return Trajectory(steps.output.log_softmax(-1), first_stop(steps.active))


def _count(progress: Tensor, heads: Heads) -> Tensor:
    return progress + 1


def method(stops: list[int]) -> Counting:
    made = Counting()
    object.__setattr__(made, "stops", torch.tensor(stops))
    return made


def network() -> RecurrentClassifier:
    model = RecurrentClassifier(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), 8, CLASSES).double()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(100)
    return model


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many examples each cell evaluation was asked for."""
    asked: list[int] = []
    think = Refiner.think

    def counted(self: nn.Module, context: Tensor, thought: Tensor, belief: Tensor) -> Tensor:
        asked.append(len(thought))
        return think(self, context, thought, belief)

    monkeypatch.setattr(Refiner, "think", counted)
    return asked


def test_without_halting_all_steps_are_made_and_halting_steps_reported(rows: list[int]) -> None:
    model, inputs = network(), torch.randn(4, 7).double()
    path = method([1, 2, 3, 99]).refine(model, inputs)
    assert rows == [4] * STEPS
    assert path.halt_step.tolist() == [1, 2, 3, STEPS]
    torch.testing.assert_close(path.log_beliefs, unroll(model, inputs, STEPS).logits.log_softmax(-1))


def test_halted_examples_leave_the_pool_and_keep_their_last_belief(rows: list[int]) -> None:
    model, inputs = network(), torch.randn(6, 7).double()
    halted = method([3, 1, 99, 3, 2, 1]).refine(model, inputs, halt=True)
    assert rows == [6, 4, 3, 1, 1]
    assert halted.halt_step.tolist() == [3, 1, 5, 3, 2, 1]
    logits = unroll(model, inputs, STEPS).logits
    for row, stop in enumerate([3, 1, 5, 3, 2, 1]):
        for time in range(STEPS):
            expected = logits[min(time, stop - 1), row].log_softmax(-1)
            torch.testing.assert_close(halted.log_beliefs[time, row], expected)


def test_no_step_is_made_after_all_have_halted(rows: list[int]) -> None:
    path = method([2, 1, 2]).refine(network(), torch.randn(3, 7).double(), halt=True)
    assert rows == [3, 2]
    assert path.steps == STEPS
    assert torch.equal(path.at(STEPS), path.final)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"supervised"}))
def test_the_weights_of_the_heads_are_joined_once_for_all_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, joined, join = METHODS[name](), [], Refiner.head_weights
    model = system.build(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), CLASSES)
    monkeypatch.setattr(Refiner, "head_weights", lambda self: joined.append(self) or join(self))
    for halt in (False, True):
        system.refine(model, torch.randn(6, 7), halt=halt)
    assert len(joined) == 2


@given(st.lists(st.integers(1, STEPS + 2), min_size=1, max_size=30), st.integers(1, STEPS))
def test_halted_is_the_frozen_version_of_the_full(stops: list[int], max_steps: int) -> None:
    model, inputs, counting = network(), torch.randn(len(stops), 7).double(), method(stops)
    full, halted = (counting.refine(model, inputs, max_steps, halt) for halt in (False, True))
    assert torch.equal(halted.halt_step, torch.tensor(stops).clamp(max=max_steps))
    assert torch.equal(halted.halt_step, full.halt_step)
    torch.testing.assert_close(halted.log_beliefs, full.frozen().log_beliefs)


class Patient(RIC):
    """Stops where the value is far from 0 on either side."""

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        return step.value.abs() < 0.3


class PatientAnytime(Anytime):
    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        return step.value.abs() < 0.3


@pytest.mark.parametrize("own", [Patient(horizon=STEPS), PatientAnytime(horizon=STEPS, value_coef=0.5)])
def test_a_rule_of_ones_own_is_written_once(own: RIC | Anytime) -> None:
    torch.manual_seed(0)
    model, inputs = network().eval(), torch.randn(BATCH, 7).double()
    full, halted = (own.refine(model, inputs, halt=halt) for halt in (False, True))
    far = torch.cat([full.values[1:].abs() >= 0.3, torch.ones(1, BATCH, dtype=torch.bool)])  # type: ignore[index]
    assert full.halt_step.tolist() == (far.int().argmax(0) + 1).tolist()
    assert full.halt_step.unique().numel() > 1
    assert torch.equal(halted.halt_step, full.halt_step)
    torch.testing.assert_close(halted.final, full.final)


@pytest.mark.parametrize("halt", [False, True])
def test_out_of_time_the_trajectory_ends_there_for_all(halt: bool, rows: list[int]) -> None:
    """The first step is made whatever the clock says; here two more are allowed."""
    model, inputs, counting = network(), torch.randn(4, 7).double(), method([1, 2, 99, 99])
    full = counting.refine(model, inputs, max_steps=3)
    rows.clear()
    answers = iter([False, True, True, False])
    cut = counting.refine(model, inputs, halt=halt, time_left=lambda: next(answers))
    assert rows == ([4, 3, 2] if halt else [4, 4, 4])
    assert cut.halt_step.tolist() == [1, 2, 3, 3]
    torch.testing.assert_close(cut.log_beliefs, full.frozen().log_beliefs if halt else full.log_beliefs)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_heeds_the_clock(name: str) -> None:
    method = METHODS[name]()
    backbone = Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,))
    model, inputs = method.build(backbone, CLASSES).double(), torch.randn(9, 7).double()
    with torch.no_grad():
        if isinstance(model, RecurrentClassifier):
            model.refiner.value.bias.fill_(9 if name == "ric" else -9)  # nobody wants to stop
        cut, full = method.refine(model, inputs, halt=True, time_left=lambda: False), method.refine(model, inputs)
    assert cut.steps == 1
    torch.testing.assert_close(cut.final, full.at(1))
    assert torch.equal(cut.cell_evaluations, torch.ones(9, dtype=torch.int64))


@pytest.mark.parametrize("name", METHODS)
def test_a_nan_example_does_not_affect_others(name: str) -> None:
    changes = {"value_coef": 0.5} if name == "anytime" else {}
    made = METHODS[name](**changes)
    model = made.build(Backbone(nn.Linear(7, 8), (7,)), CLASSES)
    inputs = torch.randn(BATCH, 7)
    inputs[3] = torch.nan
    answers = made.refine(model, inputs, halt=True).final
    assert answers.isnan().any(1).nonzero().tolist() == [[3]]


@pytest.mark.parametrize("made", [RIC(horizon=4), Anytime(horizon=4, value_coef=0.5)])
def test_the_first_value_is_not_used_without_exits(made: RIC | Anytime) -> None:
    """It is asked before a step that is always made."""
    model, inputs = network(), torch.randn(BATCH, 7).double()
    values = made.refine(model, inputs).values
    assert values is not None
    threshold = values[0].median().item()
    assert ((values[0] < threshold) & (values[1] >= threshold)).any()
    made = replace(made, halt_threshold=threshold)
    whole, halted = made.refine(model, inputs), made.refine(model, inputs, halt=True)
    assert torch.equal(halted.halt_step, whole.halt_step)
    torch.testing.assert_close(halted.final, whole.final)


def test_first_stop_by_hand() -> None:
    active = torch.tensor([[True, False, True, True], [False, True, True, True], [True, True, True, False]])
    assert first_stop(active).tolist() == [2, 1, 3, 3]


class Recording:
    """A refinement that writes down what `run` asks of it; `sizes` are the examples that continue after each step."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.asked, self.size = sizes, list[str](), 9

    def advance(self, time: int) -> "Recording":
        self.asked.append(f"advance {time}")
        return self

    def shrink(self, time: int) -> "Recording":
        self.asked.append(f"shrink {time}")
        self.size = self.sizes[time]
        return self


@pytest.mark.parametrize(
    ("halt", "clock", "asked", "made"),
    [
        (False, None, ["advance 0", "advance 1", "advance 2"], 3),
        (True, None, ["advance 0", "shrink 0", "advance 1", "shrink 1"], 3),  # none continues: the rest is frozen
        (True, [False, True], ["advance 0", "shrink 0", "advance 1", "shrink 1"], 3),  # the first step is always made
        (True, [True, False], ["advance 0", "shrink 0"], 1),
        (False, [True, True, False], ["advance 0", "advance 1"], 2),
    ],
)
def test_the_loop_steps_halts_and_shrinks(halt: bool, clock: list[bool] | None, asked: list[str], made: int) -> None:
    answers = iter(clock or [])
    refinement, steps = run(Recording([4, 0]), 3, halt, None if clock is None else lambda: next(answers))
    assert (refinement.asked, steps) == (asked, made)
    assert list(answers) == []


def test_the_last_step_is_not_followed_by_a_shrink() -> None:
    refinement, _ = run(Recording([]), 1, halt=True)
    assert refinement.asked == ["advance 0"]


def test_joined_refinements_write_to_their_own_columns() -> None:
    """As the server's stages do: two groups, one a step behind the other, in one record."""
    model, inputs, counting = network(), torch.randn(5, 7).double(), method([1, 3, 2, 3, 1])
    expected = counting.refine(model, inputs, halt=True)
    with torch.no_grad():
        whole = counting.start(model, inputs)
        made = Steps.blank(STEPS, whole)
        refinements = [
            Refinement.begin(counting, model, whole.take(rows), made, rows)
            for rows in (torch.tensor([0, 3, 1]), torch.tensor([4, 2]))
        ]
        first, second = (refinement.advance(0).shrink(0) for refinement in refinements)
        refinement, _ = run(_Later(first.join(second)), STEPS - 1, halt=True)
    path = counting.conclude(model, refinement.refinement.made, halt=True)
    assert torch.equal(path.halt_step, expected.halt_step)
    torch.testing.assert_close(path.final, expected.final)


class _Later:
    """A refinement that has made one step already."""

    def __init__(self, refinement: Refinement) -> None:
        self.refinement, self.size = refinement, refinement.size

    def advance(self, time: int) -> "_Later":
        return _Later(self.refinement.advance(time + 1))

    def shrink(self, time: int) -> "_Later":
        return _Later(self.refinement.shrink(time + 1))


def test_softmax_is_fed_back_with_gradient() -> None:
    model, inputs = network(), torch.randn(BATCH, 7).double()
    context = model.refiner.read(model.backbone(inputs))
    thought, belief = torch.zeros(BATCH, 8).double(), torch.full((BATCH, CLASSES), 0.25).double()
    expected = []
    for _ in range(STEPS):
        thought = model.refiner.think(context, thought, belief)
        heads = model.refiner.heads(thought)
        belief = heads.logits.exp() / heads.logits.exp().sum(-1, keepdim=True)
        expected.append(heads)
    ours = unroll(model, inputs, STEPS)
    for t, heads in enumerate(expected):
        torch.testing.assert_close(ours.logits[t], heads.logits)
        torch.testing.assert_close(ours.value[t], heads.value)
    parameter = model.refiner.from_belief.weight  # it sees every belief, the constant first one included
    last = (ours.logits[-1], expected[-1].logits)
    torch.testing.assert_close(*(torch.autograd.grad(logits.square().sum(), parameter)[0] for logits in last))


def test_a_step_towards_a_level_is_one_of_the_unrolled() -> None:
    """The same logits; an example goes on while its progress, here one a step, is below its level."""
    model, inputs = network(), torch.randn(3, 7).double()
    context, level = model.context(inputs), torch.tensor([0.5, 2.0, 2.5]).double()
    pool = Pool(context, *model.initial_state(context), (torch.zeros(3).double(), level))
    expected = unroll(model, inputs, 3)
    for t, active in enumerate(([False, True, True], [False, False, True], [False, False, False])):
        pool, logits, value, more = step_until_level(model, pool, _count)
        torch.testing.assert_close(logits, expected.logits[t])
        torch.testing.assert_close(value, expected.value[t])
        assert more.tolist() == active
        assert pool.memory[0].tolist() == [t + 1] * 3
        assert pool.memory[1] is level


def test_norms_by_hand() -> None:
    model = network()
    measured = norms(model, torch.tensor([[3.0, 4.0, 0, 0], [0, 0, 0, 1]]).requires_grad_())
    assert measured["logit_norm"].item() == 3
    frobenius = model.refiner.policy.weight.square().sum().sqrt()
    assert measured["classifier_norm"].item() == pytest.approx(frobenius.item())
    assert not any(metric.requires_grad for metric in measured.values())
