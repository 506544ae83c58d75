"""Run folders made of beliefs we choose, measured and written by ricnet.evaluation itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.evaluate import Outcome, report, save_predictions
from ricnet.report.runs import RunGroup, group_seeds, read_runs

CLASSES = 4
STEPS = 3


def beliefs(labels: np.ndarray, skill: float, sharpness: float, seed: int) -> torch.Tensor:
    """Evidence for the truth grows by the step; `sharpness` scales it without changing an answer."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(len(labels), CLASSES))
    evidence = np.stack([skill * (t + 1) / STEPS * np.eye(CLASSES)[labels] + noise for t in range(STEPS)])
    return torch.log_softmax(torch.tensor(sharpness * evidence), dim=-1).float()


def write_run(
    folder: Path,
    method: str = "ric",
    seed: int = 0,
    n: int = 80,
    skill: float = 2.0,
    sharpness: float = 1.0,
    draw: int = 0,
    **config: Any,
) -> Path:
    """`draw` chooses the test examples."""
    labels = np.random.default_rng(draw).integers(CLASSES, size=n)
    path = beliefs(labels, skill, sharpness, 1000 * seed + len(method))
    halt = torch.tensor(np.random.default_rng(seed).integers(1, STEPS + 1, size=n))
    outcome = Outcome.of(Trajectory(path, halt), torch.tensor(labels))
    folder.mkdir(parents=True)
    header = {
        "ricnet": "0.2.0",
        "config": {"data": "digits", "seed": seed, "method": {"name": method}, **config},
        "data": {"class_names": [str(k) for k in range(CLASSES)]},
    }
    evaluation = {split: report(outcome) for split in ("train", "val", "test")}
    (folder / "config.json").write_text(json.dumps(header))
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "metrics.jsonl").write_text("")
    save_predictions({"val": outcome, "test": outcome}, folder / "predictions.npz")
    return folder


def write_system(root: Path, method: str, seeds: int = 3, folder: str | None = None, **settings: Any) -> list[Path]:
    return [write_run(root / f"{folder or method}-{seed}", method, seed, **settings) for seed in range(seeds)]


def groups_of(*folders: Path) -> list[RunGroup]:
    return group_seeds(read_runs(folders))
