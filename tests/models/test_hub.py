"""Push a model to the Hub and load it, with a local stand-in for the Hub."""

import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from hub_stand_in import TOKEN, Hub, stand_in
from huggingface_hub import constants, file_download

import ricnet
from made_runs import rewrite, without_manifest
from refusals import cases, refusal
from ricnet.apps.cli import main
from ricnet.data.columns import Category, Columns, Number
from ricnet.errors import RicnetError
from ricnet.models.classifier import Classifier, build_model
from ricnet.models.config import Config
from ricnet.report.runs import read_run

# The library uploads in a way its own HTTP client has come to dislike.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

WEIGHTS = "model.safetensors"
REPO = "ada/digits"
SHARED = {"README.md", "config.json", "evaluation.json", "metrics.jsonl", "model.safetensors", "reliability.png"}
SHARED |= {"calibration.json", "halting.json", "manifest.json"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """With a cache of its own, no token, and without Xet, the Hub's other way of storing, which has no stand-in."""
    with stand_in() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        yield hub
        huggingface_hub.close_session()


@pytest.fixture
def logged_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


@pytest.fixture(scope="module")
def shared(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that is shared; tests read it and leave it alone."""
    return ricnet.load(digits_run).save_pretrained(tmp_path_factory.mktemp("shared"), REPO)


@pytest.fixture
def published(shared: Path, hub: Hub) -> Hub:
    """A model of another user on the Hub."""
    hub.models[REPO] = {path.name: path.read_bytes() for path in shared.iterdir()}
    return hub


def answers(model: ricnet.Classifier, run: Path) -> torch.Tensor:
    return model.refine(np.load(run / "examples.npz")["x"]).final


def test_a_shared_folder_has_all_files_and_the_answers_of_the_run(
    digits_run: Path, shared: Path, tmp_path: Path
) -> None:
    assert {path.name for path in shared.iterdir()} == SHARED
    model, again = ricnet.load(digits_run), ricnet.Classifier.from_pretrained(shared)
    assert torch.equal(answers(again, digits_run), answers(model, digits_run))
    assert again.config == model.config
    assert read_run(shared).test == read_run(digits_run).test
    assert again.save_pretrained(tmp_path / "twice").joinpath("reliability.png").is_file()


def test_the_card_has_the_scores_of_the_run(digits_run: Path, shared: Path) -> None:
    test = json.loads((digits_run / "evaluation.json").read_text())["test"]
    card = huggingface_hub.ModelCard.load(shared / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("ricnet", "image-classification")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results == {key: test[key] for key in ("accuracy", "ece", "nll", "brier", "mean_steps")}
    assert f"| Test accuracy | {100 * test['accuracy']:.2f} % |" in card.text
    assert "](reliability.png)" in card.text
    assert f'ricnet.load("{REPO}")' in card.text


def test_a_changed_model_is_shared_without_the_scores_of_the_run(digits_run: Path, tmp_path: Path) -> None:
    """Files of a model that was saved there before are removed."""
    model = ricnet.load(digits_run)
    model.save_pretrained(tmp_path / "shared")
    other = replace(model, method=replace(model.method, readout="mu"), temperature=2.0)
    folder = other.save_pretrained(tmp_path / "shared")
    unmeasured = {"README.md", "calibration.json", "config.json", "manifest.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == unmeasured
    assert "no measurements of this model" in (folder / "README.md").read_text()
    assert torch.equal(answers(ricnet.load(folder), digits_run), answers(other, digits_run))
    with torch.no_grad():
        next(iter(model.model.parameters())).add_(0.1)
    assert (
        "no measurements of this model" in model.save_pretrained(tmp_path / "tuned").joinpath("README.md").read_text()
    )


def test_a_shared_folder_holds_no_data(digits_run: Path, tmp_path: Path) -> None:
    model = ricnet.load(digits_run)
    own = replace(model, config=replace(model.config, data="/home/ada/patients.npz"))
    folder = own.save_pretrained(tmp_path / "shared")
    assert ricnet.load(folder).config.data == "patients.npz"
    assert not any(b"/home/ada" in path.read_bytes() for path in folder.iterdir())


def test_saving_overwrites_no_run_and_no_foreign_file(digits_run: Path, tmp_path: Path) -> None:
    """The run itself, a file, a run in training, a README of the user."""
    model, other = ricnet.load(digits_run), tmp_path / "other"
    other.mkdir()
    (other / "state.pt").write_bytes(b"hours of training")
    (tmp_path / "file").touch()
    (tmp_path / "README.md").write_text("my project")
    for place, named in (
        (digits_run, digits_run),
        (tmp_path / "file", "file"),
        (other, other),
        (tmp_path, "README.md"),
    ):
        with refusal(named):
            model.save_pretrained(place)
    assert not (other / "config.json").exists()
    assert (tmp_path / "README.md").read_text() == "my project"


def test_a_model_of_a_table_is_shared_with_its_columns_after_its_run_is_deleted(tmp_path: Path) -> None:
    columns = Columns("label", (Number("age", 40.0, 12.0, True), Category("sex", ("f", "m"), False)))
    network, _ = build_model(config := Config(), (columns.width,), 2)
    model = Classifier(config, config.method, network, (columns.width,), ("a", "b"), columns=columns)
    assert ricnet.load(model.save_pretrained(tmp_path / "shared")).columns == columns


def test_a_pushed_model_can_be_loaded(digits_run: Path, logged_in: Hub) -> None:
    model = ricnet.load(digits_run)
    assert model.push_to_hub(REPO) == f"{logged_in.address}/{REPO}"
    assert set(logged_in.models[REPO]) == SHARED
    assert logged_in.commits == 1
    assert torch.equal(answers(ricnet.load(REPO), digits_run), answers(model, digits_run))
    # What loading does not need stays there.
    assert sorted(logged_in.served) == sorted(SHARED - {"README.md", "reliability.png"})


def test_the_command_line_pushes_and_accepts_hub_ids(
    digits_run: Path, logged_in: Hub, no_pages: None, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["push", str(digits_run), REPO, "--private"])
    assert capsys.readouterr().out == f"{logged_in.address}/{REPO}\n"
    assert logged_in.private == {REPO}
    main(["predict", REPO, str(digits_run / "examples.npz"), "--json", "--device", "cpu"])
    assert len(capsys.readouterr().out.splitlines()) == len(np.load(digits_run / "examples.npz")["y"])
    main(["report", REPO, "--out", "report.html"])


def test_a_private_model_and_pushing_need_the_token(
    digits_run: Path, published: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, there = ricnet.load(digits_run), dict(published.models)
    published.private.add(REPO)
    with refusal(REPO, "HF_TOKEN"):
        ricnet.load(REPO)
    for name in (REPO, "ada/a/b"):
        with refusal(name):
            model.push_to_hub(name)
    assert published.models == there
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert ricnet.load(REPO).class_names == model.class_names


@pytest.mark.parametrize(
    ("name", "named"), cases({"repository": ("bob/cats", "bob/cats"), "revision": (f"{REPO}@v9", (REPO, "v9"))})
)
def test_a_missing_repository_or_revision_is_named(published: Hub, name: str, named: Any) -> None:
    with refusal(named):
        ricnet.load(name)
    assert ricnet.load(f"{REPO}@{published.sha(REPO)}").class_names[0] == "0"


def test_a_folder_takes_precedence_over_the_hub(shared: Path, published: Hub, tmp_path: Path) -> None:
    """A typo in a path does not query the Hub."""
    shutil.copytree(shared, tmp_path / REPO)
    assert ricnet.load(REPO).folder == Path(REPO)
    for slip in ("ada/digts", "runs/digits"):
        with refusal(slip):
            ricnet.load(slip)
    assert published.served == []


def test_an_interrupted_download_is_resumed_and_a_failed_one_can_be_repeated(
    digits_run: Path, published: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, expected = file_download.http_get, answers(ricnet.load(digits_run), digits_run)
    with monkeypatch.context() as patched:
        patched.setattr(file_download, "http_get", lambda *a, **k: real(*a, **{"_nb_retries": 0, **k}))
        published.breaks["model.safetensors"] = 1
        with refusal(REPO, "try again"):
            ricnet.load(REPO)
    published.served.clear()
    published.breaks["model.safetensors"] = 2
    assert torch.equal(answers(ricnet.load(REPO), digits_run), expected)
    assert published.served.count("model.safetensors") == 3
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # what was fetched serves without the Hub
    assert torch.equal(answers(ricnet.load(REPO), digits_run), expected)
    with refusal("bob/cats"):
        ricnet.load("bob/cats")


@pytest.mark.parametrize(
    ("change", "named"),
    cases(
        {
            "weights cut off": (lambda files: files.update({WEIGHTS: files[WEIGHTS][:-100]}), WEIGHTS),
            "weights missing": (lambda files: files.pop(WEIGHTS), WEIGHTS),
            "another network": (lambda files: files.update({"config.json": b'{"architectures": ["Bert"]}'}), "config"),
            "no files": (lambda files: files.clear(), "config.json"),
        }
    ),
)
def test_broken_files_are_named(published: Hub, change: Callable[[dict[str, bytes]], object], named: str) -> None:
    change(published.models[REPO])
    with refusal(named):
        ricnet.load(REPO)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


def test_nothing_from_the_hub_is_executed(published: Hub, tmp_path: Path) -> None:
    """Pickles instead of weights or beside them, and settings that name code."""
    files, bomb = published.models[REPO], pickle.dumps(Bomb())
    files |= {"state.pt": bomb, "pytorch_model.bin": bomb, "modeling.py": b"open('executed', 'w')"}
    assert ricnet.load(REPO).class_names[0] == "0"
    assert not {"state.pt", "pytorch_model.bin", "modeling.py"} & set(published.served)
    whole = dict(files)
    for name in ("model.safetensors", "metrics.jsonl", "config.json"):
        files |= whole | {name: bomb}
        with pytest.raises(RicnetError):
            (read_run if name == "metrics.jsonl" else ricnet.load)(REPO)
    assert not (tmp_path / "executed").exists()
    pickle.loads(bomb)
    assert (tmp_path / "executed").exists()  # the bomb was a real one


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("config", "method", "name"), "os.system", "'os.system'"),
        (("config", "method", "horizon"), "__import__('os')", "horizon"),
        (("config", "network", "encoder"), "torch.hub", "torch.hub"),
        (("config", "auto_map"), {"AutoModel": "modeling.Net"}, "'auto_map'"),
        (("data", "input_shape"), [1, 8, "8"], "config.json"),
        (("data", "input_shape"), [1, 8, -8], "config.json"),
        (("data", "class_names"), "0123456789", "config.json"),
        (("data",), None, "config.json"),
    ],
)
def test_settings_are_checked(shared: Path, tmp_path: Path, place: tuple[str, ...], value: object, named: str) -> None:
    def change(entry: dict[str, Any]) -> None:
        for key in place[:-1]:
            entry = entry[key]
        entry[place[-1]] = value

    without_manifest(shutil.copytree(shared, tmp_path, dirs_exist_ok=True))
    rewrite(tmp_path / "config.json", change)
    with refusal(named):
        ricnet.load(tmp_path)


def test_a_missing_extra_is_named_with_its_install_command(digits_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refusal("bob/cats", "huggingface_hub", "'ricnet[hub]'"):
        ricnet.load("bob/cats")
    with refusal("'ricnet[hub]'"):
        ricnet.load(digits_run).push_to_hub(REPO)
