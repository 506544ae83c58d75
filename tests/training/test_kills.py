import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kills import PLACES, VARIANTS  # beside this file
from safetensors.torch import load_file

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.training.api import configure, run
from ricnet.training.config import Config
from ricnet.training.run import RunFolder

CPU = torch.device("cpu")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
STAGES = [("write", 1), ("write", 2000), ("fsync", 2), ("fsync", 20), ("fsync", 21), ("fsync", 22), ("fsync", 23)]
STAGES += [("rename", number) for number in (1, 2, 10, 11, 12, 13)]
"""Of nine updates with a checkpoint each: config.json, the first state, and every stage of a later checkpoint."""


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def short(dataset: Dataset) -> Config:
    return configure(dataset, "supervised", "fast", epochs=3, batch_size=32, width=0.1)


def fail_at(number: int, place: str, error: BaseException, patch: pytest.MonkeyPatch) -> None:
    """Let a call of `place` fail, and all that follow: a killed process calls nothing, and a full disk stays full."""
    holder, name = PLACES[place]
    plain, calls = getattr(holder, name), []

    def fail(*args: Any) -> Any:
        calls.append(1)
        if len(calls) < number:
            return plain(*args)
        if place == "write":
            plain(args[0], args[1][: len(args[1]) // 2])
        raise error

    patch.setattr(holder, name, fail)


def outcome(folder: RunFolder) -> tuple[dict[str, list[float]], list[Any]]:
    """Weights and metrics, bit by bit."""
    weights = {name: tensor.flatten().tolist() for name, tensor in load_file(folder.model).items()}
    lines = map(json.loads, folder.metrics.read_text().splitlines())
    return weights, [(line["epoch"], line["train"], line["val"]) for line in lines]


@pytest.fixture
def whole(dataset: Dataset, tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "whole")
    run(short(dataset), dataset, folder, CPU)
    return folder


def test_whatever_write_is_the_last_the_run_goes_on(dataset: Dataset, tmp_path: Path, whole: RunFolder) -> None:
    for place, number in STAGES:
        folder = RunFolder(tmp_path / f"{place}-{number}")
        with pytest.MonkeyPatch.context() as patch:
            fail_at(number, place, Killed(), patch)
            with pytest.raises(Killed):
                run(short(dataset), dataset, folder, CPU, checkpoint_seconds=0.0)
        run(short(dataset), dataset, folder, CPU, resume=folder.config.is_file())
        assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize(("place", "number"), [("write", 2000), ("fsync", 1), ("fsync", 21), ("rename", 12)])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    dataset: Dataset, tmp_path: Path, whole: RunFolder, place: str, number: int
) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(number, place, FULL, patch)
        with pytest.raises(
            RicnetError, match=r"could not be written \(No space left on device\); free space"
        ) as caught:
            run(short(dataset), dataset, folder, CPU, checkpoint_seconds=0.0)
    assert ("go on with --resume" in str(caught.value)) == folder.path.exists()
    run(short(dataset), dataset, folder, CPU, resume=folder.config.is_file())
    assert outcome(folder) == outcome(whole)


@pytest.mark.slow
def test_killed_at_thirty_random_moments_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    """SIGKILL, for real, at random times and within checkpoints, for every method; see kills.py."""
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), str(tmp_path), "30", "0"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 30
    assert {line["variant"] for line in lines} == set(VARIANTS)
    assert not [line for line in lines if not (line["equal"] and line["tidy"])]
