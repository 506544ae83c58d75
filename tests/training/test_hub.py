"""What is taken for a model on the Hub; fetching itself is tested with a stand-in, in tests/apps/test_hub.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from ricnet.training.run import first_line, is_hub_id


@pytest.mark.parametrize("name", ["ada/digits", "ada/digits@v1", "my-org/a.b_c", "ada/digits@refs/pr/1"])
def test_ids(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id(name)
    assert is_hub_id(Path(name))


@pytest.mark.parametrize(
    "name", ["digits", "/ada/digits", "./ada", "../ada/digits", "a/b/c", "ada/", "~/x", "runs/digits", "ada/run.json"]
)
def test_paths(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id(name)


def test_what_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada").mkdir()
    assert not is_hub_id("ada/digits")
    assert is_hub_id("bob/digits")


def test_of_an_explanation_the_first_line_is_told() -> None:
    assert first_line(ValueError("\n  it broke.\nHere is why.")) == "it broke"
    assert first_line(ValueError()) == "ValueError"


def test_what_is_asked_of_the_library_is_there_without_a_terminal() -> None:
    """Its modules come only when imported, so in a process of its own."""
    pytest.importorskip("huggingface_hub")
    asked = "from ricnet.training.run import require_hub; require_hub('this')"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
