"""Run folders as the trainer writes them, made up: real digits, nearest-mean beliefs that sharpen step by step."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from ricnet.report.page import page_html
from ricnet.report.runs import RunGroup, group_seeds, read_runs

MakeRun = Callable[..., Path]
BINS = 15


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def beliefs_of(x: np.ndarray, y: np.ndarray, steps: int, sharpness: float, seed: int) -> np.ndarray:
    """Nearer means are believed more, with a noise that fades as the steps go on."""
    rng = np.random.default_rng(seed)
    means = np.stack([x[y == k].mean(axis=0) for k in range(10)])
    scores = -((x[:, None] - means) ** 2).sum(axis=-1) / 70
    time = np.arange(1, steps + 1)[:, None, None]
    growth = 1 if steps == 1 else 1 - np.exp(-time / 6)
    noise = rng.normal(size=(steps, *scores.shape)) * 1.5 / time + rng.normal(size=scores.shape) * 0.8
    return log_softmax(sharpness * growth * (scores + noise * (steps > 1))).astype(np.float32)


def values_of(log_beliefs: np.ndarray, seed: int) -> np.ndarray:
    """What is still to gain: the remaining rise of the highest belief, less a small cost."""
    rng = np.random.default_rng(seed)
    peak = np.exp(log_beliefs).max(axis=-1)
    before = np.concatenate([np.full((1, peak.shape[1]), 0.1), peak[:-1]])
    gain = np.log(peak[-1]) - np.log(before)
    return (gain - 0.04 + 0.01 * rng.normal(size=gain.shape)).astype(np.float32)


def halts_of(values: np.ndarray | None, steps: int, rows: int) -> np.ndarray:
    if values is None:
        return np.full(rows, steps)
    negative = np.concatenate([values[1:] < 0, np.ones((1, rows), dtype=bool)])
    return negative.argmax(axis=0) + 1


def scores_of(log_belief: np.ndarray, y: np.ndarray) -> dict[str, float]:
    right, confidence = log_belief.argmax(axis=-1) == y, np.exp(log_belief.max(axis=-1))
    ece = sum(b["n"] * abs(b["accuracy"] - b["confidence"]) for b in bins_of(right, confidence) if b["n"]) / len(y)
    nll = -log_belief[np.arange(len(y)), y].mean()
    return {
        "accuracy": float(right.mean()),
        "ece": float(ece),
        "nll": float(nll),
        "mean_confidence": float(confidence.mean()),
    }


def bins_of(right: np.ndarray, confidence: np.ndarray) -> list[dict[str, Any]]:
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    entries = []
    for b in range(BINS):
        inside = place == b
        mean = [float(right[inside].mean()), float(confidence[inside].mean())] if inside.any() else [None, None]
        edges = {"lower": b / BINS, "upper": (b + 1) / BINS}
        entries.append({**edges, "n": int(inside.sum()), "accuracy": mean[0], "confidence": mean[1]})
    return entries


def split_of(log_beliefs: np.ndarray, y: np.ndarray, halt: np.ndarray) -> dict[str, Any]:
    final = log_beliefs[halt - 1, np.arange(len(y))]
    right, confidence = final.argmax(axis=-1) == y, np.exp(final.max(axis=-1))
    steps = range(1, len(log_beliefs) + 1)
    return {
        **scores_of(final, y),
        "ece_bins": BINS,
        "ece_classwise": 0.01,
        "ece_signed": float(confidence.mean() - right.mean()),
        "brier": float(((np.exp(final) - np.eye(10)[y]) ** 2).sum(axis=-1).mean()),
        "normalized_return": 0.9,
        "mean_steps": float(halt.mean()),
        "mean_steps_correct": float(halt[right].mean()),
        "mean_steps_wrong": float(halt[~right].mean()) if (~right).any() else None,
        "mean_cell_evaluations": float(np.minimum(halt + 1, len(log_beliefs)).mean()),
        "aurc": 0.01,
        "auroc": 0.95,
        "n": len(y),
        "per_step": [{"step": t, **scores_of(log_beliefs[t - 1], y)} for t in steps],
        "reliability": bins_of(right, confidence),
        "halting": [
            {"step": t, "correct": int((right & (halt == t)).sum()), "wrong": int((~right & (halt == t)).sum())}
            for t in steps
        ],
    }


def metrics_of(epochs: int, final: dict[str, float], seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    entries = []
    for epoch in range(1, epochs + 1):
        rest = np.exp(-5 * epoch / epochs) * (1 + 0.15 * rng.normal())
        val = {
            "accuracy": final["accuracy"] * (1 - 0.6 * rest),
            "ece": final["ece"] + 0.3 * abs(rest),
            "nll": final["nll"] + 2 * abs(rest),
        }
        entries.append({"epoch": epoch, "update": 9 * epoch, "seconds": 0.5 * epoch, "lr": 1e-3, "val": val})
    return entries


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return partial(write_run, tmp_path)


@pytest.fixture(scope="session")
def systems(tmp_path_factory: pytest.TempPathFactory) -> list[RunGroup]:
    """Three seeds each of RIC, SL and ACT; tests read them and leave them alone."""
    make = partial(write_run, tmp_path_factory.mktemp("systems"))
    methods = ("ric", "supervised", "act")
    return group_seeds(read_runs([make(f"{method}{k}", method, seed=k) for method in methods for k in range(3)]))


@pytest.fixture(scope="session")
def comparison_page(systems: list[RunGroup]) -> str:
    return page_html(systems)


def write_run(
    root: Path,
    folder: str = "run",
    method: str = "ric",
    seed: int = 0,
    class_names: list[str] | None = None,
    tabular: bool = False,
    worse: bool = False,
    **settings: Any,
) -> Path:
    """`worse` makes the steps of RIC in the opposite order: each forgets some of what the first one knew, and the value
    promises a gain to the end."""
    x, y = load_digits(return_X_y=True)
    x, y = x[-450:], y[-450:].astype(np.int64)
    steps = 1 if method == "supervised" else 20
    log_beliefs = beliefs_of(x, y, steps, 1.1 if method == "supervised" else 0.8, seed)
    values = values_of(log_beliefs, seed) if method == "ric" else None
    if worse:
        log_beliefs, values = log_beliefs[::-1], np.ones(log_beliefs.shape[:2], dtype=np.float32)
    halt = halts_of(values, steps, len(y))
    split = split_of(log_beliefs, y, halt)
    config = {
        **{"data": "digits", "preset": "fast", "seed": seed, "encoder": "conv", "epochs": 40},
        **{"batch_size": 128, "lr": 0.003, "weight_decay": 0.05, "method": {"name": method, "gamma": 0.8}},
        **settings,
    }
    header = {
        "ricnet": "0.1.0",
        "config": config,
        "data": {
            "input_shape": [1, 8, 8],
            "class_names": class_names or [str(k) for k in range(10)],
            "rows": {"train": 1212, "val": 135, "test": 450},
        },
        "hardware": {"device": "cpu", "name": "a CPU", "torch": "2.13.0", "python": "3.11.7", "threads": 2},
    }
    path = root / folder
    path.mkdir(parents=True)
    metrics = metrics_of(40, split, seed + len(method))
    evaluation = {"train": split, "val": split, "test": split, "selected_epoch": 31, "seconds": 61.0}
    (path / "config.json").write_text(json.dumps(header))
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    (path / "evaluation.json").write_text(json.dumps(evaluation))
    write_examples(path / "examples.npz", x, y, log_beliefs, values, halt, tabular)
    write_predictions(path / "predictions.npz", y, log_beliefs, values, halt)
    return path


def write_examples(
    path: Path,
    x: np.ndarray,
    y: np.ndarray,
    log_beliefs: np.ndarray,
    values: np.ndarray | None,
    halt: np.ndarray,
    tabular: bool,
) -> None:
    answers = log_beliefs[halt - 1, np.arange(len(y))].argmax(axis=-1)
    rows = np.concatenate([np.arange(12), np.flatnonzero(answers != y)[:2]])
    images = (x[rows] * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    arrays = {
        "x": ((x[rows] - 8) / 8).astype(np.float32)[:, ::4] if tabular else images,
        "y": y[rows],
        "kind": np.where(answers[rows] == y[rows], np.arange(len(rows)) % 2, 2),
        "log_beliefs": log_beliefs[:, rows],
        "halt_step": halt[rows],
    }
    np.savez(path, **arrays, **({} if values is None else {"values": values[:, rows]}))


def write_predictions(
    path: Path, y: np.ndarray, log_beliefs: np.ndarray, values: np.ndarray | None, halt: np.ndarray
) -> None:
    n = np.arange(len(y))
    arrays = {
        "labels": y,
        "log_beliefs": log_beliefs[halt - 1, n],
        "halt_step": halt,
        "cell_evaluations": np.minimum(halt + 1, len(log_beliefs)),
        "step_scores": log_beliefs[:, n, y],
        "step_confidence": np.exp(log_beliefs.max(axis=-1)),
        "step_correct": log_beliefs.argmax(axis=-1) == y,
        "step_entropy": -(np.exp(log_beliefs) * log_beliefs).sum(axis=-1),
        **({} if values is None else {"values": values}),
    }
    np.savez(path, **{f"{split}_{name}": array for split in ("val", "test") for name, array in arrays.items()})


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
