from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib.patches import FancyBboxPatch
from torch import nn

from ricnet.data import load
from ricnet.nets.encoders import Backbone, EncoderOptions, build_encoder
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.studies.experiments import SCALES
from ricnet.studies.paper import ITEMS
from ricnet.studies.paper.fig1_architecture import INPUTS, measure

from .conftest import draw, pick, shown_texts

FIG1 = ITEMS["fig1"]


def parameters(table: pd.DataFrame, part: str) -> int:
    return pick(table, part=part)["parameters"].sum()


def network(encoder: nn.Module, shape: Sequence[int]) -> RecurrentClassifier:
    backbone = Backbone(encoder, tuple(shape))
    return RecurrentClassifier(backbone, backbone.embedding_size, 10)


def test_the_network_of_the_paper() -> None:
    table = FIG1.tabulate(SCALES["paper"], {})
    assert pick(table, part="stage")[["name", "channels", "height", "width"]].to_numpy().tolist() == [
        ["stem", 64, 32, 32],
        ["3 blocks", 64, 32, 32],
        ["4 blocks", 128, 16, 16],
        ["6 blocks", 256, 8, 8],
        ["3 blocks", 512, 4, 4],
    ]
    # He et al.: 21.8 M with 1000 classes and the 7 × 7 stem.
    assert parameters(table, "embedding") == parameters(table, "stage") == 21_284_672 - 7_680
    # A GRU cell: three gates over [e; a] and τ, with one bias each.
    assert parameters(table, "gru") == 3 * 512 * (512 + 10 + 512 + 2)
    assert parameters(table, "policy") == 513 * 10


@pytest.mark.parametrize("encoder", ["conv", "mlp"])
def test_every_parameter_is_in_one_part_and_the_network_left_as_it_was(encoder: str) -> None:
    shape = (1, 8, 8)
    built = network(build_encoder(EncoderOptions(encoder), shape), shape)
    before = {name: tensor.clone() for name, tensor in built.state_dict().items()}
    table = pd.DataFrame(measure(built, shape))
    assert parameters(table, "stage") == parameters(table, "embedding")
    whole = sum(p.numel() for p in built.parameters())
    assert whole == table["parameters"].sum() - parameters(table, "stage")
    assert built.training
    assert not any(module._forward_hooks for module in built.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in built.state_dict().items())


def test_digits_are_as_written_here() -> None:
    shape, facts = INPUTS["digits"]
    data = load("digits")
    assert (data.input_shape, len(data.train), len(data.class_names)) == (shape, facts.rows, facts.classes)


@pytest.mark.parametrize("name", ["smoke", "paper"])
def test_words_stay_in_their_boxes(name: str, tmp_path: Path) -> None:
    assert FIG1.experiments(SCALES[name]) == []
    figure = draw(FIG1, SCALES[name], {}, tmp_path)
    boxes = [patch.get_window_extent() for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    for text in shown_texts(figure):
        word = text.get_window_extent()
        middle = ((word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2)
        holder = min(
            (box for box in boxes if box.contains(*middle)), key=lambda box: box.width * box.height, default=None
        )
        if holder is not None:
            assert holder.x0 < word.x0, text.get_text()
            assert word.x1 < holder.x1, text.get_text()
