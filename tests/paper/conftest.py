"""Artificial finished runs: rising learning curves, sharpening beliefs, and some wrong answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from made_runs import CLASSES, STEPS, beliefs
from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.evaluate import Outcome, report, save_predictions
from ricnet.report.figures import house_style
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment, Runs, find_system
from ricnet.training.recipes import Facts
from ricnet_paper import Item
from ricnet_paper.kit import read_csv, write_csv
from ricnet_paper.scales import SCALES, Scale

EPOCHS, TEST = 12, 90
MakeRuns = Callable[..., dict[Experiment, list[RunRecord]]]


def record(path: Path, system: str = "ric", seed: int = 0, epochs: int = EPOCHS, **changes: Any) -> RunRecord:
    """A run in memory; only its predictions.npz is a file."""
    rng, found = np.random.default_rng([seed, len(system)]), find_system(system)
    labels = torch.arange(TEST) % CLASSES
    log_beliefs = beliefs(labels, 1 if system == "supervised" else STEPS, 2.5, 0.6, rng)
    halt = torch.tensor(1 + rng.integers(0, 8, TEST)).clamp(max=len(log_beliefs))
    outcome = Outcome.of(Trajectory(log_beliefs, halt), labels)
    path.mkdir(parents=True, exist_ok=True)
    save_predictions({"test": outcome}, path / "predictions.npz")
    config = {
        **{"data": "digits", "preset": "fast", "seed": seed, "optimization": {"epochs": EPOCHS}},
        "calibration": found.after.get("calibration", "none"),
        "method": {"name": found.method or "ric", **found.changes_for(Facts(TEST, CLASSES, side=0)), **found.after},
        "network": {"encoder": "auto", "width": 1.0},
    }
    fields = {
        **{"path": path, "label": system, "version": "0.1.0", "config": config, "hardware": {}, "examples": None},
        "data": {"class_names": [str(k) for k in range(CLASSES)], "input_shape": [1, 8, 8]},
        "metrics": [_epoch(rng, epoch, epochs) for epoch in range(1, epochs + 1)],
        "evaluation": dict.fromkeys(("train", "val", "test"), report(outcome)),
    }
    return RunRecord(**(fields | changes))


def _epoch(rng: np.random.Generator, epoch: int, epochs: int) -> dict[str, Any]:
    """Accuracy rises ahead of confidence, so that the error peaks and falls."""
    progress = 1 - np.exp(-6 * epoch / epochs)

    def measured(ceiling: float) -> dict[str, float]:
        accuracy, ece, gain = np.array([ceiling, 0.48, 1.0]) * progress + 0.01 * rng.normal(size=3)
        scores = {"accuracy": np.clip(accuracy, 0, 1), "ece": abs(0.5 - ece), "nll": 2.4 - 2.3 * progress}
        scores |= {"mean_confidence": np.clip(accuracy - 0.3 * (1 - progress), 0, 1), "normalized_return": gain - 0.1}
        return {**{name: float(value) for name, value in scores.items()}, "mean_steps": 5.0}

    return {"epoch": epoch, "val": measured(0.95), "train_eval": measured(0.99), "test": measured(0.94)}


@pytest.fixture(scope="session")
def scale() -> Scale:
    return SCALES["smoke"]


@pytest.fixture(scope="session")
def make_runs(tmp_path_factory: pytest.TempPathFactory) -> MakeRuns:
    """Runs for experiments: all seeds of each, unless `only` says how many of them finished."""

    def make(
        experiments: Iterable[Experiment], only: int | None = None, **changes: Any
    ) -> dict[Experiment, list[RunRecord]]:
        root = tmp_path_factory.mktemp("runs")
        return {
            one: [record(root / f"{i}-{seed}", one.system, seed, **changes) for seed in one.seeds[:only]]
            for i, one in enumerate(experiments)
        }

    return make


def pick(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rows with these values."""
    for name, value in wanted.items():
        table = table[table[name] == value]
    return table


def through_csv(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The table as read back from its CSV file."""
    write_csv(table, folder / "table.csv")
    return read_csv(folder / "table.csv")


def draw(item: Item, scale: Scale, runs: Runs, folder: Path) -> Figure:
    """Draw an item from its runs through the CSV file, and check the layout of its text."""
    assert item.draw is not None
    figure = item.draw(through_csv(item.tabulate(scale, runs), folder))
    assert figure.get_size_inches()[0] <= 7
    check_words(figure)
    return figure


def check_words(figure: Figure) -> None:
    """No text is cut off, overlaps another or is too small."""
    with house_style():
        figure.draw_without_rendering()
    words = [(text.get_text(), text.get_window_extent()) for text in shown_texts(figure)]
    page = figure.bbox
    for word, box in words:
        inside = page.x0 <= box.x0 + 0.5 and box.x1 <= page.x1 + 0.5 and page.y0 <= box.y0 + 0.5
        assert inside and box.y1 <= page.y1 + 0.5, f"{word!r} is cut off"  # noqa: PT018
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
    """The run with these values of one curve, from epoch 1."""
    metrics = [
        {**entry, split: {**entry[split], quantity: value}} for entry, value in zip(run.metrics, values, strict=True)
    ]
    return replace(run, metrics=metrics)


def scored(run: RunRecord, train: float = 0.99, **test: float) -> RunRecord:
    """The run with these scores on test data, and the same on validation data."""
    split = {**run.test, **test}
    return replace(run, evaluation={"train": {**split, "accuracy": train}, "val": split, "test": split})
