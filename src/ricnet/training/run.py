"""The folder a run leaves behind: what is in it, who may write there, how each file is written and read, and what is
written at its end; and where the folder of a model is that goes by a name."""

import errno
import hashlib
import io
import json
import os
import platform
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor, nn

from ricnet.data import Dataset, Split
from ricnet.data.dataset import balanced
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError, first_line, in_flags, require_extra, setting
from ricnet.evaluation.baselines import against_base_rate, as_given, fit_baselines
from ricnet.evaluation.choices import (
    HaltChoice,
    OperatingPoint,
    TemperatureFit,
    choose_exit,
    choose_exit_temperatures,
    choose_halt,
    choose_temperature,
    fit_exit_temperatures,
    fit_temperature,
    operating_points,
)
from ricnet.evaluation.evaluate import (
    AS_TRAINED,
    Outcome,
    Reading,
    observe,
    observe_each,
    report,
    save_examples,
    save_predictions,
)
from ricnet.io import draft_of, fsync_file, is_count, open_no_link, read_json, user_path, write_atomically, writing
from ricnet.methods import Asked, in_steps
from ricnet.training import manifest
from ricnet.training.advice import ended_early, hints
from ricnet.training.config import Config, extends, from_json, to_json
from ricnet.version import __version__

fcntl: Any = None
with suppress(ImportError):  # Windows
    import fcntl

SEAL = "\nsha256 {}\n"
SEAL_BYTES = len(SEAL.format("0" * 64))


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.exists():
        raise RicnetError(f"there is no run at {folder}; give the folder that ric train wrote.")
    if folder.is_file():
        beside = f" ({folder.parent})" if (folder.parent / "config.json").is_file() else ""
        raise RicnetError(f"{folder} is a file and not a run; give the folder that ric train wrote{beside}.")
    if not path.is_file():
        raise RicnetError(f"{folder} is not a run folder: it has no config.json; give the folder that ric train wrote.")
    return read_json(path)


class Damaged(RicnetError):
    """A file is not what was written there."""


class SealedFile:
    """Counts what is written into a checksum on its way, so that a large state is never in memory twice."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def seal(self) -> None:
        self.file.write(SEAL.format(self.digest.hexdigest()).encode())


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        sealed = SealedFile(file)
        try:
            torch.save(state, sealed)  # type: ignore[arg-type]  # torch asks for no more than these
        except RuntimeError as error:
            raise error.__context__ or error from None  # torch hides a full disk or Ctrl-C behind an error of its own
        sealed.seal()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Nothing in the file is executed: a checksum that fits says nothing about who wrote it."""
    try:
        with path.open("rb") as file:
            payload, seal = file.read(max(0, path.stat().st_size - SEAL_BYTES)), file.read()
    except OSError as error:
        raise RicnetError(f"{path} cannot be read ({error.strerror}); make it readable and resume again.") from error
    if seal != SEAL.format(hashlib.sha256(payload).hexdigest()).encode():
        raise Damaged(f"{path} is damaged (its checksum does not fit); start anew with {setting('overwrite', True)}.")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different kind for everything it refuses
        raise Damaged(f"{path} holds no training state; start anew with {setting('overwrite', True)}.") from error
    if not isinstance(state, dict):
        raise Damaged(f"{path} holds no training state; start anew with {setting('overwrite', True)}.")
    return state


LOCK = ".lock"
LOCK_SECONDS = 0.2
"""Time to wait for the lock; its holder may be about to end."""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What a file system answers that has none."""


@contextmanager
def locked(folder: Path, tell: Callable[[str], object]) -> Iterator[None]:
    """One process at a time in a folder: hold its lock, or raise with the name of who does. The system takes the lock
    back when its holder dies. Where there are no locks `tell` hears so, and nobody is stopped."""
    path, release = folder / LOCK, None
    try:
        release = _acquire(path)
    except Timeout:
        raise RicnetError(
            f"{folder} is in use by {_holder(path)}; wait until it ends, or choose another {setting('out')}."
        ) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise RicnetError(
                f"{folder} cannot be written to ({error.strerror}); make it writable or choose another "
                f"{setting('out')}."
            ) from error
        tell(f"{folder} cannot be locked ({error.strerror}); see to it that nothing else trains there.")
    try:
        yield
    finally:
        if release is not None:
            release()


def _acquire(path: Path) -> Callable[[], None]:
    """Take the lock and return a function that releases it. Raise Timeout if another process holds it."""
    if fcntl is None:  # Windows, where a file that is open cannot be removed
        lock = FileLock(path, timeout=LOCK_SECONDS)
        lock.acquire()
        return lock.release
    descriptor = _lock_file(path)
    with suppress(OSError):  # the name of the holder is only informative; the disk may be full
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())

    def release() -> None:
        with suppress(OSError):
            path.unlink()  # before the lock is released, so that the file of the next holder is never removed
        os.close(descriptor)

    return release


def _lock_file(path: Path) -> int:
    """Lock the file and return its descriptor. filelock is not used: before 3.21 it does not notice that the file it
    locked was removed meanwhile, so that two processes hold the lock; from 3.21 to 3.29 it removes the file of the next
    holder."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        if path.is_symlink():
            path.unlink()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, path):
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


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`; only the holder of its lock removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def refuse_if_locked(folder: Path) -> None:
    """Raise the same error without taking the lock."""
    if (folder / LOCK).exists():
        with locked(folder, lambda _: None):
            pass


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:300] or "another process"
    except OSError:  # Windows lets nobody else read it
        return "another process"


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
        self.manifest = self.path / manifest.NAME
        self.diverged = self.path / "diverged.json"
        self.calibration = self.path / "calibration.json"
        self.halting = self.path / "halting.json"
        self.predictions = self.path / "predictions.npz"
        self.examples = self.path / "examples.npz"
        self.report = self.path / "report.html"

    @property
    def curves(self) -> Path:
        """A folder, for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def begun(self) -> bool:
        """Whether there is a run to go on with; one killed before it was set up leaves none."""
        return self.config.is_file()

    @property
    def finished(self) -> bool:
        return self.evaluation.is_file()

    @property
    def has_diverged(self) -> bool:
        return self.diverged.is_file() and not self.finished

    def weights_hash(self) -> str:
        return hashlib.sha256(self.model.read_bytes()).hexdigest()[:16]

    def begin(
        self,
        config: Config,
        dataset: Dataset,
        device: torch.device,
        source: "RunFolder | None" = None,
        encoder: dict[str, Any] | None = None,
    ) -> None:
        """Start a new run here, in place of any that was; ask `refuse_if_taken` first.

        `source` is the run whose weights it takes, if it is not trained. `encoder` describes one that others have
        trained.
        """
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
        self._clear()
        self.write_json(self.config, entry)

    @contextmanager
    def held(self, tell: Callable[[str], object] = warnings.warn) -> Iterator[None]:
        """Keep all other processes out. A folder in which nothing is written meanwhile does not stay.

        `tell` hears a sentence where the file system cannot do that.
        """
        new = not self.path.exists()
        self._make()
        try:
            with locked(self.path, tell):
                self._sweep()
                yield
        finally:
            if new:
                with suppress(OSError):
                    self.path.rmdir()  # which only an empty one lets happen

    def refuse_if_held(self) -> None:
        refuse_if_locked(self.path)

    def _make(self) -> None:
        self._refuse_if_file()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RicnetError(
                f"{setting('out', self.path)} cannot be made ({error.strerror}); choose another folder."
            ) from error

    def _refuse_if_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RicnetError(f"{setting('out', self.path)} is a file; choose a folder.")

    def refuse_if_taken(self, overwrite: bool) -> None:
        self._refuse_if_file()
        if not self.path.exists() or not self._names() - self._passing():
            return
        if not self.config.is_file():
            raise RicnetError(
                f"{setting('out', self.path)} holds files that are not a run; choose an empty or a new folder."
            )
        if overwrite:
            return
        if self.has_diverged:
            if self.model.is_file():
                raise RicnetError(
                    f"{self.path} holds a run that diverged in epoch {read_json(self.diverged).get('epoch')}; start "
                    f"anew with {setting('overwrite', True)} and a lower {setting('lr')}, or choose another "
                    f"{setting('out')}."
                )
            return  # it diverged before its first epoch ended, so there is nothing to keep
        if self.finished:
            raise RicnetError(
                f"{self.path} holds a finished run; choose another {setting('out')}, or replace it with "
                f"{setting('overwrite', True)}."
            )
        raise RicnetError(
            f"{self.path} holds an unfinished run; go on with {setting('resume', True)}, or start anew with "
            f"{setting('overwrite', True)}."
        )

    def check_resumable(self, config: Config, dataset: Dataset) -> None:
        """A resumed run must see the data and the settings it began with, but for more epochs (`extends`)."""
        entry = read_config(self.path)
        began = from_json(entry.get("config"), str(self.config))
        longer = extends(config, began)
        if not longer:
            self.refuse_if_finished()
        self.diverged.unlink(missing_ok=True)  # it may do better, or will be marked again
        if entry.get("data") != describe_data(dataset):
            raise RicnetError(
                f"the data is not what {self.path} began with; start anew with {setting('overwrite', True)}."
            )
        if longer:
            self._reopen(entry | {"config": to_json(config)})
        elif began != config:
            raise RicnetError(
                f"{self.path} began with other settings; leave them out, or start anew with "
                f"{setting('overwrite', True)}."
            )

    def _reopen(self, entry: dict[str, Any]) -> None:
        """Make an unfinished run of it, with these settings. What its end left goes first: a crash before the settings
        are written leaves a run that is resumed with those it had."""
        if self.finished and self.read_state() is None:
            raise RicnetError(
                f"{self.path} has no {self.state.name} to go on from, which only ric train and ricnet.train keep; "
                f"start anew with {setting('overwrite', True)}."
            )
        with writing(self.path):
            made = (self.calibration, self.halting, self.predictions, self.examples, self.report)
            for path in (self.evaluation, self.manifest, *made):
                path.unlink(missing_ok=True)
        self.write_json(self.config, entry)

    def refuse_if_finished(self) -> None:
        if self.finished:
            raise RicnetError(
                f"{self.path} is finished; nothing is left to resume. Replace it with {setting('overwrite', True)}."
            )

    def write_json(self, path: Path, entry: object) -> None:
        write_atomically(path, lambda draft: draft.write_bytes(_as_json(entry)))

    def finish(self, evaluation: dict[str, Any]) -> None:
        """Write the manifest, then the evaluation, which marks a finished run: so every finished run has a manifest."""
        self.write_manifest({self.evaluation.name: hashlib.sha256(_as_json(evaluation)).hexdigest()})
        self.write_json(self.evaluation, evaluation)

    def write_manifest(self, known: Mapping[str, str] | None = None) -> None:
        unlisted = {self.state, self.previous_state, self.encoder, self.report, self.manifest}
        manifest.write_manifest(self.path, [path.name for path in self._files() if path not in unlisted], known)

    def drop_manifest(self) -> None:
        """Called before files that it lists are rewritten."""
        with writing(self.manifest):
            self.manifest.unlink(missing_ok=True)

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        self.drop_manifest()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        write_atomically(self.model, lambda draft: draft.write_bytes(save(tensors)))

    def write_state(self, state: dict[str, Any]) -> None:
        """Keeps the state before it too, in case this one is damaged on the disk."""
        if self.metrics.is_file():
            with writing(self.metrics):
                fsync_file(self.metrics)  # first: a run that resumes from this state does not write those lines again
        write_atomically(self.state, lambda draft: write_checkpoint(state, draft), self.previous_state)

    def read_state(self, tell: Callable[[str], object] = warnings.warn) -> dict[str, Any] | None:
        """The newest state that is whole; None where the run was stopped before its first checkpoint.

        `tell` hears a sentence if that is not the newest.
        """
        if not self.state.is_file():  # killed between the two renames, perhaps
            return read_checkpoint(self.previous_state) if self.previous_state.is_file() else None
        try:
            return read_checkpoint(self.state)
        except Damaged:
            if not self.previous_state.is_file():
                raise
        state = read_checkpoint(self.previous_state)
        with writing(self.state):
            self.previous_state.replace(self.state)  # or the next checkpoint would keep the damaged one instead of it
        tell(f"{self.state} was damaged; the run goes on from the checkpoint before it, a little further back.")
        return state

    def drop_states(self, keep_last: bool = False) -> None:
        """A finished run does not need them, unless it is to go on later; failing to remove them does no harm."""
        for path in (self.previous_state, *(() if keep_last else (self.state,))):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def append_metrics(self, line: dict[str, Any]) -> None:
        with writing(self.metrics), open(self.metrics, "a", encoding="utf-8", opener=open_no_link) as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def validation_nll(self) -> list[float]:
        """The validation NLL of each epoch."""
        return [json.loads(line)["val"]["nll"] for line in self.metrics.read_text(encoding="utf-8").splitlines()]

    def metrics_lines(self) -> Iterator[dict[str, Any]]:
        """The epochs so far, without damaged lines."""
        texts = self.metrics.read_bytes().splitlines() if self.metrics.is_file() else []
        for text in texts:
            with suppress(ValueError):
                if isinstance(line := json.loads(text), dict) and is_count(line.get("epoch")):
                    yield line

    def keep_metrics_until(self, epoch: int) -> None:
        """Drop what was written after the checkpoint that a run resumes from: those epochs come again, and the last
        line may be cut short."""
        if not self.metrics.is_file():
            with writing(self.metrics):
                self.metrics.unlink(missing_ok=True)  # it may be a broken link
            return
        lines = self.metrics.read_bytes().splitlines(keepends=True)[:epoch]
        write_atomically(self.metrics, lambda draft: draft.write_bytes(b"".join(lines)))

    def _files(self) -> list[Path]:
        """All that a run writes and leaves."""
        return [path for path in vars(self).values() if path != self.path]

    def _passing(self) -> set[str]:
        """Names of what it writes and removes, unless it is killed."""
        return {LOCK, *(draft_of(path).name for path in self._files())}

    def _names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}

    def _sweep(self) -> None:
        """Remove drafts of a process that was killed."""
        for path in self._files():
            with suppress(OSError):
                draft_of(path).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove what a run left, and nothing else; first what says that it is finished. config.json stays until
        another takes its place, so that a crash in between leaves a run, which may be overwritten."""
        with writing(self.path):
            for path in (self.evaluation, self.manifest, *self._files()):
                if path != self.config:
                    path.unlink(missing_ok=True)
        self.drop_curves()

    def drop_curves(self) -> None:
        if self.curves.is_symlink():
            self.curves.unlink()
        shutil.rmtree(self.curves, ignore_errors=True)


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
    """Tells data of the same size apart: a hash of all labels and weights, and of some evenly spread inputs."""
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


# The end of a run: fit what is fitted on validation data, evaluate on all splits, write what it leaves


@dataclass(frozen=True)
class Fitted:
    halting: HaltChoice | None = None
    """None where the method's own rule stays."""
    calibration: TemperatureFit | None = None
    """None where the configuration asks for no temperature."""
    budgets: tuple[OperatingPoint, ...] = ()
    """With exits, a threshold for every budget."""

    @property
    def choices(self) -> dict[str, HaltChoice | TemperatureFit]:
        """What was fitted, by its name in evaluation.json."""
        parts = {"halting": self.halting, "calibration": self.calibration}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def reading(self) -> Reading:
        temperature = self.calibration.temperature if self.calibration else 1.0
        rule = self.halting
        return Reading(temperature, *((rule.halt_threshold, rule.max_steps) if rule else (None, None)))


def fit(config: Config, model: nn.Module, val: Split, processes: Processes = ALONE) -> Fitted:
    """The halting rule first, then a temperature for the beliefs at the halt. With exits the other way round: each exit
    has its own temperature."""
    if config.network.exits != "none":
        return _fit_exits(config, model, val, processes)
    outcome = observe(config.method, model, val, processes=processes)
    if not _all_finite(outcome, processes):
        return Fitted()  # the evaluation that follows refuses such a network
    fitted = Fitted()
    if config.chooses_halt:
        fitted = replace(fitted, halting=processes.broadcast(lambda: choose_halt(outcome)))
        outcome = observe(config.method, model, val, reading=fitted.reading, processes=processes)
    if config.fits_temperature:
        find = fit_temperature if config.calibration == "temperature" else choose_temperature
        fitted = replace(fitted, calibration=processes.broadcast(lambda: find(outcome.log_beliefs, outcome.labels)))
    return fitted


def _fit_exits(config: Config, model: nn.Module, val: Split, processes: Processes) -> Fitted:
    calibration = None
    if config.fits_temperature:
        each = [Reading(step=step) for step in range(1, len(model.costs) + 1)]  # type: ignore[arg-type]
        held_out = observe_each(config.method, model, val, each, processes=processes)
        beliefs, labels = [outcome.log_beliefs for outcome in held_out], held_out[0].labels
        find = fit_exit_temperatures if config.calibration == "temperature" else choose_exit_temperatures
        calibration = processes.broadcast(lambda: find(beliefs, labels))
    fitted = Fitted(calibration=calibration)
    if not config.has_budgets:
        return fitted
    outcome = observe(config.method, model, val, reading=fitted.reading, processes=processes)
    if not _all_finite(outcome, processes):
        return fitted
    fitted = replace(fitted, budgets=processes.broadcast(lambda: operating_points(outcome)))
    if not config.chooses_halt:
        return fitted
    return replace(fitted, halting=processes.broadcast(lambda: choose_exit(outcome, config.budget)))


def _all_finite(outcome: Outcome, processes: Processes) -> bool:
    return processes.broadcast(lambda: bool(outcome.step_scores.isfinite().all()))


def weighted(config: Config, dataset: Dataset) -> Dataset:
    """The dataset with the weights of `class_weight` for training and validation rows."""
    if config.class_weight is None:
        return dataset
    return replace(dataset, train=balanced(dataset.train), val=balanced(dataset.val))


def finalize(
    config: Config,
    model: nn.Module,
    dataset: Dataset,
    folder: RunFolder | None,
    course: dict[str, Any],
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """`dataset` comes from `weighted`; `course` is stored with the evaluation: the selected epoch, the seconds. The
    evaluation is written last: it marks a finished run. Of several processes only the first has a folder; the others
    help it to evaluate.

    Results are measured with what was fitted (temperature, halting rule). If that changes them, `raw` holds the results
    without it. If nothing is held out, `test` is null."""
    fitted = fit(config, model, dataset.val, processes)
    asked, as_trained = (
        in_steps(config.method, model, temperature) or config.method
        for temperature in (fitted.reading.temperature, 1.0)
    )
    readings = [fitted.reading] if fitted.reading == AS_TRAINED else [fitted.reading, AS_TRAINED]
    splits = {"train": dataset.train, "val": dataset.val, **({"test": dataset.test} if len(dataset.test) else {})}
    observed = {
        name: observe_each(asked, model, split, readings, processes=processes) for name, split in splits.items()
    }
    outcomes, raw = ({name: each[i] for name, each in observed.items()} for i in (0, -1))
    if asked != as_trained:  # without its temperature it is less or more sure, and leaves elsewhere
        raw = {name: observe(as_trained, model, split, processes=processes) for name, split in splits.items()}
    if folder is not None:
        for name, outcome in outcomes.items():
            refuse_no_belief(outcome, name, dataset, folder)

    def evaluated() -> dict[str, Any]:
        measured = _reports(outcomes, config, dataset)
        unfitted = _reports(raw, config, dataset) if len(readings) > 1 else measured
        choices = {"fitted": {name: asdict(part) for name, part in fitted.choices.items()}}
        entry = measured | ({} if unfitted == measured else {"raw": unfitted}) | choices | course
        return entry | _beside(entry, outcomes, config, dataset, folder)

    evaluation: dict[str, Any] = processes.broadcast(evaluated)
    if folder is not None:
        _leave(folder, asked, model, dataset, outcomes, fitted)
        folder.finish(evaluation)
    return evaluation


def halting_entry(rule: Mapping[str, Any], budgets: Sequence[OperatingPoint]) -> dict[str, Any]:
    """halting.json: the rule that was chosen, if one was, and with exits the thresholds for all budgets."""
    kept = {"budgets": [asdict(point) for point in budgets]} if budgets else {}
    return {"split": "val", **rule, **kept}


def _reports(outcomes: Mapping[str, Outcome], config: Config, dataset: Dataset) -> dict[str, Any]:
    """The results of each split, beside those of the base rate of the training classes."""
    test = dataset.test if config.class_weight is None else balanced(dataset.test)
    weights = {"train": dataset.train.weights, "val": dataset.val.weights, "test": test.weights}
    return {"test": None} | {
        name: report(outcome) | against_base_rate(outcome.log_beliefs, outcome.labels, dataset.train, weights[name])
        for name, outcome in outcomes.items()
    }


def _beside(
    entry: Mapping[str, Any],
    outcomes: Mapping[str, Outcome],
    config: Config,
    dataset: Dataset,
    folder: RunFolder | None,
) -> dict[str, Any]:
    """Baselines, notes and hints, as stored in evaluation.json."""
    baselines, note = dict[str, Any](), None
    if config.baselines and "test" in outcomes:
        balances = config.class_weight == "balanced"
        baselines, note = fit_baselines(dataset, outcomes["test"].log_beliefs, balances)
    course = [] if folder is None else folder.validation_nll()
    found = hints({**entry, "baselines": baselines}, course, config, as_given(dataset))
    return {
        "baselines": baselines,
        "baselines_note": note,
        "notes": [in_flags(each) for each in (*dataset.notes, *ended_early(course, config))],
        "hints": [in_flags(hint) for hint in found],
    }


def refuse_no_belief(outcome: Outcome, split: str, dataset: Dataset, folder: RunFolder) -> None:
    """Weights that are sound may still overflow on an input unlike any they learned from."""
    broken = int((~outcome.log_beliefs.isfinite()).any(-1).sum())
    if broken:
        raise RicnetError(
            f"{dataset.name}: the answer to {broken} of {len(outcome.labels)} {split} rows is NaN, so their inputs "
            f"must lie far beyond those it learned from; mend or remove them. The trained model is in {folder.model}."
        )


def _leave(
    folder: RunFolder, method: Asked, model: nn.Module, data: Dataset, outcomes: Mapping[str, Outcome], fitted: Fitted
) -> None:
    """Write what a report needs without the model or the data, and what was fitted. If nothing is held out, the
    examples are validation rows."""
    unseen, reading = {name: outcomes[name] for name in ("val", "test") if name in outcomes}, fitted.reading
    write_atomically(folder.predictions, lambda draft: save_predictions(unseen, draft))
    shown, outcome = (data.test, outcomes["test"]) if "test" in outcomes else (data.val, outcomes["val"])
    write_atomically(folder.examples, lambda draft: save_examples(method, model, shown, outcome, draft, reading))
    if fitted.halting is not None or fitted.budgets:
        rule = {} if fitted.halting is None else asdict(fitted.halting)
        folder.write_json(folder.halting, halting_entry(rule, fitted.budgets))
    if fitted.calibration is not None:
        folder.write_json(folder.calibration, {"method": "temperature", "split": "val", **asdict(fitted.calibration)})


# Models by name: `pretrained:NAME`, which come with ricnet, and `user/name` or `user/name@revision`, on the Hub. Both
# stand wherever a run folder does. (Sharing a model is `hub`.) Of the Hub only files of known names are fetched:
# JSON, and weights as safetensors. Reading them executes nothing.

PREFIX = "pretrained:"
PRETRAINED = Path(__file__).parents[1] / "pretrained"
FETCHED = (
    *("config.json", "model.safetensors", "encoder.safetensors", "calibration.json", "halting.json"),
    *("evaluation.json", "metrics.jsonl", manifest.NAME),
)
RUNS = "runs"
"""The folder that `ric train` writes to: what is missing there was never meant to be on the Hub."""
HUB_ID = re.compile(r"(?P<user>\w[\w.-]*)/(?P<name>\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")


def locate(run: str | Path) -> Path:
    """The folder of a run: the one given, or where the model of that name is, fetched from the Hub if need be."""
    if not str(run).startswith(PREFIX):
        return fetch(str(run)) if is_hub_id(run) else user_path(run)
    name = str(run).removeprefix(PREFIX)
    if name not in pretrained_names():
        known = ", ".join(PREFIX + each for each in pretrained_names()) or "no pretrained models"
        raise RicnetError(
            f"{run} does not come with this ricnet, which has {known}; give a folder that ric train wrote."
        )
    return PRETRAINED / name


def pretrained_names() -> list[str]:
    return sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))


def is_hub_id(run: str | Path) -> bool:
    """A path is meant where one is there, or where only its last part is missing: more likely a slip than a model."""
    found = HUB_ID.fullmatch(str(run))
    if found is None or Path(run).suffix == ".json" or Path(run).exists():
        return False
    return found["user"] != RUNS and not Path(found["user"]).is_dir()


def fetch(run: str) -> Path:
    """The folder of a model of ours on the Hub."""
    found = HUB_ID.fullmatch(run)
    assert found is not None
    repo = f"{found['user']}/{found['name']}"
    purpose = f"there is no run at {run}; if it is a model on the Hub, looking there"
    folder = download(repo, found["revision"], FETCHED, purpose)
    if not (folder / "config.json").is_file():
        raise RicnetError(f"{repo} is no model of ricnet's: it has no config.json on the Hub.")
    return folder


def download(repo: str, revision: str | None, patterns: Sequence[str], purpose: str | None = None) -> Path:
    """The folder of a repository on the Hub, in the Hub's own cache. What is there already is not fetched again, and
    serves when the Hub cannot be reached. A private one needs the token of `hf auth login` or of $HF_TOKEN."""
    hub = require_hub(purpose or f"fetching {repo} from the Hub")
    try:
        folder = hub.snapshot_download(
            repo, revision=revision, allow_patterns=list(patterns), library_name="ricnet", library_version=__version__
        )
    except hub.errors.RevisionNotFoundError as error:
        raise RicnetError(f"{repo} has no revision {revision} on the Hub; see its history there.") from error
    except hub.errors.GatedRepoError as error:
        raise RicnetError(f"{repo} is open only to those its owner lets in; ask for access on its page.") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise RicnetError(
            f"there is no folder {repo} here and no model {repo} on the Hub that you may see; check the name, or give "
            "a token (hf auth login, or $HF_TOKEN) if it is private."
        ) from error
    except (hub.errors.HTTPError, OSError, ValueError) as error:
        raise RicnetError(f"{repo} could not be fetched from the Hub ({first_line(error)}); try again.") from error
    return Path(folder)


def require_hub(purpose: str) -> Any:
    """The library that talks to the Hub, an extra."""
    require_extra(purpose, "hub", "huggingface_hub")
    import huggingface_hub
    import huggingface_hub.errors
    import huggingface_hub.utils

    library: Any = huggingface_hub
    if not sys.stderr.isatty():
        library.utils.disable_progress_bars()
    return library
