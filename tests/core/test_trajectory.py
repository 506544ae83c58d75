from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refusals import refusal
from ricnet.core.trajectory import Trajectory, doubt, halting_step


def trajectory(values: torch.Tensor, classes: int = 3) -> Trajectory:
    beliefs = torch.randn(*values.shape, classes).log_softmax(-1)
    return Trajectory(beliefs, halting_step(values), values)


def test_halting_by_hand() -> None:
    """Column 0: V(s_1) < 0 is never asked, V(s_2) < 0 stops after one step. Column 3 touches 0 and goes on."""
    values = torch.tensor(
        [
            [-1.0, +1.0, +1.0, +1.0],
            [-1.0, +1.0, +1.0, +0.0],
            [+1.0, -1.0, +1.0, +1.0],
            [+1.0, +1.0, +1.0, -1.0],
        ]
    )
    assert halting_step(values).tolist() == [1, 2, 4, 3]


def test_halting_threshold() -> None:
    values = torch.tensor([[5.0], [0.5], [0.2], [0.1]])
    assert [halting_step(values, v).item() for v in (0.0, 0.15, 0.3, 1.0)] == [4, 3, 2, 1]


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1000))
def test_halting_agrees_with_a_plain_loop(steps: int, batch: int, seed: int) -> None:
    values = torch.randn(steps, batch, generator=torch.Generator().manual_seed(seed)) + 0.5
    for row, halt in enumerate(halting_step(values).tolist()):
        expected = next((n for n in range(1, steps) if values[n, row] < 0), steps)
        assert halt == expected


def test_final_and_cost_and_steps_counted_from_the_uniform_start(monkeypatch: pytest.MonkeyPatch) -> None:
    path = trajectory(torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]]))
    assert (path.halt_step.tolist(), path.cell_evaluations.tolist()) == ([1, 3], [2, 3])
    torch.testing.assert_close(path.final, torch.stack([path.log_beliefs[0, 0], path.log_beliefs[2, 1]]))
    torch.testing.assert_close(path.at(0).exp(), torch.full((2, 3), 1 / 3))
    torch.testing.assert_close(path.at(2), path.log_beliefs[1])
    torch.testing.assert_close(path.frozen().at(3)[0], path.final[0])  # who has halted keeps its belief only there
    assert not torch.equal(path.at(3)[0], path.final[0])
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse some of them before
    torch.testing.assert_close(path.at(np.int64(1)), path.log_beliefs[0])
    for outside in (-1, 4, 1.0, True, "1"):
        with refusal("step", outside):
            path.at(outside)


def test_frozen_holds_belief_and_value_from_the_halt_on() -> None:
    path = trajectory(torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.5, 1.0], [0.7, -1.0]]))
    frozen = path.frozen()
    torch.testing.assert_close(frozen.log_beliefs[:, 0], path.log_beliefs[:1, 0].expand(4, -1))
    torch.testing.assert_close(frozen.log_beliefs[:3, 1], path.log_beliefs[:3, 1])
    torch.testing.assert_close(frozen.log_beliefs[3, 1], path.log_beliefs[2, 1])
    torch.testing.assert_close(frozen.final, path.final)
    assert frozen.values[:, 0].tolist() == pytest.approx([1, -1, -1, -1])
    assert torch.equal(halting_step(frozen.values), path.halt_step)


def test_some_of_a_batch_and_a_change_to_all_of_it() -> None:
    path = replace(trajectory(torch.randn(3, 5)), costs=(0.2, 0.5, 1.0))
    some = path.take(slice(1, 4)).map(torch.neg)
    assert torch.equal(some.log_beliefs, -path.log_beliefs[:, 1:4])
    assert torch.equal(some.halt_step, -path.halt_step[1:4])
    assert torch.equal(some.values, -path.values[:, 1:4])  # type: ignore[arg-type,index,operator]
    assert (some.halt_probability, some.costs) == (None, path.costs)


def test_the_first_steps_have_their_own_costs_and_halts() -> None:
    path = replace(trajectory(torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]])), costs=(0.2, 0.5, 1.0))
    first = path.until(2)
    assert (first.steps, first.halt_step.tolist(), first.costs) == (2, [1, 2], (0.2, 0.5))
    assert first.cost is not None
    assert first.cost.tolist() == pytest.approx([0.2, 0.5])
    each = (1.0, 2.0, 3.0)  # temperatures of the steps
    torch.testing.assert_close(first.tempered(each).log_beliefs, path.tempered(each).log_beliefs[:2])


def test_doubt_is_all_but_the_surest_class() -> None:
    beliefs = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.7, 0.1], [1.0, 1e-9, 2e-9], [1.0, 1e-14, 0.0], [torch.nan] * 3])
    found = doubt(beliefs.log())
    assert found[:4].tolist() == pytest.approx([0.5, 0.3, 3e-9, 0.0], rel=1e-5, abs=0)
    assert found[4].isnan()


def test_halting_by_the_step_just_made_costs_no_look_ahead() -> None:
    """ACT and PonderNet decide at step N itself: without a value, n steps cost n evaluations."""
    path = Trajectory(torch.zeros(4, 2, 3), torch.tensor([1, 3]), halt_probability=torch.rand(4, 2))
    assert path.cell_evaluations.tolist() == [1, 3]
    frozen = path.frozen()
    assert frozen.halt_probability[:, 0].tolist() == [path.halt_probability[0, 0]] * 4
