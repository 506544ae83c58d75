"""Names of models: a folder, `pretrained:NAME`, and ids of the Hub, which test_hub.py loads."""

import sys
from pathlib import Path

import pytest

import ricnet
from make_pretrained import card
from refusals import refusal
from ricnet.io import is_hub_id
from ricnet.models.locate import locate, pretrained_names, require_hub
from ricnet.report.runs import read_run

shipped = pytest.mark.skipif("cifar10" not in pretrained_names(), reason="pretrained:cifar10 is not in this checkout")
IDS = ("ada/digits", "ada/digits@v1", "my-org/a.b_c", "ada/digits@refs/pr/1")
PATHS = ("digits", "/ada/digits", "./ada", "../ada/digits", "a/b/c", "ada/", "~/x", "runs/digits", "ada/run.json")


def test_hub_ids_are_distinguished_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [is_hub_id(name) and is_hub_id(Path(name)) for name in IDS] == [True] * len(IDS)
    assert [is_hub_id(name) for name in PATHS] == [False] * len(PATHS)
    (tmp_path / "ada").mkdir()  # what is there is a path
    assert [is_hub_id(name) for name in ("ada/digits", "bob/digits")] == [False, True]


def test_require_hub_imports_the_submodules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its submodules are attributes only once they are imported, so it is imported anew."""
    pytest.importorskip("huggingface_hub")
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    hub = require_hub("this")
    assert issubclass(hub.errors.GatedRepoError, hub.errors.RepositoryNotFoundError)


def test_locate_finds_folders_and_pretrained_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate("runs/digits") == locate(Path("runs/digits")) == Path("runs/digits")
    monkeypatch.setattr("ricnet.models.locate.PRETRAINED", tmp_path / "models")
    with refusal("pretrained:cifar10", "no pretrained models"):
        locate("pretrained:cifar10")
    for name in ("one", "two", "unfinished"):
        (tmp_path / "models" / name).mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / "models" / name / "config.json").write_text("{}")
    assert locate("pretrained:two") == locate(Path("pretrained:two")) == tmp_path / "models" / "two"
    with refusal("pretrained:three", "pretrained:one, pretrained:two"):
        locate("pretrained:three")
    with refusal("pretrained:../one"):
        ricnet.load("pretrained:../one")


@shipped
def test_the_shipped_model_its_size_and_its_card() -> None:
    model, record = ricnet.load("pretrained:cifar10"), read_run(locate("pretrained:cifar10"))
    folder = locate("pretrained:cifar10")
    answers = model.refine(record.examples.inputs).final.argmax(-1).numpy()
    assert (answers == record.examples.answers).mean() > 0.9  # it was measured in bf16 on a GPU
    assert all(weight.dtype.itemsize == 4 for weight in model.model.parameters())
    assert (folder / "model.safetensors").stat().st_size <= 6_000_000
    assert (folder / "card.md").read_text(encoding="utf-8") == card(record, "cifar10")
