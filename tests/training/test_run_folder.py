import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.io import Unwritable, draft_of
from ricnet.training.api import configure, run
from ricnet.training.config import Config
from ricnet.training.console import Interrupted
from ricnet.training.run import LOCK, RunFolder

CPU = torch.device("cpu")


@pytest.fixture
def config(dataset: Dataset) -> Config:
    return configure(dataset, "supervised", "fast", epochs=2, batch_size=32, width=0.1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_last_two_states_are_kept(folder: RunFolder) -> None:
    assert folder.read_state() is None
    for update in range(4):
        folder.write_state({"update": update})
    assert sorted(path.name for path in folder.path.iterdir()) == ["state.previous.pt", "state.pt"]
    assert folder.read_state() == {"update": 3}
    folder.state.unlink()  # as after a kill between the two renames
    assert folder.read_state() == {"update": 2}


def test_a_damaged_state_is_told_and_the_one_before_it_taken_and_kept(folder: RunFolder) -> None:
    for update in range(2):
        folder.write_state({"update": update})
    damage(folder.state)
    told: list[str] = []
    assert folder.read_state(told.append) == {"update": 0}
    assert told == [
        f"{folder.state} was damaged; the run goes on from the checkpoint before it, a little further back."
    ]
    folder.write_state({"update": 7})
    damage(folder.state)
    with pytest.warns(UserWarning, match="damaged"):
        assert folder.read_state() == {"update": 0}  # the damaged one did not push it out
    damage(folder.state)
    with pytest.raises(RicnetError, match=r"state\.pt is damaged.*--overwrite"):
        folder.read_state()


def test_two_damaged_states_are_left_alone(folder: RunFolder) -> None:
    for update in range(2):
        folder.write_state({"update": update})
    for path in (folder.state, folder.previous_state):
        damage(path)
    before = folder.state.read_bytes()
    with pytest.raises(RicnetError, match=r"is damaged.*--overwrite"):
        folder.read_state()
    assert folder.state.read_bytes() == before


def test_a_run_goes_on_from_the_state_before_a_damaged_one(
    dataset: Dataset, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    run(config, dataset, whole, CPU)

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="what was saved before is whole"):
        run(config, dataset, parts, CPU, checkpoint_seconds=0.0, watch=stop)
    damage(parts.state)
    capsys.readouterr()
    run(config, dataset, parts, CPU, resume=True)
    assert f"note: {parts.state} was damaged" in capsys.readouterr().err
    assert parts.model.read_bytes() == whole.model.read_bytes()


def test_a_state_of_another_network_is_one_sentence(dataset: Dataset, config: Config, folder: RunFolder) -> None:
    folder.begin(config, dataset, CPU)
    folder.write_state({"update": 1})
    with pytest.raises(RicnetError, match=r"state\.pt is of another network or another version of ricnet"):
        run(config, dataset, folder, CPU, resume=True)


def test_metrics_are_on_the_disk_before_the_state_that_counts_them(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        seen.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    folder.append_metrics({"epoch": 1})
    folder.write_state({"update": 3})
    assert [folder.metrics.stat().st_ino, folder.state.stat().st_ino] == seen[:2]


def test_no_epoch_is_doubled_and_a_line_cut_short_is_dropped(folder: RunFolder) -> None:
    folder.keep_metrics_until(0)
    for epoch in (1, 2, 3):
        folder.append_metrics({"epoch": epoch})
    with folder.metrics.open("ab") as file:
        file.write(b'{"epoch": 4, "tr\xff')
    folder.keep_metrics_until(3)
    folder.append_metrics({"epoch": 4})
    folder.keep_metrics_until(2)
    folder.append_metrics({"epoch": 3})
    assert [json.loads(line)["epoch"] for line in folder.metrics.read_text().splitlines()] == [1, 2, 3]


def test_metrics_that_cannot_be_written_are_one_sentence(folder: RunFolder) -> None:
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(Unwritable, match=r"metrics\.jsonl could not be written \(No space left on device\)"):
        folder.append_metrics({"epoch": 1})


def test_a_second_process_is_refused_and_the_first_undisturbed(
    dataset: Dataset, config: Config, folder: RunFolder
) -> None:
    refused: list[str] = []

    def start_another(line: dict[str, Any]) -> None:
        for flags in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(RicnetError, match="is in use by process") as caught:
                run(config, dataset, RunFolder(folder.path), CPU, **flags)
            refused.append(str(caught.value))

    run(config, dataset, folder, CPU, watch=start_another)
    assert len(refused) == 6
    assert folder.finished
    assert not (folder.path / LOCK).exists()


def test_what_a_killed_process_left_before_it_began_is_in_nobodys_way(
    dataset: Dataset, config: Config, folder: RunFolder
) -> None:
    for path in (folder.path / LOCK, draft_of(folder.config), draft_of(folder.state)):
        path.write_text("half")
    run(config, dataset, folder, CPU)
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


def test_what_cannot_begin_leaves_no_folder(dataset: Dataset, config: Config, tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match=r"no config\.json"):
        run(config, dataset, RunFolder(tmp_path / "run"), CPU, resume=True)
    assert not (tmp_path / "run").exists()


def test_a_crash_while_a_run_is_replaced_leaves_one_that_may_be_replaced(
    dataset: Dataset, config: Config, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config, dataset, folder, CPU)
    unlink = Path.unlink

    def crash_at_the_model(path: Path, missing_ok: bool = False) -> None:
        if path == folder.model:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", crash_at_the_model)
        with pytest.raises(KeyboardInterrupt):
            run(config, dataset, folder, CPU, overwrite=True)
    assert not folder.finished
    run(config, dataset, folder, CPU, overwrite=True)
    assert folder.finished
