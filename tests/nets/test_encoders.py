from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ricnet
from refusals import refusal
from ricnet.data import Dataset, Split
from ricnet.nets.encoders import (
    CPU_BATCH,
    TABLE_ROWS,
    Backbone,
    EncoderOptions,
    as_embedding,
    build_encoder,
    choose_encoder,
    divide,
    embedding_size,
    encode,
    encoder_names,
    measure,
    register_encoder,
)


def parameters(name: str, shape: tuple[int, ...] = (3, 32, 32), **options: object) -> int:
    encoder = build_encoder(EncoderOptions(encoder=name, **options), shape)  # type: ignore[arg-type]
    return sum(p.numel() for p in encoder.parameters())


def test_resnets_have_the_published_number_of_parameters() -> None:
    """torchvision's resnet18 and resnet34 have 11,689,512 and 21,797,672, of which 513,000 are the last layer."""
    assert parameters("resnet18", (3, 224, 224)) == 11_689_512 - 513_000
    assert parameters("resnet34", (3, 224, 224)) == 21_797_672 - 513_000


def test_small_images_keep_their_resolution_through_the_stem() -> None:
    for shape, stem, side in [((3, 32, 32), "auto", 32), ((3, 128, 128), "auto", 32), ((3, 32, 32), "original", 8)]:
        encoder = build_encoder(EncoderOptions("resnet10", width=0.125, stem=stem), shape)  # type: ignore[arg-type]
        assert encoder.stem(torch.zeros(1, *shape)).shape[-1] == side


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (1, 28, 28), (3, 32, 32), (13,)])
def test_auto_fits_any_input(shape: tuple[int, ...]) -> None:
    encoder = build_encoder(EncoderOptions(width=0.25, activation="silu"), shape)
    assert encoder(torch.randn(2, *shape)).shape == (2, embedding_size(encoder, shape))


def test_auto_is_chosen_by_size() -> None:
    assert [choose_encoder("auto", s) for s in [(5,), (1, 8, 8), (3, 32, 32)]] == ["mlp", "conv", "resnet18"]


def test_measuring_changes_neither_mode_nor_statistics() -> None:
    encoder = build_encoder(EncoderOptions("resnet10", width=0.125), (3, 16, 16))
    encoder.stem.eval()
    modes = [module.training for module in encoder.modules()]
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    measure(divide(encoder, "stage"), torch.ones(1, 3, 16, 16))
    assert [module.training for module in encoder.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


def test_width_multiplies_the_embedding() -> None:
    encoder = build_encoder(EncoderOptions("resnet18", width=0.5), (3, 32, 32))
    assert embedding_size(encoder, (3, 32, 32)) == 256


def test_unknown_and_unfit_encoders_are_named() -> None:
    with refusal("encoder", "resnet50", "mean resnet10"):
        build_encoder(EncoderOptions("resnet50"), (3, 32, 32))
    with refusal("13 features", "mlp"):
        build_encoder(EncoderOptions("resnet18"), (13,))


def test_an_encoder_can_be_registered_from_outside() -> None:
    @register_encoder("sum-of-pixels")
    def build(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 7))

    assert "sum-of-pixels" in encoder_names()
    assert embedding_size(build_encoder(EncoderOptions("sum-of-pixels"), (3, 8, 8)), (3, 8, 8)) == 7


def test_any_module_is_an_encoder_if_it_returns_vectors() -> None:
    assert Backbone(nn.Flatten(), (3, 4, 4)).embedding_size == 48
    with refusal((1, 3, 4, 4)):
        Backbone(nn.Identity(), (3, 4, 4))


def test_words_are_the_mean_of_their_rows_and_padding_is_none_of_them() -> None:
    encoder = build_encoder(EncoderOptions("words", width=0.25), (4,))
    table, layer = encoder.table.weight, encoder.layer
    beyond = TABLE_ROWS - 1  # the first id that comes back to row 1
    ids = torch.tensor([[7, beyond + 6, 3, 0], [3, 0, 7, 7], [0, 0, 0, 0]], dtype=torch.int32)
    means = [(table[8] + table[7] + table[4]) / 3, (table[4] + 2 * table[8]) / 3, torch.zeros(16)]
    torch.testing.assert_close(encoder(ids), layer(torch.stack(means)))


def test_token_ids_are_not_normalised() -> None:
    backbone = Backbone(encoder := build_encoder(EncoderOptions("words", width=0.25), (4,)), (4,))
    ids = torch.randint(0, 2**31 - 1, (5, 4), dtype=torch.int32)
    backbone.fit_normalization(ids)
    torch.testing.assert_close(backbone(ids), encoder(ids))
    with refusal("encoder", "words", "images"):
        build_encoder(EncoderOptions("words"), (3, 8, 8))


def test_backbone_normalises_with_training_statistics() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)
    images[:, 2] = 7
    backbone = Backbone(nn.Flatten(), (3, 4, 4))
    backbone.fit_normalization(images)
    normal = backbone(images).view(50, 3, 16)
    torch.testing.assert_close(normal.mean((0, 2)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std((0, 2), correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_autocast_lowers_the_encoder_only() -> None:
    seen: list[torch.dtype] = []

    class Probe(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    backbone = Backbone(Probe(4, 2), (4,))
    backbone.autocast = torch.bfloat16
    assert backbone(torch.randn(3, 4)).dtype == torch.float32
    assert seen == [torch.float32, torch.bfloat16]


VECTORS = torch.arange(6.0).view(2, 3)
TOKENS = torch.stack([VECTORS - 1, VECTORS + 1], 1)
PLACES = TOKENS.movedim(1, 2)[..., None]
Output = namedtuple("Output", "logits loss")


@pytest.mark.parametrize(
    "output",
    [
        VECTORS,
        {"last_hidden_state": TOKENS, "pooler_output": VECTORS, "logits": 7 * VECTORS},
        OrderedDict(last_hidden_state=PLACES, pooler_output=VECTORS[..., None, None]),
        {"logits": VECTORS, "mask": torch.ones(2, 5, dtype=torch.long), "hidden_states": (VECTORS, VECTORS)},
        {"last_hidden_state": TOKENS},
        {"last_hidden_state": PLACES, "pooler_output": None},
        (TOKENS, VECTORS),
        [VECTORS],
        Output(VECTORS, torch.tensor(1.0)),
        SimpleNamespace(last_hidden_state=TOKENS),
        SimpleNamespace(logits=VECTORS, loss=None),
    ],
)
def test_the_one_vector_an_input_is_found(output: Any) -> None:
    torch.testing.assert_close(as_embedding(output), VECTORS)


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (TOKENS, "(2, 2, 3)"),
        ({"a": VECTORS, "b": VECTORS}, "dict with a (2, 3), b (2, 3)"),
        ((TOKENS,), "tuple with 0 (2, 2, 3)"),
        ({}, "dict with no tensor"),
        (None, "NoneType with no tensor"),
    ],
)
def test_where_it_would_be_a_guess_a_sentence_says_what_is_needed(output: Any, named: str) -> None:
    with refusal("(batch, size)", named):
        as_embedding(output)


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.layer(inputs)[:, None].expand(-1, 5, -1)}


def test_a_module_that_returns_a_dict_is_trained_and_loaded(tmp_path: Path) -> None:
    encoder, labels = Dictionary(), torch.arange(60) % 2
    inputs = torch.randn(60, 4) + 3 * labels[:, None]
    assert Backbone(encoder, (4,)).embedding_size == 6
    split = Split(inputs, labels)
    data = Dataset("blobs", split, split, split, ("a", "b"))
    model = ricnet.train(data, method="supervised", encoder=encoder, epochs=40, out=tmp_path / "run", device="cpu")
    again = ricnet.load(tmp_path / "run", encoder=encoder)
    torch.testing.assert_close(again.refine(inputs).final, model.refine(inputs).final)
    assert (model.refine(inputs).final.argmax(1) == labels).float().mean() > 0.8


@given(st.integers(1, 3 * CPU_BATCH + 1))
def test_batches_come_back_as_one_in_their_order(rows: int) -> None:
    seen: list[int] = []

    def network(batch: Tensor) -> Tensor:
        seen.append(len(batch))
        return batch.square()

    inputs = torch.arange(2.0 * rows).view(rows, 2)
    assert torch.equal(encode(network, inputs), inputs.square())
    assert max(seen) <= CPU_BATCH
    assert len(seen) == -(-rows // CPU_BATCH)
