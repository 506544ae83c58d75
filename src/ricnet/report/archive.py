"""A run as one JSON file: what it was, what it cost and what came out, small enough to be published with the code.

Weights and examples stay behind. Of the predictions the log-score of every test example is kept, so that two runs can
still be compared example by example. `read_run` reads such a file like a folder, and `ric train --config` repeats it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ricnet.errors import RicnetError
from ricnet.evaluation.predictions import read_predictions
from ricnet.io import read_json, write_atomically
from ricnet.report.figures import thin
from ricnet.report.forms import Maybe, is_number, misfit
from ricnet.report.pace import clock_of, images_per_second, training_seconds
from ricnet.report.runs import RunRecord, is_archive, read_run, to_columns
from ricnet.report.statistics import scores

UNIT = 1e-4
"""Nats; log-scores are whole numbers of them, which takes half the room that decimals would."""
DIGITS, CURVE_DIGITS = 6, 4
"""That are kept of a number, and of one among a hundred of a curve."""


def archive_run(folder: str | Path, target: Path) -> Path:
    """Write a finished run's file into `target`, under the name of its folder; one that is there is replaced."""
    run = read_run(folder)
    path = target / f"{run.path.resolve().name}.json"
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda draft: _write(draft, archive_text(run)))
    return path


def archive_text(run: RunRecord) -> str:
    """One line an entry of the outer two levels: long enough to be compact, short enough for a diff."""
    entries = {name: entry for name, entry in _entries(run).items() if entry is not None}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(entry)}" for name, entry in entries.items()) + "\n}\n"


def log_scores(run: RunRecord) -> Float[np.ndarray, "n"] | None:
    """log a_y of every test example at its halt; None where the run did not keep it."""
    if is_archive(run.path):
        return _kept_scores(read_json(run.path).get("log_scores"), run.path)
    if not (run.path / "predictions.npz").is_file():
        return None
    return -scores(read_predictions(run.path))[:, 1]


def _kept_scores(kept: object, path: Path) -> Float[np.ndarray, "n"] | None:
    if misfit(kept, Maybe([is_number])) is not None:
        raise RicnetError(f"{path} has log_scores that are no numbers: archive the run again.")
    return None if kept is None else UNIT * np.array(kept, dtype=np.float64)


def _entries(run: RunRecord) -> dict[str, Any]:
    kept = log_scores(run)
    return {
        "ricnet": run.version,
        "config": run.config | {"data": Path(run.data_name).name},  # a path says nothing to anybody else
        "data": run.data,
        "hardware": run.hardware,
        "derived_from": run.derived_from,
        "speed": _rounded(
            {
                "seconds": run.seconds,
                "training_seconds": training_seconds(run),
                "images_per_second": images_per_second(run),
            },
            DIGITS,
        ),
        "evaluation": _rounded(run.evaluation, DIGITS),
        "metrics": _rounded(to_columns(_curves(run)), CURVE_DIGITS),
        "log_scores": None if kept is None else np.rint(_checked(run, kept) / UNIT).astype(int).tolist(),
    }


def _checked(run: RunRecord, kept: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """The predictions beside an evaluation may be of another run; nobody could tell once they are published."""
    if abs(-kept.mean() - run.test["nll"]) > 1e-3:
        raise RicnetError(
            f"{run.path / 'predictions.npz'} has NLL {-kept.mean():.4f} where evaluation.json says "
            f"{run.test['nll']:.4f}: they are of different runs; train this one again."
        )
    return kept


def _curves(run: RunRecord) -> list[dict[str, Any]]:
    """The epochs that a figure can show, the selected one among them; none for a run that was not trained."""
    if run.derived_from is not None or not run.metrics:
        return []
    clock, selected = clock_of(run), run.evaluation.get("selected_epoch")
    shown = {run.metrics[place]["epoch"] for place in thin(len(run.metrics))} | {selected}
    return [
        entry | ({"training_seconds": clock[entry["epoch"]]} if clock else {})
        for entry in run.metrics
        if entry["epoch"] in shown
    ]


def _rounded(entry: Any, digits: int) -> Any:
    if isinstance(entry, Mapping):
        return {key: _rounded(value, digits) for key, value in entry.items()}
    if isinstance(entry, list):
        return [_rounded(value, digits) for value in entry]
    return float(f"{entry:.{digits}g}") if isinstance(entry, float) else entry


def _lines(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return _compact(entry)
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_compact(value)}" for key, value in entry.items()) + "\n}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _write(draft: Path, text: str) -> None:
    draft.write_text(text, encoding="utf-8")
