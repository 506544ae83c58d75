import torch
from torch import nn

from ricnet.nets.refiner import Refiner


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


def test_heads_keep_the_leading_axes() -> None:
    heads = Refiner(embedding_size=6, classes=4).heads(torch.randn(3, 2, 5, 6))
    assert heads.logits.shape == (3, 2, 5, 4)
    assert heads.concentration.shape == heads.value.shape == (3, 2, 5)


def test_with_a_small_head_the_untrained_policy_is_nearly_uniform() -> None:
    logits = Refiner(embedding_size=64, classes=10, head_gain=0.01).heads(torch.randn(100, 64)).logits
    assert logits.abs().max() < 0.1
    assert logits.std() > 0
