from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ricnet
from ricnet.data import Dataset, Split
from ricnet.errors import RicnetError
from ricnet.nets.backbone import Backbone
from ricnet.nets.embedding import as_embedding

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
    ("output", "said"),
    [
        (TOKENS, r"\(2, 2, 3\); wrap it"),
        ({"a": VECTORS, "b": VECTORS}, r"type dict with a \(2, 3\), b \(2, 3\); wrap it"),
        ((TOKENS,), r"type tuple with 0 \(2, 2, 3\); wrap it"),
        ({}, "type dict with no tensor of numbers; wrap it"),
        (None, "type NoneType with no tensor of numbers; wrap it"),
    ],
)
def test_where_it_would_be_a_guess_a_sentence_says_what_is_needed(output: Any, said: str) -> None:
    with pytest.raises(RicnetError, match=rf"one vector an input, shape \(batch, size\); it returned .*{said}"):
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
    model = ricnet.train(data, method="supervised", encoder=encoder, epochs=100, out=tmp_path / "run", device="cpu")
    again = ricnet.load(tmp_path / "run", encoder=encoder)
    torch.testing.assert_close(again.refine(inputs).final, model.refine(inputs).final)
    assert (model.refine(inputs).final.argmax(1) == labels).float().mean() > 0.8
