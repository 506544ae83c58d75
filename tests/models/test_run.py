import errno
import fcntl
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_runs import without_manifest
from problems import CPU, EachEpoch, assert_same_weights, configured
from refusals import cases, refusal
from ricnet.apps.cli import main
from ricnet.data import Dataset
from ricnet.errors import Interrupted, RicnetError
from ricnet.io import Unwritable, draft_of
from ricnet.models.config import Config
from ricnet.models.hub import save_pretrained
from ricnet.models.loading import load
from ricnet.models.locate import PRETRAINED
from ricnet.models.run import (
    LOADED,
    LOCK,
    MANIFEST,
    SEAL_BYTES,
    Damaged,
    RunFolder,
    SealedFile,
    _note_unverified,
    file_hash,
    locked,
    read_checkpoint,
    write_checkpoint,
)
from ricnet.training.api import run


@pytest.fixture
def config(dataset: Dataset) -> Config:
    return configured(dataset, "supervised")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_last_two_checkpoints_are_kept(folder: RunFolder) -> None:
    assert folder.read_state() is None
    for update in range(4):
        folder.write_state({"update": update})
    assert sorted(path.name for path in folder.path.iterdir()) == ["state.previous.pt", "state.pt"]
    assert folder.read_state() == {"update": 3}
    folder.state.unlink()  # as after a kill between the two renames
    assert folder.read_state() == {"update": 2}


def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(folder: RunFolder) -> None:
    for update in range(2):
        folder.write_state({"update": update})
    damage(folder.state)
    told: list[str] = []
    assert folder.read_state(told.append) == {"update": 0}
    assert [str(folder.state) in sentence for sentence in told] == [True]
    folder.write_state({"update": 7})
    damage(folder.state)
    with pytest.warns(UserWarning, match="damaged"):
        assert folder.read_state() == {"update": 0}  # the damaged one did not push it out
    for path in {folder.state, folder.previous_state} & set(folder.path.iterdir()):
        damage(path)
    before = folder.state.read_bytes()
    with refusal(folder.state, "overwrite"):
        folder.read_state()
    assert folder.state.read_bytes() == before


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(
    dataset: Dataset,
    config: Config,
    folder: RunFolder,
    finished: Callable[[str], RunFolder],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with refusal("saved", kind=Interrupted):
        run(config, dataset, folder, CPU, checkpoint_seconds=0.0, callbacks=[EachEpoch(stop)])
    damage(folder.state)
    capsys.readouterr()
    run(config, dataset, folder, CPU, resume=True)
    assert str(folder.state) in capsys.readouterr().err
    assert_same_weights(folder.path, finished("supervised").path)


def test_a_checkpoint_of_another_network_is_refused(dataset: Dataset, config: Config, folder: RunFolder) -> None:
    folder.begin(config, dataset, CPU)
    folder.write_state({"update": 1})
    with refusal(folder.state, "another"):
        run(config, dataset, folder, CPU, resume=True)


def test_metrics_are_flushed_before_the_checkpoint(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fsync = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(os.fstat(file).st_ino), fsync(file))[1])
    folder.append_metrics({"epoch": 1})
    folder.write_state({"update": 3})
    assert [folder.metrics.stat().st_ino, folder.state.stat().st_ino] == seen[:2]


def test_resumed_metrics_have_no_double_and_no_truncated_line(folder: RunFolder) -> None:
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


def test_metrics_that_cannot_be_written_are_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.models.run.open_no_link", lambda path, flags: os.open("/dev/full", flags))
    with refusal(folder.metrics, "No space left", kind=Unwritable):
        folder.append_metrics({"epoch": 1})


def test_rows_that_were_trained_on_are_counted(
    dataset: Dataset, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = torch.arange(0, 30, 3)
    mixed = replace(dataset.test, inputs=dataset.test.inputs.clone())
    mixed.inputs[:10], mixed.inputs[10:20] = dataset.train.inputs[some], dataset.val.inputs[some]
    assert folder.count_known(mixed) == 0  # a run of an earlier version
    folder.path.mkdir(exist_ok=True)
    folder.write_rows(dataset)
    assert (folder.count_known(mixed), folder.count_known(dataset.test)) == (20, 0)
    assert folder.rows.stat().st_size == 8 * (96 + 30)
    monkeypatch.setattr("ricnet.data.dataset.MOST_HASHED", 1)
    assert folder.count_known(mixed) == 0
    folder.rows.unlink()
    folder.write_rows(dataset)
    assert not folder.rows.exists()


def test_a_second_process_is_refused_and_the_first_undisturbed(
    dataset: Dataset, config: Config, folder: RunFolder
) -> None:
    def start_another(line: dict[str, Any]) -> None:
        for flags in ({"resume": True}, {"overwrite": True}, {}):
            with refusal(folder.path, f"process {os.getpid()}"):
                run(config, dataset, RunFolder(folder.path), CPU, **flags)

    for path in (folder.path / LOCK, draft_of(folder.config), draft_of(folder.state)):
        path.write_text("half")  # a killed process left it before it began: it is in nobody's way
    run(config, dataset, folder, CPU, callbacks=[EachEpoch(start_another)])
    assert folder.finished
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


def test_a_run_that_cannot_begin_leaves_no_folder(dataset: Dataset, config: Config, tmp_path: Path) -> None:
    with refusal("config.json"):
        run(config, dataset, RunFolder(tmp_path / "run"), CPU, resume=True)
    assert not (tmp_path / "run").exists()


def test_after_a_crash_while_overwriting_the_run_can_be_overwritten_again(
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


STATE = {"update": 3, "model": {"w": torch.arange(1000.0)}, "best": {"score": [0.5, -1.0]}, "cuda_rng": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(STATE, tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_a_checkpoint_is_read_as_written_and_any_change_is_detected(path: Path) -> None:
    """Also in tensors, where torch detects nothing."""
    state, whole = read_checkpoint(path), path.read_bytes()
    assert torch.equal(state["model"]["w"], STATE["model"]["w"])
    assert (state["update"], state["best"], state["cuda_rng"]) == (3, STATE["best"], None)
    changed = [
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - SEAL_BYTES, len(whole) - 2)
    ]
    for content in changed + [whole[:length] for length in (0, 1, SEAL_BYTES, 2000, -1, -SEAL_BYTES)]:
        path.write_bytes(content)
        with refusal("state.pt is damaged", kind=Damaged):
            read_checkpoint(path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("state", cases({"code": Bomb(), "code as weights": {"model": Bomb()}, "a list": [1, 2]}))
def test_code_in_a_checkpoint_with_a_valid_checksum_is_not_executed(
    tmp_path: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("state.pt").open("wb") as file:
        sealed = SealedFile(file)
        torch.save(state, sealed)
        sealed.seal()
    with refusal("state.pt holds no", kind=Damaged):
        read_checkpoint(Path("state.pt"))
    assert not Path("exploded").exists()


def test_an_unreadable_file_is_not_reported_as_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with refusal("state.pt", "Permission denied") as caught:
        read_checkpoint(path)
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_cause_of_a_failed_write_is_raised(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SealedFile, data: Any) -> int:
        raise error

    monkeypatch.setattr(SealedFile, "write", fail)
    with pytest.raises(type(error)):
        write_checkpoint(STATE, tmp_path / "state.pt")


FORKS = multiprocessing.get_context("fork")
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the children only lock files
Pipe = multiprocessing.connection.Connection


def never(sentence: str) -> None:
    pytest.fail(sentence)


def test_the_error_names_the_holder_and_a_released_lock_can_be_taken(tmp_path: Path) -> None:
    with locked(tmp_path, never):
        for ask in (lambda: locked(tmp_path, never).__enter__(), lambda: RunFolder(tmp_path).refuse_if_held()):
            with refusal(tmp_path, f"process {os.getpid()} on "):
                ask()
    assert not list(tmp_path.iterdir())
    RunFolder(tmp_path).refuse_if_held()
    with locked(tmp_path, never):
        pass


def hold(folder: Path, pipe: Pipe) -> None:
    with locked(folder, never):
        pipe.send("held")
        pipe.recv()


@forks
def test_a_lock_is_free_after_its_holder_is_killed(tmp_path: Path) -> None:
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=hold, args=(tmp_path, theirs), daemon=True)
    process.start()
    assert ours.recv() == "held"
    with refusal(f"process {process.pid} on"):
        RunFolder(tmp_path).refuse_if_held()
    process.kill()
    process.join()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path, never):
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} ")


def test_a_lock_is_taken_again_if_its_file_was_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder releases it between our opening the file and our locking it, so that we lock a removed file."""
    flock, calls = fcntl.flock, []

    def remove_and_lock(descriptor: int, how: int) -> None:
        calls.append(1)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with locked(tmp_path, never), refusal(tmp_path):
        RunFolder(tmp_path).refuse_if_held()
    assert len(calls) >= 3


def contend(folder: Path, pipe: Pipe) -> None:
    """Take the lock again and again; a file that only its holder makes shows whether two hold it."""
    inside, held = folder.parent / "inside", 0
    pipe.recv()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        with suppress(RicnetError), locked(folder, never):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            held += 1
            time.sleep(0.0005 * random.random())
            inside.unlink()
    pipe.send(held)


@forks
def test_two_processes_never_hold_the_lock_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of filelock that we allow get this wrong: 3.13 to 3.20 lock a removed file, 3.21 to 3.29 remove the file
    of the next holder."""
    (tmp_path / "run").mkdir()
    pipes = [FORKS.Pipe() for _ in range(2)]
    processes = [FORKS.Process(target=contend, args=(tmp_path / "run", theirs), daemon=True) for _, theirs in pipes]
    for process in processes:
        process.start()
    for ours, _ in pipes:
        ours.send("go")
    for process, (ours, _) in zip(processes, pipes, strict=True):
        process.join()
        assert process.exitcode == 0
        assert ours.recv() > 5
    assert not list((tmp_path / "run").iterdir())
    monkeypatch.setattr("ricnet.models.run.FileLock", None)
    with locked(tmp_path, never):
        pass


def test_file_systems_without_locks_warn_and_read_only_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(number: int, reason: str) -> Callable[..., int]:
        def fail(*_: object) -> int:
            raise OSError(number, reason)

        return fail

    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOLCK, "No locks available"))
    told: list[str] = []
    with locked(tmp_path, told.append):
        pass
    assert [str(tmp_path) in sentence and "No locks available" in sentence for sentence in told] == [True]
    monkeypatch.setattr(os, "open", fails(errno.EROFS, "Read-only file system"))
    with refusal(tmp_path, "Read-only file system"):
        locked(tmp_path, never).__enter__()


@pytest.fixture
def stopped(dataset: Dataset, config: Config, folder: RunFolder) -> RunFolder:
    """A run that was stopped after the first of its three epochs."""

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with refusal("saved", kind=Interrupted):
        run(config, dataset, folder, CPU, checkpoint_seconds=0.0, callbacks=[EachEpoch(stop)])
    state = folder.read_state()
    best = {"epoch": 1, "best_epoch": 1, "score": [-1.0, 0.5], "scores": None, "accuracy": 0.5}
    state["update"], state["best"] = 3, best | {"weights": state["model"]}
    folder.write_state(state)
    return folder


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"update": 10**9}, "update 1000000000 of 9"),
        ({"update": 10}, "update 10 of 9"),
        ({"update": -1}, "update -1"),
        ({"update": 2.0}, "update 2.0"),
        ({"update": True}, "update True"),
        ({"update": 9, "best": {}}, "no best epoch"),
        ({"update": 2}, "best epoch 1 after 0 epochs"),
        ({"best": {"epoch": 2, "best_epoch": 1}}, "best epoch 2 after 1"),
        ({"best": {"epoch": 1, "best_epoch": -(10**9)}}, "best epoch -1000000000"),
        ({"best": {"epoch": 1, "best_epoch": 1, "weights": {"0.weight": torch.zeros(2)}}}, "best weights"),
        ({"best": {"epoch": 1, "best_epoch": 1, "weights": {}}}, "best weights"),
        ({"best": {"epoch": 1, "weights": {}}}, "another"),
        ({"seconds": math.nan}, "times"),
        ({"collapsed": -5}, "counts"),
        ({"best": 3}, "another"),
        ({"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []}}, "optimizer"),
        ({"optimizer": {"state": {99: {"exp_avg": torch.zeros(3)}}, "param_groups": []}}, "another"),
    ],
    ids=str,
)
def test_an_impossible_checkpoint_is_refused(
    dataset: Dataset, config: Config, stopped: RunFolder, changes: dict[str, Any], named: str
) -> None:
    """With a valid checksum."""
    stopped.write_state(stopped.read_state() | changes)
    with refusal(stopped.state, named, "overwrite"):
        run(config, dataset, stopped, CPU, resume=True)


def test_a_checkpoint_after_the_last_update_is_resumed(dataset: Dataset, config: Config, stopped: RunFolder) -> None:
    stopped.write_state(stopped.read_state() | {"update": 9})
    run(config, dataset, stopped, CPU, resume=True)
    assert stopped.finished


@pytest.fixture
def done(finished: Callable[[str], RunFolder], tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(finished("ric").path, tmp_path / "run"))


def listed(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / MANIFEST).read_text())["sha256"]
    return found


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_finished_run_lists_its_files(done: RunFolder) -> None:
    names = {path.name for path in done.path.iterdir()} - {MANIFEST}
    assert listed(done.path) == {name: file_hash(done.path / name) for name in names}
    assert {*LOADED, "evaluation.json", "predictions.npz"} <= names


def test_a_single_flipped_bit_is_refused(done: RunFolder) -> None:
    load(done.path)
    for name in (*LOADED, MANIFEST):
        path = done.path / name
        whole = path.read_bytes()
        for bit in np.random.default_rng(0).integers(8 * len(whole), size=20):
            flip(path, int(bit))
            with suppress(RicnetError) if name == MANIFEST else refusal(path):
                load(done.path)
            path.write_bytes(whole)
    flip(done.model, 8 * done.model.stat().st_size - 30)  # within a number
    with refusal(done.model, "SHA-256", "whole copy"):
        load(done.path)


@pytest.mark.parametrize("command", ["predict", "evaluate", "serve --port 0", "export --out model.onnx"])
def test_every_command_refuses_damaged_weights(
    done: RunFolder, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(done.model, 8 * done.model.stat().st_size - 30)
    name, *flags = command.split()
    with pytest.raises(SystemExit):
        main([name, str(done.path), *flags])
    assert "model.safetensors was changed or damaged" in " ".join(capsys.readouterr().err.split())


def test_missing_and_unlisted_files_are_refused(done: RunFolder) -> None:
    rule = done.halting.read_bytes()
    done.halting.unlink()
    with refusal(done.halting, "missing"):
        load(done.path)
    done.halting.write_bytes(rule)
    entry = listed(done.path)
    del entry["halting.json"]
    done.manifest.write_text(json.dumps({"sha256": entry}))
    with refusal(done.halting, "not listed"):
        load(done.path)


@pytest.mark.parametrize("wrong", [[], {}, {"sha256": 3}, {"sha256": {"config.json": 1}}], ids=str)
def test_a_damaged_manifest_is_refused(done: RunFolder, wrong: object) -> None:
    done.manifest.write_text(json.dumps(wrong))
    with refusal(done.manifest):
        load(done.path)


def test_a_run_without_a_manifest_is_loaded_with_one_note(done: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(done.config.read_text())
    entry["data"]["class_names"] = ["x", "y", "z"]
    done.config.write_text(json.dumps(entry))
    with refusal(done.config, f"delete {MANIFEST}"):
        load(done.path)
    without_manifest(done.path)
    _note_unverified.cache_clear()
    assert load(done.path).class_names == load(done.path).class_names == ("x", "y", "z")
    assert capsys.readouterr().err.count("note: ") == 1


def test_a_run_in_training_has_no_manifest_and_no_note(
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


@pytest.mark.parametrize("fatal", [MANIFEST, "evaluation.json"])
def test_a_finished_run_has_a_manifest_even_after_a_kill(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: str
) -> None:
    """Killed before one of the last files is renamed."""
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


def test_a_shared_model_has_a_manifest_and_needs_undamaged_scores(done: RunFolder, tmp_path: Path) -> None:
    model = load(done.path)
    shared = save_pretrained(model, tmp_path / "shared")
    assert set(listed(shared)) == {*LOADED, "evaluation.json", "metrics.jsonl"}
    flip(shared / "model.safetensors", 8 * done.model.stat().st_size - 30)
    with refusal(shared / "model.safetensors"):
        load(shared)
    save_pretrained(model, shared)
    load(shared)
    flip(done.evaluation, 3000)
    with refusal(done.evaluation):
        save_pretrained(model, tmp_path / "again")


def test_the_shipped_model_matches_its_manifest() -> None:
    for home in PRETRAINED.iterdir():
        assert listed(home) == {name: file_hash(home / name) for name in listed(home)}
        assert {"config.json", "model.safetensors", "examples.npz"} <= set(listed(home))
