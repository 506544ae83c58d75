"""The run folder: its files, how they are written and read, its manifest, its checkpoint and its lock."""

import errno
import hashlib
import io
import json
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor

from ricnet.data import Dataset, Split
from ricnet.data.dataset import few_bytes
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.choices import OperatingPoint
from ricnet.io import (
    draft_of,
    fsync_file,
    is_count,
    is_text,
    misfit,
    open_no_link,
    printable,
    read_json,
    run_config,
    write_atomically,
    writing,
)
from ricnet.models.config import Config, extends, from_json, to_json
from ricnet.version import __version__

fcntl: Any = None
with suppress(ImportError):  # Windows
    import fcntl

MANIFEST = "manifest.json"
LOADED = ("config.json", "model.safetensors", "calibration.json", "halting.json")
"""Files that decide what a model answers; compared with the manifest each time it is loaded."""
SEAL = "\nsha256 {}\n"
SEAL_BYTES = len(SEAL.format("0" * 64))
LOCK = ".lock"
LOCK_SECONDS = 0.2
"""Time to wait for a lock whose holder may be about to exit."""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of file systems without locks."""


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.model = self.path / "model.safetensors"
        self.encoder = self.path / "encoder.safetensors"
        self.state = self.path / "state.pt"
        self.previous_state = self.path / "state.previous.pt"
        self.evaluation = self.path / "evaluation.json"
        self.manifest = self.path / MANIFEST
        self.diverged = self.path / "diverged.json"
        self.calibration = self.path / "calibration.json"
        self.halting = self.path / "halting.json"
        self.predictions = self.path / "predictions.npz"
        self.examples = self.path / "examples.npz"
        self.guarantees = self.path / "guarantees.npz"
        self.promises = self.path / "guarantees.json"
        self.report = self.path / "report.html"
        self.rows = self.path / "rows.hash"

    @property
    def files(self) -> list[Path]:
        """All files that a run may leave."""
        return [path for path in vars(self).values() if path != self.path]

    @property
    def curves(self) -> Path:
        """The folder for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def begun(self) -> bool:
        """Whether there is a run to resume."""
        return self.config.is_file()

    @property
    def finished(self) -> bool:
        return self.evaluation.is_file()

    @property
    def has_diverged(self) -> bool:
        return self.diverged.is_file() and not self.finished

    # Begin, or resume

    def begin(
        self,
        config: Config,
        dataset: Dataset,
        device: torch.device,
        source: "RunFolder | None" = None,
        encoder: dict[str, Any] | None = None,
    ) -> None:
        """Start a new run, in place of any before it; call `refuse_if_taken` first. `source` is the run whose weights a
        derived run takes; `encoder` describes a pretrained encoder."""
        entry: dict[str, Any] = {
            "ricnet": __version__,
            "config": to_json(config),
            "data": describe_data(dataset),
            "hardware": describe_hardware(device),
        }
        if encoder is not None:
            entry["encoder"] = encoder
        if source is not None:
            entry |= {"derived_from": source.path.name, "weights": source.weights_hash()}
        self._make()
        # config.json stays until it is replaced: a crash in between leaves a run that can be overwritten
        self._remove(path for path in self.files if path != self.config)
        self.drop_curves()
        self.write_json(self.config, entry)

    @contextmanager
    def held(self, tell: Callable[[str], object] = warnings.warn) -> Iterator[None]:
        """Lock the folder (see `locked`). If it is new and nothing is written, it is removed."""
        new = not self.path.exists()
        self._make()
        try:
            with locked(self.path, tell):
                for path in self.files:  # drafts of a killed process
                    with suppress(OSError):
                        draft_of(path).unlink(missing_ok=True)
                yield
        finally:
            if new:
                with suppress(OSError):
                    self.path.rmdir()  # fails unless empty

    def refuse_if_held(self) -> None:
        """Raise as `locked` does, without keeping the lock."""
        if (self.path / LOCK).exists():
            with locked(self.path, lambda _: None):
                pass

    def _make(self) -> None:
        self._refuse_if_file()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            told = f"{setting('out', self.path)} cannot be made ({error.strerror}); choose another folder."
            raise RicnetError(told) from error

    def _refuse_if_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RicnetError(f"{setting('out', self.path)} is a file; choose a folder.")

    def refuse_if_taken(self, overwrite: bool) -> None:
        self._refuse_if_file()
        temporary = {LOCK, *(draft_of(path).name for path in self.files)}  # a killed run may leave them
        if not self.path.exists() or temporary.issuperset(path.name for path in self.path.iterdir()):
            return
        out, anew, go_on = setting("out"), setting("overwrite", True), setting("resume", True)
        if not self.begun:
            told = f"{setting('out', self.path)} holds files that are not a run; choose an empty or a new folder."
        elif overwrite or (self.has_diverged and not self.model.is_file()):  # in its first epoch: nothing to keep
            return
        elif self.has_diverged:
            told = f"{self.path} holds a run that diverged in epoch {read_json(self.diverged).get('epoch')}; start "
            told += f"anew with {anew} and a lower {setting('lr')}, or choose another {out}."
        elif self.finished:
            told = f"{self.path} holds a finished run; choose another {out}, or replace it with {anew}."
        else:
            told = f"{self.path} holds an unfinished run; go on with {go_on}, or start anew with {anew}."
        raise RicnetError(told)

    def check_resumable(self, config: Config, dataset: Dataset) -> None:
        """Raise unless data and settings are those the run began with, except for more epochs (`extends`)."""
        entry, anew = read_config(self.path), setting("overwrite", True)
        began = from_json(entry.get("config"), str(self.config))
        longer = extends(config, began)
        if self.finished and not longer:
            raise RicnetError(f"{self.path} is finished; nothing is left to resume. Replace it with {anew}.")
        self.diverged.unlink(missing_ok=True)  # if it diverges again, it is marked again
        if entry.get("data") != describe_data(dataset):
            raise RicnetError(f"the data is not what {self.path} began with; start anew with {anew}.")
        if longer:
            self._reopen(entry | {"config": to_json(config)})
        elif began != config:
            raise RicnetError(f"{self.path} began with other settings; leave them out, or start anew with {anew}.")

    def _reopen(self, entry: dict[str, Any]) -> None:
        """Make the run unfinished, with these settings. Its results are removed first: after a crash in between it
        resumes with its old settings."""
        if self.finished and self.read_state() is None:
            raise RicnetError(
                f"{self.path} has no {self.state.name} to continue from (only ric train and ricnet.train keep it); "
                f"start anew with {setting('overwrite', True)}."
            )
        made = (self.predictions, self.examples, self.guarantees, self.promises, self.report)
        self._remove((self.calibration, self.halting, *made))
        self.write_json(self.config, entry)

    def _remove(self, paths: Iterable[Path]) -> None:
        """Remove files of a run, first those that mark it as finished."""
        with writing(self.path):
            for path in (self.evaluation, self.manifest, *paths):
                path.unlink(missing_ok=True)

    # Write

    def write_json(self, path: Path, entry: object) -> None:
        write_atomically(path, lambda draft: draft.write_bytes(_as_json(entry)))

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        self.drop_manifest()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        write_atomically(self.model, lambda draft: draft.write_bytes(save(tensors)))

    def write_rows(self, dataset: Dataset) -> None:
        """Write a hash of each training and validation row, 8 bytes, by which they are recognised in other data."""
        if not self.rows.is_file() and few_bytes(dataset.train, dataset.val):
            hashes = np.union1d(dataset.train.hashes, dataset.val.hashes)
            write_atomically(self.rows, lambda draft: draft.write_bytes(hashes.tobytes()))

    def count_known(self, split: Split) -> int:
        """Number of rows that are training or validation rows of the run; 0 without rows.hash."""
        if not self.rows.is_file() or not few_bytes(split):
            return 0
        self.verify((self.rows.name,))
        content = self.rows.read_bytes()
        return int(np.isin(split.hashes, np.frombuffer(content[: len(content) // 8 * 8], np.uint64)).sum())

    def weights_hash(self) -> str:
        return file_hash(self.model)[:16]

    def finish(self, evaluation: dict[str, Any]) -> None:
        """Write the manifest, then the evaluation, which marks the run as finished."""
        self.write_manifest({self.evaluation.name: hashlib.sha256(_as_json(evaluation)).hexdigest()})
        self.write_json(self.evaluation, evaluation)

    def drop_curves(self) -> None:
        if self.curves.is_symlink():
            self.curves.unlink()
        shutil.rmtree(self.curves, ignore_errors=True)

    # The manifest: SHA-256 of each file of a finished run or a shared model. It detects damage and files of different
    # runs in one folder. It is not a signature: anyone who can write to the folder can write a matching manifest.

    def write_manifest(self, known: Mapping[str, str] | None = None) -> None:
        """List the files of the run. config.json has the SHA-256 of the encoder, and `ric report` rewrites the report.
        `known` are hashes of files that will be written afterwards."""
        unlisted = {self.state, self.previous_state, self.encoder, self.report, self.manifest}
        hashes = {path.name: file_hash(path) for path in self.files if path not in unlisted and path.is_file()}
        self.write_json(self.manifest, {"sha256": dict(sorted((hashes | dict(known or {})).items()))})

    def drop_manifest(self) -> None:
        """Call before rewriting a listed file."""
        with writing(self.manifest):
            self.manifest.unlink(missing_ok=True)

    def verify(self, names: Iterable[str] = LOADED) -> None:
        """Raise if one of these files differs from the manifest. Without a manifest, print a note once."""
        if not self.manifest.is_file():
            in_training = (self.metrics.exists() or self.state.exists()) and not self.evaluation.exists()
            if not in_training:
                _note_unverified(self.path)
            return
        listed = read_json(self.manifest).get("sha256", {})
        if misfit(listed, dict.fromkeys(LOADED[:2], is_text)) is not None:
            raise RicnetError(f"{self.manifest} does not list the files of a model; get a whole copy of the run.")
        for path in map(self.path.joinpath, names):
            is_listed, exists = path.name in listed, path.is_file()
            if exists and not is_listed:
                problem = f"is not listed in {MANIFEST} beside it"
            elif is_listed and not exists:
                problem = f"is missing, though {MANIFEST} beside it lists it"
            elif is_listed and file_hash(path) != listed[path.name]:
                problem = f"was changed or damaged (its SHA-256 is not the one in {MANIFEST} beside it)"
            else:
                continue
            raise RicnetError(
                f"{path} {problem}; get a whole copy of the run, or delete {MANIFEST} if you changed the file on "
                "purpose."
            )

    # The checkpoint

    def write_state(self, state: dict[str, Any]) -> None:
        """Write a checkpoint, and keep the previous one in case of damage."""
        if self.metrics.is_file():
            with writing(self.metrics):
                fsync_file(self.metrics)  # a resumed run does not write these lines again
        write_atomically(self.state, lambda draft: write_checkpoint(state, draft), self.previous_state)

    def read_state(self, tell: Callable[[str], object] = warnings.warn) -> dict[str, Any] | None:
        """The newest undamaged checkpoint, or None; `tell` gets a warning if it is the previous one."""
        if not self.state.is_file():  # may have been killed between two renames
            return read_checkpoint(self.previous_state) if self.previous_state.is_file() else None
        try:
            return read_checkpoint(self.state)
        except Damaged:
            if not self.previous_state.is_file():
                raise
        state = read_checkpoint(self.previous_state)
        with writing(self.state):
            self.previous_state.replace(self.state)  # the next checkpoint keeps it, not the damaged one
        tell(f"{self.state} was damaged; the run continues from the previous checkpoint.")
        return state

    def drop_states(self, keep_last: bool = False) -> None:
        """Remove the checkpoints of a finished run; failing to does no harm."""
        for path in (self.previous_state, *(() if keep_last else (self.state,))):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    # Metrics, a line per epoch

    def append_metrics(self, line: dict[str, Any]) -> None:
        with writing(self.metrics), open(self.metrics, "a", encoding="utf-8", opener=open_no_link) as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def metrics_lines(self) -> Iterator[dict[str, Any]]:
        """The epochs so far, without damaged lines."""
        texts = self.metrics.read_bytes().splitlines() if self.metrics.is_file() else ()
        yield from filter(None, map(_parsed, texts))

    @property
    def last_epoch(self) -> int:
        """The last validated epoch; 0 if there is none."""
        return max((line["epoch"] for line in self.metrics_lines()), default=0)

    def validation_nll(self) -> dict[int, float]:
        """The validation NLL of each validated epoch."""
        return {line["epoch"]: line["val"]["nll"] for line in self.metrics_lines()}

    def keep_metrics_until(self, epoch: int) -> None:
        """Drop the lines after the checkpoint that a run resumes from; the last may be cut short."""
        if not self.metrics.is_file():
            with writing(self.metrics):
                self.metrics.unlink(missing_ok=True)  # a broken link
            return
        texts = self.metrics.read_bytes().splitlines(keepends=True)
        lines = [text for text in texts if (line := _parsed(text)) and line["epoch"] <= epoch]
        write_atomically(self.metrics, lambda draft: draft.write_bytes(b"".join(lines)))


def _parsed(text: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None if it is damaged."""
    with suppress(ValueError):
        if isinstance(line := json.loads(text), dict) and is_count(line.get("epoch")):
            return line
    return None


# Files


def read_config(folder: Path) -> dict[str, Any]:
    return read_json(run_config(folder))


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache
def _note_unverified(folder: Path) -> None:
    print(printable(f"note: {folder} has no {MANIFEST}, so its files are not checked for damage."), file=sys.stderr)


class Damaged(RicnetError):
    """A file differs from what was written."""


class SealedFile:
    """A file that computes a checksum while it is written, so that a large state is in memory only once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.flush = file, hashlib.sha256(), file.flush

    def write(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def seal(self) -> None:
        self.file.write(SEAL.format(self.digest.hexdigest()).encode())


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        sealed = SealedFile(file)
        try:
            torch.save(state, sealed)  # type: ignore[arg-type]  # torch needs only these methods
        except RuntimeError as error:
            raise error.__context__ or error from None  # the cause, such as a full disk or Ctrl-C
        sealed.seal()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without executing anything in it: a valid checksum does not make it trusted."""
    try:
        with path.open("rb") as file:
            payload, seal = file.read(max(0, path.stat().st_size - SEAL_BYTES)), file.read()
    except OSError as error:
        raise RicnetError(f"{path} cannot be read ({error.strerror}); make it readable and resume again.") from error
    if seal != SEAL.format(hashlib.sha256(payload).hexdigest()).encode():
        raise Damaged(f"{path} is damaged (its checksum does not fit); start anew with {setting('overwrite', True)}.")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(type(state))
    except Exception as error:  # torch raises many types
        raise Damaged(f"{path} holds no training state; start anew with {setting('overwrite', True)}.") from error
    return state


# The lock


@contextmanager
def locked(folder: Path, tell: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock of a folder, or raise with the name of its holder. The system releases the lock when the holder
    dies. On a file system without locks `tell` gets a warning, and nothing is locked."""
    path, release = folder / LOCK, None
    try:
        release = _acquire(path)
    except Timeout:
        holder = ""
        with suppress(OSError):  # on Windows only the holder can read it
            holder = path.read_text(encoding="utf-8", errors="replace")[:300]
        raise RicnetError(
            f"{folder} is in use by {holder or 'another process'}; wait until it ends, or choose another "
            f"{setting('out')}."
        ) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise RicnetError(
                f"{folder} cannot be written to ({error.strerror}); make it writable or choose another "
                f"{setting('out')}."
            ) from error
        tell(f"{folder} cannot be locked ({error.strerror}); make sure that no other process trains there.")
    try:
        yield
    finally:
        if release is not None:
            release()


def _acquire(path: Path) -> Callable[[], None]:
    """Take the lock and return a function that releases it. Raise Timeout if another process holds it."""
    if fcntl is None:  # Windows, where an open file cannot be removed
        lock = FileLock(path, timeout=LOCK_SECONDS)
        lock.acquire()
        return lock.release
    descriptor = _lock_file(path)
    with suppress(OSError):  # the holder is only for messages; the disk may be full
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())

    def release() -> None:
        with suppress(OSError):
            path.unlink()  # while locked: never the file of the next holder
        os.close(descriptor)

    return release


def _lock_file(path: Path) -> int:
    """Lock the file and return its descriptor. Not by filelock, which before 3.21 locks a file that was removed in the
    meantime, so that two processes hold the lock, and from 3.21 to 3.29 removes the file of the next holder."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        if path.is_symlink():
            path.unlink()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):  # its holder has removed it
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    return descriptor
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                raise Timeout(str(path)) from None
            time.sleep(LOCK_SECONDS / 20)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


# Entries of config.json and halting.json


def _as_json(entry: object) -> bytes:
    return (json.dumps(entry, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def describe_data(dataset: Dataset) -> dict[str, Any]:
    rows = {"train": len(dataset.train), "val": len(dataset.val), "test": len(dataset.test)}
    described: dict[str, Any] = {
        "input_shape": list(dataset.input_shape),
        "class_names": list(dataset.class_names),
        "rows": rows,
        "fingerprint": fingerprint(dataset),
    }
    return described if dataset.columns is None else described | {"columns": dataset.columns.to_json()}


def fingerprint(dataset: Dataset) -> str:
    """Hash of all labels and weights and of about 1,000 evenly spaced inputs."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.val, dataset.test):
        digest.update(split.labels.cpu().numpy().tobytes())
        digest.update(split.inputs[:: max(1, len(split) // 1000)].cpu().contiguous().numpy().tobytes())
        if split.weights is not None:
            digest.update(split.weights.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def describe_hardware(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": device.type,
        "name": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def halting_entry(rule: Mapping[str, Any], budgets: Sequence[OperatingPoint]) -> dict[str, Any]:
    """Content of halting.json: the chosen rule, if any, and with exits the thresholds for all budgets."""
    kept = {"budgets": [asdict(point) for point in budgets]} if budgets else {}
    return {"split": "val", **rule, **kept}
