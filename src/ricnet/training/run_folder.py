"""The folder a run leaves behind: what is in it, who may write there, and how each file is written."""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.training.classifier import read_config
from ricnet.training.config import Config, from_json, to_json
from ricnet.training.files import write_atomically
from ricnet.version import __version__


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.model = self.path / "model.safetensors"
        self.state = self.path / "state.pt"
        self.evaluation = self.path / "evaluation.json"
        self.calibration = self.path / "calibration.json"
        self.predictions = self.path / "predictions.npz"
        self.examples = self.path / "examples.npz"
        self.report = self.path / "report.html"

    @property
    def finished(self) -> bool:
        return self.evaluation.is_file()

    def weights_hash(self) -> str:
        return hashlib.sha256(self.model.read_bytes()).hexdigest()[:16]

    def begin(self, config: Config, dataset: Dataset, device: torch.device, source: "RunFolder | None" = None) -> None:
        """Start a new run here, in place of any that was; ask `refuse_if_taken` first.

        `source` is the run whose weights it takes, if it is not trained.
        """
        entry: dict[str, Any] = {
            "ricnet": __version__,
            "config": to_json(config),
            "data": describe_data(dataset),
            "hardware": describe_hardware(device),
        }
        if source is not None:
            entry |= {"derived_from": source.path.name, "weights": source.weights_hash()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RicnetError(f"--out {self.path} cannot be made ({error.strerror}); choose another folder.") from error
        self._clear()
        self.write_json(self.config, entry)

    def refuse_if_taken(self, overwrite: bool) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RicnetError(f"--out {self.path} is a file; choose a folder.")
        if not any(self.path.iterdir()):
            return
        if not self.config.is_file():
            raise RicnetError(f"--out {self.path} holds files that are not a run; choose an empty or a new folder.")
        if overwrite:
            return
        if self.finished:
            raise RicnetError(
                f"{self.path} holds a finished run; choose another --out, or replace it with --overwrite."
            )
        raise RicnetError(f"{self.path} holds an unfinished run; go on with --resume, or start anew with --overwrite.")

    def check_resumable(self, config: Config, dataset: Dataset) -> None:
        """A resumed run must see the data and the settings it began with."""
        self.refuse_if_finished()
        entry = read_config(self.path)
        if entry.get("data") != describe_data(dataset):
            raise RicnetError(f"the data is not what {self.path} began with; start anew with --overwrite.")
        if from_json(entry.get("config"), str(self.config)) != config:
            raise RicnetError(f"{self.path} began with other settings; leave them out, or start anew with --overwrite.")

    def refuse_if_finished(self) -> None:
        if self.finished:
            raise RicnetError(f"{self.path} is finished; nothing is left to resume. Replace it with --overwrite.")

    def write_json(self, path: Path, entry: object) -> None:
        text = json.dumps(entry, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(path, lambda draft: void(draft.write_text(text, encoding="utf-8")))

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        write_atomically(self.model, lambda draft: void(draft.write_bytes(save(tensors))))

    def write_state(self, state: dict[str, Any]) -> None:
        write_atomically(self.state, lambda draft: torch.save(state, draft))

    def read_state(self) -> dict[str, Any] | None:
        """None where the run was stopped before its first checkpoint. Nothing in the file is executed."""
        if not self.state.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.state, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises a different kind for every way a file can be damaged
            raise RicnetError(f"{self.state} is damaged and cannot be resumed; start anew with --overwrite.") from error
        return state

    def append_metrics(self, line: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def keep_metrics_until(self, epoch: int) -> None:
        """Drop lines written after the checkpoint that a run resumes from: those epochs come again."""
        if not self.metrics.is_file():
            return
        lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)[:epoch]
        write_atomically(self.metrics, lambda draft: void(draft.write_text("".join(lines), encoding="utf-8")))

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        for path in vars(self).values():
            if path != self.path:
                path.unlink(missing_ok=True)


def void(_: object) -> None:
    """Drop a result that nobody needs."""


def describe_data(dataset: Dataset) -> dict[str, Any]:
    rows = {"train": len(dataset.train), "val": len(dataset.val), "test": len(dataset.test)}
    described: dict[str, Any] = {
        "input_shape": list(dataset.input_shape),
        "class_names": list(dataset.class_names),
        "rows": rows,
        "fingerprint": fingerprint(dataset),
    }
    return described if dataset.columns is None else described | {"columns": dataset.columns.to_json()}


def fingerprint(dataset: Dataset, sample: int = 1000) -> str:
    """Tells data of the same size apart: a hash of all labels and weights, and of some evenly spread inputs."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.val, dataset.test):
        digest.update(split.labels.cpu().numpy().tobytes())
        digest.update(split.inputs[:: max(1, len(split) // sample)].cpu().contiguous().numpy().tobytes())
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
