"""The gated recurrent unit, for one step and for a sequence of known inputs; gates in the order reset, update, new, as
in torch.nn.GRUCell."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def cell(
    inputs: Float[Tensor, "*batch gates"], hidden: Float[Tensor, "*batch gates"], state: Float[Tensor, "*batch size"]
) -> Float[Tensor, "*batch size"]:
    """The next state, from the contributions of inputs and state to the gates."""
    if state.is_cuda and state.dtype == torch.float32:  # torch's own fused kernel, one launch instead of eight
        flat = (inputs.flatten(0, -2), hidden.flatten(0, -2), state.flatten(0, -2))
        fused: Tensor = torch.ops.aten._thnn_fused_gru_cell(*flat)[0]
        return fused.view_as(state)
    return _step(inputs, hidden, state)[0]


def sequence(
    inputs: Float[Tensor, "steps batch gates"], weight: Float[Tensor, "gates size"], bias: Float[Tensor, "gates"]
) -> Float[Tensor, "steps batch size"]:
    """All states, starting from zero. The gradient of the weight is one product over all steps, not one per step."""
    return _Sequence.apply(inputs, weight, bias)  # type: ignore[no-any-return]


def _step(
    inputs: Float[Tensor, "*batch gates"], hidden: Float[Tensor, "*batch gates"], state: Float[Tensor, "*batch size"]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The next state, and the tensors that its gradient needs."""
    size = state.shape[-1]
    reset, update = (inputs[..., : 2 * size] + hidden[..., : 2 * size]).sigmoid().split(size, -1)
    recalled = hidden[..., 2 * size :]
    new = torch.addcmul(inputs[..., 2 * size :], reset, recalled).tanh()
    return torch.lerp(new, state, update), (state, reset, update, new, recalled)


def _step_gradient(grad: Float[Tensor, "batch size"], saved: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the inputs, of the hidden part of the gates, and of the state that is carried over unchanged."""
    state, reset, update, new, recalled = saved
    carried = grad * update
    of_new = (grad - carried) * (1 - new.square())
    of_update = (state - new) * carried * (1 - update)
    of_recalled = of_new * reset
    of_reset = of_recalled * recalled * (1 - reset)
    return torch.cat([of_reset, of_update, of_new], -1), torch.cat([of_reset, of_update, of_recalled], -1), carried


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        fused = inputs.is_cuda and inputs.dtype == torch.float32
        state = inputs.new_zeros(inputs.shape[1], weight.shape[1])
        states, saved = [], []
        for gates in inputs:
            hidden = torch.addmm(bias, state, weight.t())
            if fused:
                state, workspace = torch.ops.aten._thnn_fused_gru_cell(gates, hidden, state)
            else:
                state, workspace = _step(gates, hidden, state)
            states.append(state)
            saved.append(workspace)
        every = torch.stack(states)
        ctx.save_for_backward(every, weight)
        ctx.fused, ctx.saved = fused, saved
        return every

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        of_inputs, of_hidden = [], []
        carried = torch.zeros_like(states[0])
        for workspace, own in zip(reversed(ctx.saved), reversed(grad.unbind()), strict=True):
            total = own + carried
            if ctx.fused:
                arriving, recurrent, carried, *_ = torch.ops.aten._thnn_fused_gru_cell_backward(total, workspace, False)
            else:
                arriving, recurrent, carried = _step_gradient(total, workspace)
            carried = torch.addmm(carried, recurrent, weight)
            of_inputs.append(arriving)
            of_hidden.append(recurrent)
        every = torch.stack(of_hidden[::-1])
        before = states[:-1].flatten(0, 1)  # the initial state is zero and contributes nothing
        return torch.stack(of_inputs[::-1]), every[1:].flatten(0, 1).t() @ before, every.sum((0, 1))
