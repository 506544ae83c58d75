import pytest
import torch
from torch import Tensor, nn

from ricnet.nets import gru


def sequence_inputs(steps: int = 4, batch: int = 3, size: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((steps, batch, 3 * size), (3 * size, size), (3 * size,))
    inputs, weight, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return inputs, weight, bias


def torch_states(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """torch's own GRU, its input weights the identity."""
    reference = nn.GRU(inputs.shape[-1], weight.shape[1]).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(torch.eye(inputs.shape[-1]))
        reference.bias_ih_l0.zero_()
    own = {"weight_ih_l0": reference.weight_ih_l0, "bias_ih_l0": reference.bias_ih_l0}
    states: Tensor = torch.func.functional_call(reference, own | {"weight_hh_l0": weight, "bias_hh_l0": bias}, inputs)[
        0
    ]
    return states


def test_a_sequence_is_torchs_gru() -> None:
    given = sequence_inputs()
    torch.testing.assert_close(gru.sequence(*given), torch_states(*given))


def test_its_gradients_are_those_of_torchs_gru() -> None:
    given = sequence_inputs()
    ours, theirs = gru.sequence(*given), torch_states(*given)
    weights = torch.randn_like(ours)
    expected = torch.autograd.grad((theirs * weights).sum(), given)
    for own, reference in zip(torch.autograd.grad((ours * weights).sum(), given), expected, strict=True):
        torch.testing.assert_close(own, reference)


def test_gradients_agree_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(gru.sequence, sequence_inputs(steps=3, batch=2, size=2))


def test_a_sequence_takes_the_steps_of_the_cell() -> None:
    inputs, weight, bias = sequence_inputs()
    state = torch.zeros(3, 5, dtype=torch.float64)
    for gates, expected in zip(inputs, gru.sequence(inputs, weight, bias), strict=True):
        state = gru.cell(gates, state @ weight.t() + bias, state)
        torch.testing.assert_close(state, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_fused_kernels_are_the_plain_equations() -> None:
    inputs, weight, bias = (tensor.detach().float() for tensor in sequence_inputs(steps=20, batch=64, size=32))
    tame = weight / 32**0.5  # gradients of a chaotic sequence differ by more than rounding
    plain = [tensor.requires_grad_() for tensor in (inputs, tame, bias)]
    fused = [tensor.detach().cuda().requires_grad_() for tensor in plain]
    expected, states = gru.sequence(*plain), gru.sequence(*fused)
    torch.testing.assert_close(states.cpu(), expected, rtol=1e-3, atol=1e-3)
    expected.square().sum().backward()
    states.square().sum().backward()
    for own, reference in zip(fused, plain, strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.cpu(), reference.grad, rtol=1e-2, atol=1e-2)
