"""`pretrained:NAME`: the door, and what comes through it where a model is there."""

from pathlib import Path

import pytest

import ricnet
from make_pretrained import card
from ricnet.errors import RicnetError
from ricnet.report.runs import read_run
from ricnet.training.run import locate, pretrained_names

shipped = pytest.mark.skipif("cifar10" not in pretrained_names(), reason="pretrained:cifar10 is not in this checkout")


def test_a_folder_is_itself() -> None:
    assert locate("runs/digits") == Path("runs/digits")
    assert locate(Path("runs/digits")) == Path("runs/digits")


def test_a_name_is_a_folder_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.training.run.PRETRAINED", tmp_path)
    for name in ("one", "two", "unfinished"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "config.json").write_text("{}")
    assert locate("pretrained:two") == locate(Path("pretrained:two")) == tmp_path / "two"
    with pytest.raises(RicnetError, match=r"pretrained:three does not .*, which has pretrained:one, pretrained:two;"):
        locate("pretrained:three")
    with pytest.raises(RicnetError, match=r"pretrained:\.\./one does not come"):
        ricnet.load("pretrained:../one")


def test_where_nothing_was_shipped_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.training.run.PRETRAINED", tmp_path / "nothing")
    with pytest.raises(RicnetError, match="which has no pretrained models"):
        locate("pretrained:cifar10")


@shipped
def test_the_shipped_model_loads_and_answers() -> None:
    model, stored = ricnet.load("pretrained:cifar10"), read_run("pretrained:cifar10").examples
    assert stored is not None
    answers = model.refine(stored.inputs).final.argmax(-1).numpy()
    assert (answers == stored.answers).mean() > 0.9  # it was measured in bf16 on a GPU
    assert all(weight.dtype.itemsize == 4 for weight in model.model.parameters())


@shipped
def test_the_shipped_model_is_small_and_its_card_true() -> None:
    folder = locate("pretrained:cifar10")
    assert (folder / "model.safetensors").stat().st_size <= 6_000_000
    assert (folder / "card.md").read_text(encoding="utf-8") == card(read_run(folder), "cifar10")
