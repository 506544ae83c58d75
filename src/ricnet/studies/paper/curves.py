"""How something went over training: one row an epoch, mean and interval over the seeds."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ricnet.errors import RicnetError
from ricnet.report.runs import RunRecord
from ricnet.studies.paper.rows import Rows
from ricnet.studies.paper.samples import summaries

SPLITS = {"train": "train_eval", "validation": "val", "test": "test"}
"""What a figure calls a split, and what metrics.jsonl does; its own `train` is of augmented inputs."""


def measured(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """Those that have measured every split, after every epoch or now and then. Where none has, all: they say so."""
    return [run for run in runs if _has_all(run)] or runs


def _has_all(run: RunRecord) -> bool:
    return all(any(entry.get(key) for entry in run.metrics) for key in SPLITS.values())


def curve_rows(runs: Sequence[RunRecord], split: str, quantity: str) -> Rows:
    epochs, tracks = curves(runs, split, quantity)
    means = zip(epochs, summaries(tracks), strict=True)
    return [{"split": split, "quantity": quantity, "epoch": epoch, **row} for epoch, row in means]


def curves(runs: Sequence[RunRecord], split: str, quantity: str) -> tuple[list[int], Float[np.ndarray, "seeds epochs"]]:
    """The epochs that any run has measured, and what each run measured there; NaN where it did not."""
    tracks = [_track(run, SPLITS[split], quantity) for run in runs]
    epochs = sorted(set().union(*tracks))
    return epochs, np.array([[track.get(epoch, np.nan) for epoch in epochs] for track in tracks])


def _track(run: RunRecord, key: str, quantity: str) -> dict[int, float]:
    scores = {entry["epoch"]: (entry.get(key) or {}).get(quantity) for entry in run.metrics}
    track = {epoch: float(score) for epoch, score in scores.items() if score is not None}
    if not track:
        raise RicnetError(f"{run.path} has not measured {key}.{quantity}: train it again with measure_all.")
    return track
