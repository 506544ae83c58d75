"""Finished runs, made up: learning curves that rise, beliefs that sharpen, some answers that stay wrong."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import SCALES, Experiment, Runs, Scale, find_system
from ricnet.studies.paper import Item
from ricnet.studies.paper.kit import read_csv, write_csv

BINS, CLASSES, STEPS, TEST = 15, 10, 20, 90
MakeRuns = Callable[..., dict[Experiment, list[RunRecord]]]


def record(path: Path, system: str = "ric", seed: int = 0, epochs: int = 12, **changes: Any) -> RunRecord:
    """A run in memory; only its predictions.npz is a file."""
    rng = np.random.default_rng([seed, len(system)])
    steps = 1 if system == "supervised" else STEPS
    labels = np.arange(TEST) % CLASSES
    log_beliefs = _beliefs(rng, labels, steps)
    halt = np.minimum(steps, 1 + rng.integers(0, 8, TEST))
    _save_predictions(path, labels, log_beliefs, halt)
    split = _split(labels, log_beliefs, halt)
    fields = {
        "path": path,
        "label": system,
        "version": "0.1.0",
        "config": _config(system, seed),
        "data": {"class_names": [str(k) for k in range(CLASSES)], "input_shape": [1, 8, 8]},
        "hardware": {},
        "metrics": [_epoch(rng, epoch, epochs) for epoch in range(1, epochs + 1)],
        "evaluation": {"train": split, "val": split, "test": split},
        "examples": None,
    }
    return RunRecord(**(fields | changes))


def _config(system: str, seed: int) -> dict[str, Any]:
    found = find_system(system)
    return {
        "data": "digits",
        "preset": "fast",
        "seed": seed,
        "calibration": found.after.get("calibration", "none"),
        "method": {"name": found.method, **found.changes_for(CLASSES), **found.after},
        "network": {"encoder": "auto", "width": 1.0},
        "optimization": {"epochs": 12},
    }


def _beliefs(rng: np.random.Generator, labels: np.ndarray, steps: int) -> np.ndarray:
    scores = rng.normal(size=(len(labels), CLASSES)) + 2.5 * np.eye(CLASSES)[labels]
    growth = (1 - np.exp(-np.arange(1, steps + 1) / 4)) if steps > 1 else np.ones(1)
    logits = 1.5 * growth[:, None, None] * scores
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def _save_predictions(path: Path, labels: np.ndarray, log_beliefs: np.ndarray, halt: np.ndarray) -> None:
    path.mkdir(parents=True, exist_ok=True)
    rows = np.arange(len(labels))
    beliefs = np.exp(log_beliefs)
    arrays = {
        "labels": labels,
        "log_beliefs": log_beliefs[halt - 1, rows],
        "halt_step": halt,
        "cell_evaluations": np.minimum(halt + 1, len(log_beliefs)),
        "step_scores": log_beliefs[:, rows, labels],
        "step_confidence": beliefs.max(-1),
        "step_correct": log_beliefs.argmax(-1) == labels,
        "step_entropy": -(beliefs * log_beliefs).sum(-1),
    }
    np.savez(path / "predictions.npz", **{f"test_{name}": array for name, array in arrays.items()})


def _split(labels: np.ndarray, log_beliefs: np.ndarray, halt: np.ndarray) -> dict[str, Any]:
    final = log_beliefs[halt - 1, np.arange(len(labels))]
    right, confidence = final.argmax(-1) == labels, np.exp(final.max(-1)).astype(float)
    return {
        "accuracy": float(right.mean()),
        "ece": float(abs(right.mean() - confidence.mean())),
        "ece_bins": BINS,
        "ece_signed": float(confidence.mean() - right.mean()),
        "nll": float(-final[np.arange(len(labels)), labels].mean()),
        "mean_confidence": float(confidence.mean()),
        "mean_steps": float(halt.mean()),
        "n": len(labels),
        "per_step": [
            {"step": t, "ece": 0.4 / t, "mean_confidence": float(np.exp(log_beliefs[t - 1].max(-1)).mean())}
            for t in range(1, len(log_beliefs) + 1)
        ],
        "reliability": _bins(right, confidence),
        "halting": [
            {"step": t, "correct": int((right & (halt == t)).sum()), "wrong": int((~right & (halt == t)).sum())}
            for t in range(1, len(log_beliefs) + 1)
        ],
    }


def _bins(right: np.ndarray, confidence: np.ndarray) -> list[dict[str, Any]]:
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    entries = []
    for b in range(BINS):
        inside = place == b
        mean = [float(right[inside].mean()), float(confidence[inside].mean())] if inside.any() else [None, None]
        edges = {"lower": b / BINS, "upper": (b + 1) / BINS, "n": int(inside.sum())}
        entries.append({**edges, "accuracy": mean[0], "confidence": mean[1]})
    return entries


def _epoch(rng: np.random.Generator, epoch: int, epochs: int) -> dict[str, Any]:
    progress = 1 - np.exp(-6 * epoch / epochs)

    def measured(ceiling: float) -> dict[str, float]:
        accuracy = float(np.clip(ceiling * progress + 0.01 * rng.normal(), 0, 1))
        ece = abs(0.5 * (1 - progress) - 0.02 * progress + 0.01 * rng.normal())
        confidence = float(np.clip(accuracy - 0.3 * (1 - progress), 0, 1))
        return {
            "accuracy": accuracy,
            "ece": float(ece),
            "nll": 2.3 * (1 - progress) + 0.1,
            "mean_confidence": confidence,
            "normalized_return": float(progress - 0.1 + 0.02 * rng.normal()),
            "mean_steps": 5.0,
        }

    return {"epoch": epoch, "val": measured(0.95), "train_eval": measured(0.99), "test": measured(0.94)}


@pytest.fixture
def scale() -> Scale:
    return SCALES["smoke"]


@pytest.fixture
def make_runs(tmp_path: Path) -> MakeRuns:
    """Runs for experiments: all seeds of each, unless `only` says how many of them finished."""

    def make(
        experiments: Iterable[Experiment], only: int | None = None, **changes: Any
    ) -> dict[Experiment, list[RunRecord]]:
        return {
            one: [record(tmp_path / f"{i}-{seed}", one.system, seed, **changes) for seed in one.seeds[:only]]
            for i, one in enumerate(experiments)
        }

    return make


def pick(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """The rows that say all of this."""
    for name, value in wanted.items():
        table = table[table[name] == value]
    return table


def through_csv(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """What a figure is drawn from."""
    write_csv(table, folder / "table.csv")
    return read_csv(folder / "table.csv")


def draw(item: Item, scale: Scale, runs: Runs, folder: Path) -> Figure:
    """From runs to the figure, by way of the CSV file, with a look at how its words stand."""
    assert item.draw is not None
    figure = item.draw(through_csv(item.tabulate(scale, runs), folder))
    assert figure.get_size_inches()[0] <= 7
    check_words(figure)
    return figure


def check_words(figure: Figure) -> None:
    """No word is cut off, none runs into another, none is too small to read. The figure has been laid out."""
    words = [(text.get_text(), text.get_window_extent()) for text in shown_texts(figure)]
    page = figure.bbox
    for word, box in words:
        assert page.x0 - 0.5 <= box.x0, f"{word!r} is cut off"
        assert box.x1 <= page.x1 + 0.5, f"{word!r} is cut off"
        assert page.y0 - 0.5 <= box.y0, f"{word!r} is cut off"
        assert box.y1 <= page.y1 + 0.5, f"{word!r} is cut off"
    for i, (word, box) in enumerate(words):
        for other, place in words[i + 1 :]:
            assert not _meet(box, place), f"{word!r} runs into {other!r}"


def shown_texts(figure: Figure) -> list[Text]:
    outside = {label for ax in figure.axes for label in _unseen_labels(ax)}
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    shown = [text for text in texts if text.get_text().strip() and text not in outside and _axes_on(text)]
    assert all(text.get_fontsize() >= 6.5 for text in shown)
    return shown


def _axes_on(text: Text) -> bool:
    return text.axes is None or text.axes.axison or text in text.axes.texts


def _unseen_labels(ax: Any) -> list[Text]:
    """Labels of ticks that lie beyond the panel; they are made but not drawn."""
    unseen = []
    for axis, (low, high) in ((ax.xaxis, sorted(ax.get_xlim())), (ax.yaxis, sorted(ax.get_ylim()))):
        slack = 1e-9 * (high - low)
        for tick in [*axis.majorTicks, *axis.minorTicks]:
            if not low - slack <= tick.get_loc() <= high + slack:
                unseen += [tick.label1, tick.label2]
    return unseen


def _meet(a: Bbox, b: Bbox) -> bool:
    return a.x0 + 0.5 < b.x1 and b.x0 + 0.5 < a.x1 and a.y0 + 0.5 < b.y1 and b.y0 + 0.5 < a.y1


def texts_of(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in shown_texts(figure))


def with_curve(run: RunRecord, split: str, quantity: str, values: Sequence[float]) -> RunRecord:
    """The run with one of its curves given, epoch 1 first."""
    metrics = [
        {**entry, split: {**entry[split], quantity: value}} for entry, value in zip(run.metrics, values, strict=True)
    ]
    return replace(run, metrics=metrics)


def scored(run: RunRecord, train: float = 0.99, **test: float) -> RunRecord:
    """The run with these scores on test data, and the same on validation data."""
    split = {**run.test, **test}
    return replace(run, evaluation={"train": {**split, "accuracy": train}, "val": split, "test": split})
