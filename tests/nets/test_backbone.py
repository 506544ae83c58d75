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
from ricnet.nets.backbone import CPU_BATCH, Backbone, as_embedding, encode
from ricnet.nets.encoders import EncoderOptions, build_encoder


def test_any_module_is_an_encoder_if_it_returns_vectors() -> None:
    assert Backbone(nn.Flatten(), (3, 4, 4)).embedding_size == 48
    with refusal((1, 3, 4, 4)):
        Backbone(nn.Identity(), (3, 4, 4))


def test_token_ids_are_not_normalised() -> None:
    backbone = Backbone(encoder := build_encoder(EncoderOptions("words", width=0.25), (4,)), (4,))
    ids = torch.randint(0, 2**31 - 1, (5, 4), dtype=torch.int32)
    backbone.fit_normalization(ids)
    torch.testing.assert_close(backbone(ids), encoder(ids))


def test_backbone_normalises_with_training_statistics() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)
    images[:, 2] = 7
    backbone = Backbone(nn.Flatten(), (3, 4, 4))
    backbone.fit_normalization(images)
    normal = backbone(images).view(50, 3, 16)
    torch.testing.assert_close(normal.mean((0, 2)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std((0, 2), correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("stored", [4, 5, 6, 7])
def test_the_centre_of_a_larger_image_is_read(stored: int) -> None:
    images = torch.randint(0, 256, (3, 2, stored, stored), dtype=torch.uint8)
    backbone = Backbone(nn.Flatten(), (2, 4, 4))
    start = (stored - 4) // 2
    centre = images[:, :, start : start + 4, start : start + 4]
    assert torch.equal(backbone(images), centre.float().flatten(1))
    assert torch.equal(backbone(centre), backbone(images))  # as a training crop is
    tuned = Backbone(nn.Identity(), (2, 4, 4), features=nn.Flatten())
    images, centre = images.float(), centre.float()
    tuned.fit_normalization(images)
    assert torch.equal(tuned(images), tuned(centre))


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
def test_an_ambiguous_output_is_refused_with_advice(output: Any, named: str) -> None:
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
