"""A model put on the Hub and fetched again, by a stand-in for the Hub on this machine."""

import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants, file_download

import ricnet
from ricnet.apps.cli import main
from ricnet.data.columns import Category, Columns, Number
from ricnet.errors import RicnetError
from ricnet.report.runs import read_run
from ricnet.training.classifier import Classifier, build_model
from ricnet.training.config import Config

from .hub_stand_in import TOKEN, Hub, stand_in

# The library uploads in a way its own HTTP client has come to dislike.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "ada/digits"
SHARED = {"README.md", "config.json", "evaluation.json", "metrics.jsonl", "model.safetensors", "reliability.png"}
SHARED |= {"calibration.json", "halting.json"}


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
    """A model on the Hub, put there by somebody else."""
    hub.models[REPO] = {path.name: path.read_bytes() for path in shared.iterdir()}
    return hub


def answers(model: ricnet.Classifier, run: Path) -> torch.Tensor:
    return model.refine(np.load(run / "examples.npz")["x"]).final


def test_a_folder_is_whole_and_answers_as_the_run(digits_run: Path, shared: Path, tmp_path: Path) -> None:
    assert {path.name for path in shared.iterdir()} == SHARED
    model, again = ricnet.load(digits_run), ricnet.Classifier.from_pretrained(shared)
    assert torch.equal(answers(again, digits_run), answers(model, digits_run))
    assert again.config == model.config
    assert read_run(shared).test == read_run(digits_run).test
    assert again.save_pretrained(tmp_path / "twice").joinpath("reliability.png").is_file()


def test_the_card_says_what_was_measured(digits_run: Path, shared: Path) -> None:
    test = json.loads((digits_run / "evaluation.json").read_text())["test"]
    card = huggingface_hub.ModelCard.load(shared / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("ricnet", "image-classification")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results == {key: test[key] for key in ("accuracy", "ece", "nll", "brier", "mean_steps")}
    assert f"| accuracy | {100 * test['accuracy']:.2f} % |" in card.text
    assert "](reliability.png)" in card.text
    assert f'ricnet.load("{REPO}")' in card.text


def test_another_readout_or_other_weights_are_shared_without_the_numbers(digits_run: Path, tmp_path: Path) -> None:
    """And what an earlier model left in the folder goes."""
    model = ricnet.load(digits_run)
    model.save_pretrained(tmp_path / "shared")
    other = replace(model, method=replace(model.method, readout="mu"), temperature=2.0)
    folder = other.save_pretrained(tmp_path / "shared")
    unmeasured = {"README.md", "calibration.json", "config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == unmeasured
    assert "Nothing was measured" in (folder / "README.md").read_text()
    assert torch.equal(answers(ricnet.load(folder), digits_run), answers(other, digits_run))
    with torch.no_grad():
        next(iter(model.model.parameters())).add_(0.1)
    assert "Nothing was measured" in model.save_pretrained(tmp_path / "tuned").joinpath("README.md").read_text()


def test_the_data_stays_at_home(digits_run: Path, tmp_path: Path) -> None:
    model = ricnet.load(digits_run)
    own = replace(model, config=replace(model.config, data="/home/ada/patients.npz"))
    folder = own.save_pretrained(tmp_path / "shared")
    assert ricnet.load(folder).config.data == "patients.npz"
    assert not any(b"/home/ada" in path.read_bytes() for path in folder.iterdir())


def test_a_run_is_not_overwritten_by_its_own_copy(digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match="is the run itself; choose another folder"):
        ricnet.load(digits_run).save_pretrained(digits_run)
    (tmp_path / "file").touch()
    with pytest.raises(RicnetError, match=r"file cannot be made \(File exists\)"):
        ricnet.load(digits_run).save_pretrained(tmp_path / "file")


def test_what_others_left_in_a_folder_is_not_overwritten(digits_run: Path, tmp_path: Path) -> None:
    model = ricnet.load(digits_run)
    other = tmp_path / "other"
    other.mkdir()
    (other / "state.pt").write_bytes(b"hours of training")
    with pytest.raises(RicnetError, match="holds a run of ric train"):
        model.save_pretrained(other)
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(RicnetError, match=r"README\.md that is not ours"):
        model.save_pretrained(tmp_path)
    assert not (other / "config.json").exists()
    assert (tmp_path / "README.md").read_text() == "my project"


def test_a_table_is_shared_with_its_columns_though_its_run_is_gone(tmp_path: Path) -> None:
    columns = Columns("label", (Number("age", 40.0, 12.0, True), Category("sex", ("f", "m"), False)))
    network, _ = build_model(config := Config(), (columns.width,), 2)
    model = Classifier(config, config.method, network, (columns.width,), ("a", "b"), columns=columns)
    assert ricnet.load(model.save_pretrained(tmp_path / "shared")).columns == columns


def test_a_model_pushed_is_the_model_loaded(digits_run: Path, logged_in: Hub) -> None:
    model = ricnet.load(digits_run)
    assert model.push_to_hub(REPO) == f"{logged_in.address}/{REPO}"
    assert set(logged_in.models[REPO]) == SHARED
    assert logged_in.commits == 1
    assert torch.equal(answers(ricnet.load(REPO), digits_run), answers(model, digits_run))
    # What loading does not need stays there.
    assert sorted(logged_in.served) == sorted(SHARED - {"README.md", "reliability.png"})


def test_the_command_line_pushes_and_takes_ids(
    digits_run: Path, logged_in: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["push", str(digits_run), REPO, "--private"])
    assert capsys.readouterr().out == f"{logged_in.address}/{REPO}\n"
    assert logged_in.private == {REPO}
    main(["predict", REPO, str(digits_run / "examples.npz"), "--json", "--device", "cpu"])
    assert len(capsys.readouterr().out.splitlines()) == len(np.load(digits_run / "examples.npz")["y"])
    main(["report", REPO, "--out", "report.html"])


def test_a_private_model_needs_the_token(digits_run: Path, published: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    published.private.add(REPO)
    with pytest.raises(RicnetError, match=r"no model ada/digits on the Hub that you may see; .*HF_TOKEN"):
        ricnet.load(REPO)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert ricnet.load(REPO).class_names == ricnet.load(digits_run).class_names


def test_pushing_needs_a_token(digits_run: Path, hub: Hub) -> None:
    with pytest.raises(RicnetError, match="does not let you write to ada/digits; give a token"):
        ricnet.load(digits_run).push_to_hub(REPO)
    with pytest.raises(RicnetError, match="ada/a/b could not be put on the Hub"):
        ricnet.load(digits_run).push_to_hub("ada/a/b")
    assert hub.models == {}


def test_what_is_not_there_is_named(published: Hub) -> None:
    with pytest.raises(RicnetError, match="no folder bob/cats here and no model bob/cats on the Hub"):
        ricnet.load("bob/cats")
    with pytest.raises(RicnetError, match="ada/digits has no revision v9"):
        ricnet.load(f"{REPO}@v9")
    assert ricnet.load(f"{REPO}@{published.sha(REPO)}").class_names[0] == "0"


def test_a_folder_comes_before_the_hub(shared: Path, published: Hub, tmp_path: Path) -> None:
    """And a slip in a path is no reason to go there."""
    shutil.copytree(shared, tmp_path / REPO)
    assert ricnet.load(REPO).folder == Path(REPO)
    for slip in ("ada/digts", "runs/digits"):
        with pytest.raises(RicnetError, match=f"there is no run at {slip}"):
            ricnet.load(slip)
    assert published.served == []


def test_a_download_that_breaks_off_goes_on(digits_run: Path, published: Hub) -> None:
    published.breaks["model.safetensors"] = 2
    assert torch.equal(answers(ricnet.load(REPO), digits_run), answers(ricnet.load(digits_run), digits_run))
    assert published.served.count("model.safetensors") == 3


def test_a_download_given_up_is_one_sentence_and_can_be_repeated(
    digits_run: Path, published: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = file_download.http_get
    monkeypatch.setattr(file_download, "http_get", lambda *a, **k: real(*a, **{"_nb_retries": 0, **k}))
    published.breaks["model.safetensors"] = 1
    with pytest.raises(RicnetError, match=r"ada/digits could not be fetched from the Hub \(.+\); try again\."):
        ricnet.load(REPO)
    assert torch.equal(answers(ricnet.load(REPO), digits_run), answers(ricnet.load(digits_run), digits_run))


def test_what_was_fetched_serves_without_the_hub(
    digits_run: Path, published: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    ricnet.load(REPO)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert torch.equal(answers(ricnet.load(REPO), digits_run), answers(ricnet.load(digits_run), digits_run))
    with pytest.raises(RicnetError, match="bob/cats could not be fetched"):
        ricnet.load("bob/cats")


def test_broken_files_are_named(published: Hub) -> None:
    files = published.models[REPO]
    whole = dict(files)
    files["model.safetensors"] = whole["model.safetensors"][:-100]
    with pytest.raises(RicnetError, match=r"model\.safetensors is damaged"):
        ricnet.load(REPO)
    del files["model.safetensors"]
    with pytest.raises(RicnetError, match=r"model\.safetensors is missing"):
        ricnet.load(REPO)
    files |= whole | {"config.json": b'{"architectures": ["BertModel"]}'}
    with pytest.raises(RicnetError, match="not a ricnet configuration"):
        ricnet.load(REPO)
    files.clear()
    with pytest.raises(RicnetError, match=r"ada/digits is no model of ricnet's: it has no config\.json"):
        ricnet.load(REPO)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


def test_nothing_from_the_hub_is_executed(published: Hub, tmp_path: Path) -> None:
    """Pickles in the place of weights, beside them, and settings that name code."""
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
    ("place", "value", "complaint"),
    [
        (("config", "method", "name"), "os.system", "the method 'os.system' is unknown"),
        (("config", "method", "horizon"), "__import__('os')", "horizon cannot be"),
        (("config", "network", "encoder"), "torch.hub", "--encoder torch.hub is unknown"),
        (("config", "auto_map"), {"AutoModel": "modeling.Net"}, "the setting 'auto_map' is unknown"),
        (("data", "input_shape"), [1, 8, "8"], "does not say what the data was"),
        (("data", "input_shape"), [1, 8, -8], "does not say what the data was"),
        (("data", "class_names"), "0123456789", "does not say what the data was"),
        (("data",), None, "does not say what the data was"),
    ],
)
def test_settings_are_checked(
    shared: Path, tmp_path: Path, place: tuple[str, ...], value: object, complaint: str
) -> None:
    shutil.copytree(shared, tmp_path, dirs_exist_ok=True)
    entry = json.loads((tmp_path / "config.json").read_text())
    part = entry
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(entry))
    with pytest.raises(RicnetError, match=complaint):
        ricnet.load(tmp_path)


def test_without_the_extra_it_says_what_to_install(digits_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RicnetError, match=r"no run at bob/cats; .* needs huggingface_hub; .* 'ricnet\[hub\]'"):
        ricnet.load("bob/cats")
    with pytest.raises(RicnetError, match=r"putting a model on the Hub needs .* pip install 'ricnet\[hub\]'"):
        ricnet.load(digits_run).push_to_hub(REPO)
