from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nets.checkpoints import require_timm, save_checkpoint
from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.nets.backbone import Backbone, all_features, cached_features, divide, example_input, measure
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.pretrained import Pretrained, build, read_hf, timm_architecture


def test_measuring_changes_neither_mode_nor_statistics() -> None:
    encoder = build_encoder(EncoderOptions("resnet10", width=0.125), (3, 16, 16))
    encoder.stem.eval()
    modes = [module.training for module in encoder.modules()]
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    measure(divide(encoder, "stage"), torch.ones(1, 3, 16, 16))
    assert [module.training for module in encoder.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")

IMAGES = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TEXTS = torch.randint(2, 30, (12, 9), generator=torch.Generator().manual_seed(0))
TEXTS[:8, 5:] = TEXTS[:4, 2:] = 0
KINDS = ["bert", "roberta", "distilbert", "vit", "dinov2", "resnet", "convnext"]


def checkpoint(folder: Path, kind: str) -> Pretrained:
    """Of random weights large enough that every layer changes what it reads."""
    encoder = read_hf(save_checkpoint(folder, kind))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.normal_(mean=float(name.endswith("weight") and parameter.ndim == 1), std=0.5)
    return encoder


def inputs_of(encoder: Pretrained) -> torch.Tensor:
    if encoder.architecture.reads == "images":
        return IMAGES
    return torch.where(TEXTS == 0, encoder.architecture.pad, TEXTS)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_each_layer_is_a_block_and_together_they_are_the_network(kind: str, tmp_path: Path) -> None:
    encoder = checkpoint(tmp_path, kind)
    inputs = seen = inputs_of(encoder)
    if encoder.architecture.reads == "images":
        made = encoder.network(encoder.pixels(inputs), output_hidden_states=True)
    else:
        mask = (inputs != encoder.architecture.pad).long()
        made = encoder.network(input_ids=inputs, attention_mask=mask, output_hidden_states=True)
    blocks = divide(encoder, "block")
    transformer = kind not in ("resnet", "convnext")
    assert len(blocks) == (5 if transformer else 3)
    for place, block in enumerate(blocks):
        seen = block(seen)
        last = place == len(blocks) - 1
        if transformer or last:
            expected = made.last_hidden_state if last else made.hidden_states[place + 1]
            if encoder.architecture.reads == "tokens":  # what fills up is not computed
                there = mask.unsqueeze(-1)
                torch.testing.assert_close(seen[..., :-1] * there, expected * there, atol=1e-4, rtol=1e-3)
                mean = (expected * there).sum(1) / there.sum(1)
                torch.testing.assert_close(block.pool(seen), mean, atol=1e-4, rtol=1e-3)
            else:
                torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-3)
                pooled = expected[:, 0] if transformer else expected.mean((2, 3))
                torch.testing.assert_close(block.pool(seen), pooled, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("kind", "parts"), [("bert", [3, 1, 1, 1]), ("vit", [4, 1, 1, 2]), ("resnet", [4, 1])])
@torch.no_grad()
def test_stages_are_those_of_the_network_or_a_quarter_of_the_layers_of_a_transformer(
    kind: str, parts: list[int], tmp_path: Path
) -> None:
    encoder = checkpoint(tmp_path, kind)
    stages, blocks = divide(encoder, "stage"), divide(encoder, "block")
    assert [len(stage.parts) for stage in stages] == parts  # the first has the stem too, and of a ViT the last the norm
    size = stages[-1].pool(blocks[-1](_through(blocks[:-1], inputs_of(encoder)))).shape[1]
    torch.testing.assert_close(
        all_features(stages, inputs_of(encoder))[:, -size:], all_features(blocks, inputs_of(encoder))[:, -size:]
    )


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
@torch.no_grad()
def test_networks_of_timm_are_left_in_the_same_way(name: str) -> None:
    require_timm()
    encoder = build(timm_architecture(name)).eval()
    hidden = encoder.network.forward_features(encoder.pixels(IMAGES[:2]))
    for exits in ("stage", "block"):
        parts = divide(encoder, exits)
        torch.testing.assert_close(_through(parts, IMAGES[:2]), hidden, atol=1e-4, rtol=1e-3)


def _through(stages, seen):
    for stage in stages:
        seen = stage(seen)
    return seen


@torch.no_grad()
def test_a_text_does_not_depend_on_longer_texts_in_its_batch(tmp_path: Path) -> None:
    blocks = divide(checkpoint(tmp_path, "bert"), "block")
    alone = torch.cat([all_features(blocks, text[text != 0][None]) for text in TEXTS])
    torch.testing.assert_close(all_features(blocks, TEXTS), alone, atol=1e-4, rtol=1e-3)
    assert all_features(blocks, F.pad(TEXTS[:0], (0, 0, 0, 1))).isfinite().all()  # a text of nothing


def test_a_network_of_another_make_is_refused(tmp_path: Path) -> None:
    encoder = read_hf(save_checkpoint(tmp_path, "swin"))
    with pytest.raises(RicnetError, match="--exits block: the stages of a SwinModel are not known; leave it out"):
        divide(encoder, "block")


def test_layers_that_are_more_than_their_list_are_refused(tmp_path: Path) -> None:
    """A checkpoint whose layers are what the names say, but whose network does something in between."""
    encoder = checkpoint(tmp_path, "bert")
    encoder.network.encoder.layer[2].register_forward_hook(lambda module, given, made: 2 * made)
    divide(encoder, "block")  # a layer may do what it likes
    encoder.network.encoder.register_forward_hook(
        lambda module, given, made: made | {"last_hidden_state": 0 * given[0]}
    )
    with pytest.raises(RicnetError, match="the stages of a BertModel are not known"):
        divide(encoder, "block")


@pytest.mark.parametrize("kind", ["bert", "vit", "resnet"])
@pytest.mark.parametrize("name", ["ric", "supervised"])
def test_halted_examples_enter_no_further_layer(kind: str, name: str, tmp_path: Path) -> None:
    encoder, method = checkpoint(tmp_path, kind), METHODS[name]()
    inputs = inputs_of(encoder)
    model = built(method, encoder, inputs)
    path = method.refine(model, inputs)
    if path.values is None:
        method = replace(method, confidence_threshold=float(path.log_beliefs[:-1].amax((0, 2)).exp().median()))
    else:
        method = replace(method, halt_threshold=float(path.values[1].median()))
    rows, stages = [0] * len(model.backbone.stages), model.backbone.stages
    for place, stage in enumerate(stages):
        layer = next(part for part in reversed(stage.parts) if not isinstance(part, nn.LayerNorm))
        layer.register_forward_pre_hook(partial(_count, rows, place))
    halted = method.refine(model, inputs, halt=True)
    assert rows == [int((halted.halt_step > place).sum()) for place in range(len(rows))]
    assert 0 < rows[-1] < len(inputs)
    torch.testing.assert_close(halted.final, path.log_beliefs[halted.halt_step - 1, range(12)], atol=1e-4, rtol=1e-3)


def _count(rows, place, _layer, given):
    rows[place] += len(given[0])


def built(method, reader, rows):
    backbone = Backbone(nn.Identity(), tuple(rows.shape[1:]), "block", 1, reader, True, 8)
    backbone.fit_normalization(rows)
    torch.manual_seed(0)
    return method.build(backbone, 3).eval()


@pytest.mark.parametrize("kind", ["bert", "vit", "resnet"])
@pytest.mark.parametrize("name", ["anytime", "supervised"])
def test_cached_features_give_the_same_answers_and_costs(kind: str, name: str, tmp_path: Path) -> None:
    encoder, method = checkpoint(tmp_path, kind), METHODS[name]()
    inputs = inputs_of(encoder)
    stand_in = cached_features(encoder, tuple(inputs.shape[1:]), "block")
    with torch.no_grad():
        features = all_features(divide(encoder, "block"), inputs)
    whole, head = built(method, encoder, inputs), built(method, stand_in, features)
    assert whole.costs == head.costs
    assert whole.costs[0] > 0.1
    torch.testing.assert_close(
        method.refine(whole, inputs).log_beliefs, method.refine(head, features).log_beliefs, atol=1e-4, rtol=1e-3
    )


def test_costs_do_not_count_padding(tmp_path: Path) -> None:
    encoder = checkpoint(tmp_path, "bert")
    flops = cached_features(encoder, (9,), "block").flops
    assert (example_input(encoder, (9,)) != encoder.architecture.pad).all()
    projections, attention, mlp = 4 * 8 * 8, 2 * 9 * 8, 2 * 8 * 16
    assert flops == (2 * 9 * (projections + attention + mlp),) * 5
