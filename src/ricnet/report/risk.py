"""How much does it err where it dares to answer? The risk–coverage curve of selective prediction."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from ricnet.evaluation.metrics import risk_coverage
from ricnet.evaluation.predictions import read_predictions
from ricnet.report.figures import (
    by_task,
    draw_band,
    legend_below,
    looks,
    overlay_grid,
    percent_ticks,
    styled,
    task_title,
)
from ricnet.report.runs import RunGroup, RunRecord

COVERAGE = np.arange(1, 201) / 200


@styled
def risk_figure(groups: Sequence[RunGroup]) -> Figure:
    """A panel for each data set, of the runs that kept their answers."""
    look, shown = looks(groups), with_predictions(groups)[0]
    columns = by_task(shown)
    figure, panels = overlay_grid(len(columns))
    for ax, alike in zip(panels, columns, strict=True):
        for group in alike:
            risks = np.stack([risk_of(run) for run in group.runs])
            draw_band(ax, COVERAGE, risks, look[group.label].colour, look[group.label].dash, ceiling=1.0)
        ax.set(title=task_title(alike[0]), xlabel="answered, the surest first", xlim=(0, 1), ylim=(0, None))
        ax.xaxis.set_major_formatter(percent_ticks())
        ax.yaxis.set_major_formatter(percent_ticks())
        ax.set_ylabel("errors among the answered")
    legend_below(figure, [look[group.label] for group in shown])
    return figure


def with_predictions(groups: Sequence[RunGroup]) -> tuple[list[RunGroup], list[RunRecord]]:
    """The groups as far as their runs kept their answers, and the runs that did not."""
    missing = [run for group in groups for run in group.runs if not _has_predictions(run)]
    kept = [replace(group, runs=tuple(filter(_has_predictions, group.runs))) for group in groups]
    return [group for group in kept if group.runs], missing


def _has_predictions(run: RunRecord) -> bool:
    return (run.path / "predictions.npz").is_file()


def risk_of(run: RunRecord) -> Float[np.ndarray, "coverage"]:
    found = read_predictions(run.path, "test")
    return risk_at(COVERAGE, found.log_beliefs.max(axis=1), found.log_beliefs.argmax(axis=1) == found.labels)


def risk_at(
    coverage: Float[np.ndarray, "coverage"], sureness: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "coverage"]:
    """The share of errors among the surest ⌈coverage · n⌉ answers."""
    risk = risk_coverage(torch.from_numpy(sureness), torch.from_numpy(correct)).numpy()
    answered = np.ceil(coverage * len(risk) - 1e-9).astype(int).clip(1)  # 0.07 · 100 is a little more than 7
    return np.asarray(risk[answered - 1])
