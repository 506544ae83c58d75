import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from made_runs import without_manifest
from problems import CPU, EachEpoch, configured
from refusals import refusal
from ricnet.apps.cli import main
from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.models import manifest
from ricnet.models.hub import save_pretrained
from ricnet.models.loading import load
from ricnet.models.locate import PRETRAINED
from ricnet.models.manifest import LOADED, NAME, file_hash
from ricnet.models.run import RunFolder
from ricnet.training.api import run


@pytest.fixture
def folder(finished: Callable[[str], RunFolder], tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(finished("ric").path, tmp_path / "run"))


def listed(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / NAME).read_text())["sha256"]
    return found


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_finished_run_lists_its_files(folder: RunFolder) -> None:
    names = {path.name for path in folder.path.iterdir()} - {NAME}
    assert listed(folder.path) == {name: file_hash(folder.path / name) for name in names}
    assert {*LOADED, "evaluation.json", "predictions.npz"} <= names


def test_a_single_flipped_bit_is_refused(folder: RunFolder) -> None:
    load(folder.path)
    for name in (*LOADED, NAME):
        path = folder.path / name
        whole = path.read_bytes()
        for bit in np.random.default_rng(0).integers(8 * len(whole), size=20):
            flip(path, int(bit))
            with suppress(RicnetError) if name == NAME else refusal(path):
                load(folder.path)
            path.write_bytes(whole)
    flip(folder.model, 8 * folder.model.stat().st_size - 30)  # within a number
    with refusal(folder.model, "SHA-256", "whole copy"):
        load(folder.path)


def test_every_command_that_answers_refuses(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder.model, 8 * folder.model.stat().st_size - 30)
    for command in (["predict"], ["evaluate"], ["serve", "--port", "0"], ["export", "--out", "model.onnx"]):
        with pytest.raises(SystemExit):
            main([command[0], str(folder.path), *command[1:]])
        assert "model.safetensors was changed or damaged" in " ".join(capsys.readouterr().err.split())


def test_files_that_are_missing_or_were_added_are_refused(folder: RunFolder) -> None:
    rule = folder.halting.read_bytes()
    folder.halting.unlink()
    with refusal(folder.halting, "missing"):
        load(folder.path)
    folder.halting.write_bytes(rule)
    entry = listed(folder.path)
    del entry["halting.json"]
    folder.manifest.write_text(json.dumps({"sha256": entry}))
    with refusal(folder.halting, "not listed"):
        load(folder.path)
    for wrong in ([], {}, {"sha256": 3}, {"sha256": {"config.json": 1}}):
        folder.manifest.write_text(json.dumps(wrong))
        with refusal(folder.manifest):
            load(folder.path)


def test_a_change_on_purpose_is_possible_and_an_older_run_is_loaded_with_one_note(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = json.loads(folder.config.read_text())
    entry["data"]["class_names"] = ["x", "y", "z"]
    folder.config.write_text(json.dumps(entry))
    with refusal(folder.config, f"delete {NAME}"):
        load(folder.path)
    without_manifest(folder.path)
    manifest._note_unverified.cache_clear()
    assert load(folder.path).class_names == load(folder.path).class_names == ("x", "y", "z")
    assert capsys.readouterr().err.count("note: ") == 1


def test_a_run_in_training_has_none_and_no_note(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, seen = RunFolder(tmp_path), list[bool]()

    def look(line: dict[str, object]) -> None:
        seen.append(folder.manifest.exists())
        if folder.model.exists():
            load(folder.path)

    run(configured(dataset, "supervised"), dataset, folder, CPU, checkpoint_seconds=0.0, callbacks=[EachEpoch(look)])
    assert not any(seen)
    assert "note" not in capsys.readouterr().err
    assert folder.manifest.is_file()
    folder.write_model({})  # a run that goes on does so
    assert not folder.manifest.exists()


@pytest.mark.parametrize("fatal", [NAME, "evaluation.json"])
def test_every_run_that_counts_as_finished_has_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: str
) -> None:
    """Killed as one of the last files is about to get its name."""
    folder, replace = RunFolder(tmp_path), os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == fatal:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    config = configured(dataset, "supervised")
    with pytest.raises(Exception, match="stopped"):
        run(config, dataset, folder, CPU)
    monkeypatch.undo()
    assert not folder.finished
    run(config, dataset, folder, CPU, resume=True)
    assert folder.finished
    load(folder.path)


def test_a_shared_model_has_one_too_and_is_not_made_of_damaged_numbers(folder: RunFolder, tmp_path: Path) -> None:
    model = load(folder.path)
    shared = save_pretrained(model, tmp_path / "shared")
    assert set(listed(shared)) == {*LOADED, "evaluation.json", "metrics.jsonl"}
    flip(shared / "model.safetensors", 8 * folder.model.stat().st_size - 30)
    with refusal(shared / "model.safetensors"):
        load(shared)
    save_pretrained(model, shared)
    load(shared)
    flip(folder.evaluation, 3000)
    with refusal(folder.evaluation):
        save_pretrained(model, tmp_path / "again")


def test_the_model_that_comes_with_ricnet_is_checked() -> None:
    for home in PRETRAINED.iterdir():
        assert listed(home) == {name: file_hash(home / name) for name in listed(home)}
        assert {"config.json", "model.safetensors", "examples.npz"} <= set(listed(home))
