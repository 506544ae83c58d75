"""The committed drawing shows the sizes of the network that the preset `paper` builds."""

import re
from itertools import groupby
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from torch import nn

from ricnet.models.classifier import build_model
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.recipes import Facts, preset
from ricnet_paper import ITEMS
from ricnet_paper.fig1_architecture import FOLDER
from ricnet_paper.scales import SCALES

from .conftest import pick

FIG1 = ITEMS["fig1"]
SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def network() -> RecurrentClassifier:
    config = preset("paper", None, Facts(rows=45_000, classes=10, side=32))
    return build_model(config, SHAPE, 10)[0]


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def test_numbers_are_those_of_the_paper_s_network(network: RecurrentClassifier) -> None:
    table = FIG1.tabulate(SCALES["paper"], {}).set_index("part")
    encoder, refiner = network.backbone.encoder, network.refiner
    gates = (refiner.from_embedding, refiner.from_belief, refiner.from_thought)
    heads = {"policy": refiner.policy, "concentration": refiner.concentration, "value": refiner.value}
    parts = {"embedding": (encoder,), "gru": gates} | {name: (head,) for name, head in heads.items()}
    assert {name: count(*modules) for name, modules in parts.items()} == table.parameters[list(parts)].to_dict()
    assert table.channels["embedding"] == network.backbone.embedding_size
    assert table.channels["gru"] == refiner.size
    settings = pick(FIG1.tabulate(SCALES["paper"], {}), part="setting").set_index("name")["value"].to_dict()
    method = preset("paper", None, Facts(rows=45_000, classes=10, side=32)).method
    assert settings.pop("classes") == 10
    assert settings == {name: getattr(method, name) for name in settings}


def test_stages_are_those_of_resnet34(network: RecurrentClassifier) -> None:
    encoder, x, layers = network.backbone.encoder.eval(), torch.zeros(1, *SHAPE), []
    with torch.no_grad():
        for layer in (encoder.stem, *encoder.blocks):
            x = layer(x)
            layers.append((layer is encoder.stem, *x.shape[1:], count(layer)))
    stages = [list(group) for _, group in groupby(layers, key=lambda layer: layer[:-1])]
    shown = pick(FIG1.tabulate(SCALES["paper"], {}), part="stage")
    names = ["stem", *(f"{len(stage)} blocks" for stage in stages[1:])]
    assert shown["name"].tolist() == names == ["stem", "3 blocks", "4 blocks", "6 blocks", "3 blocks"]
    sizes = [[*stage[0][1:-1], sum(layer[-1] for layer in stage)] for stage in stages]
    assert shown[["channels", "height", "width", "parameters"]].to_numpy().tolist() == sizes


def test_the_drawing_names_these_numbers() -> None:
    words = " ".join(re.findall("<!-- (.*) -->", (FOLDER / "fig1.svg").read_text(encoding="utf-8")))
    for text in ("21.3 M parameters", "1.59 M parameters", "5.64 k parameters", "513 parameters", "$T = 20$"):
        assert text in words
    for name in ("input", "encoder", "GRU", "policy head", "value head", "Dirichlet", "answer", "fed back"):
        assert name in words


@pytest.mark.parametrize("scale", SCALES)
def test_the_files_are_written_as_committed(scale: str) -> None:
    assert FIG1.experiments(SCALES[scale]) == []
    written = FIG1.write(FIG1.tabulate(SCALES[scale], {}))
    assert written == {ending: (FOLDER / f"fig1.{ending}").read_bytes() for ending in ("pdf", "png", "svg")}
    assert ElementTree.fromstring(written["svg"]).tag.endswith("svg")
    assert written["pdf"].startswith(b"%PDF")
    with Image.open(FOLDER / "fig1.png") as picture:
        assert picture.size == (2100, 900)
