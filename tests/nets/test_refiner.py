import pytest
import torch
from torch import Tensor, nn

from ricnet.nets.refiner import Refiner, Trace, at_step, gru_cell, gru_sequence


def reference_cell(refiner: Refiner, inputs: int) -> nn.GRUCell:
    """torch's own cell over the concatenation [e; a], with the refiner's weights."""
    cell = nn.GRUCell(inputs, refiner.size).double()
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([refiner.from_embedding.weight, refiner.from_belief.weight], dim=1))
        cell.bias_ih.copy_(refiner.from_embedding.bias)
        cell.weight_hh.copy_(refiner.from_thought.weight)
        cell.bias_hh.copy_(refiner.from_thought.bias)
    return cell


def test_think_is_a_gru_over_embedding_and_belief() -> None:
    refiner = Refiner(embedding_size=6, classes=4).double()
    embedding, thought = torch.randn(5, 6).double(), torch.randn(5, 6).double()
    belief = torch.randn(5, 4).double().softmax(-1)
    expected = reference_cell(refiner, 10)(torch.cat([embedding, belief], dim=1), thought)
    torch.testing.assert_close(refiner.think(refiner.read(embedding), thought, belief), expected)


def test_replay_takes_the_same_steps_as_thinking_one_by_one() -> None:
    refiner = Refiner(embedding_size=6, classes=4).double()
    context = refiner.read(torch.randn(5, 6).double())
    beliefs = torch.randn(3, 2, 5, 4).double().softmax(-1)
    thought = torch.zeros(2, 5, 6).double()
    for step, replayed in enumerate(refiner.replay(context, beliefs)):
        thought = refiner.think(context, thought, beliefs[step])
        torch.testing.assert_close(replayed, thought)


@pytest.mark.parametrize("contexts", [(), (3,)])
def test_a_trace_has_the_thoughts_and_the_gradient_of_a_replay(contexts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    refiner = Refiner(embedding_size=6, classes=4).double()
    context = torch.randn(*contexts, 5, 18, dtype=torch.float64, requires_grad=True)
    beliefs = torch.randn(3, 2, 5, 4).double().softmax(-1)
    beliefs[0] = 1 / 4
    trace, thought = Trace(refiner), torch.zeros(2, 5, 6).double()
    with torch.no_grad():
        for step, belief in enumerate(beliefs):
            thought = trace.think(at_step(context, step), thought, belief)
    ours, theirs = trace.thoughts(context), refiner.replay(context, beliefs)
    torch.testing.assert_close(ours, theirs)
    weights, given = torch.randn_like(ours), (context, *trace.weights)
    expected = torch.autograd.grad((theirs * weights).sum(), given)
    for own, reference in zip(torch.autograd.grad((ours * weights).sum(), given), expected, strict=True):
        torch.testing.assert_close(own, reference)


def test_heads_keep_the_leading_axes() -> None:
    heads = Refiner(embedding_size=6, classes=4).heads(torch.randn(3, 2, 5, 6))
    assert heads.logits.shape == (3, 2, 5, 4)
    assert heads.concentration.shape == heads.value.shape == (3, 2, 5)


def test_with_a_small_head_the_untrained_policy_is_nearly_uniform() -> None:
    logits = Refiner(embedding_size=64, classes=10, head_gain=0.01).heads(torch.randn(100, 64)).logits
    assert logits.abs().max() < 0.1
    assert logits.std() > 0


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
    torch.testing.assert_close(gru_sequence(*given), torch_states(*given))


def test_its_gradients_are_those_of_torchs_gru() -> None:
    given = sequence_inputs()
    ours, theirs = gru_sequence(*given), torch_states(*given)
    weights = torch.randn_like(ours)
    expected = torch.autograd.grad((theirs * weights).sum(), given)
    for own, reference in zip(torch.autograd.grad((ours * weights).sum(), given), expected, strict=True):
        torch.testing.assert_close(own, reference)


def test_gradients_agree_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(gru_sequence, sequence_inputs(steps=3, batch=2, size=2))


def test_a_sequence_takes_the_steps_of_the_cell() -> None:
    inputs, weight, bias = sequence_inputs()
    state = torch.zeros(3, 5, dtype=torch.float64)
    for gates, expected in zip(inputs, gru_sequence(inputs, weight, bias), strict=True):
        state = gru_cell(gates, state @ weight.t() + bias, state)
        torch.testing.assert_close(state, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_fused_kernels_are_the_plain_equations() -> None:
    inputs, weight, bias = (tensor.detach().float() for tensor in sequence_inputs(steps=20, batch=64, size=32))
    tame = weight / 32**0.5  # gradients of a chaotic sequence differ by more than rounding
    plain = [tensor.requires_grad_() for tensor in (inputs, tame, bias)]
    fused = [tensor.detach().cuda().requires_grad_() for tensor in plain]
    expected, states = gru_sequence(*plain), gru_sequence(*fused)
    torch.testing.assert_close(states.cpu(), expected, rtol=1e-3, atol=1e-3)
    expected.square().sum().backward()
    states.square().sum().backward()
    for own, reference in zip(fused, plain, strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.cpu(), reference.grad, rtol=1e-2, atol=1e-2)
