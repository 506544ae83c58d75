"""Archive finished runs: one JSON file each, small enough for the repository.

    python scripts/archive_results.py RUN [RUN ...] --to results/NAME

Weights and examples are not archived. Of the predictions, the log-score of each test example is kept, so that two runs
can be compared example by example. `ric report` reads such a file like a run folder, `ric train --config` repeats the
run, and `python scripts/write_results.py` writes its table into README.md and docs/results.md.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import read_predictions
from ricnet.io import read_json, write_atomically
from ricnet.report.figures import thin
from ricnet.report.files import is_archive
from ricnet.report.names import flatten
from ricnet.report.runs import RunRecord, read_run
from ricnet.report.statistics import scores

UNIT = 1e-4
"""Unit of stored log-scores, in nats: integers take half the space of decimals."""
DIGITS, CURVE_DIGITS = 6, 4
"""Significant digits of single numbers, and of the points of a curve."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder that ric train or ric compare wrote")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder for the files")
    arguments = parser.parse_args()
    try:
        for run in arguments.runs:
            path = archive_run(run, arguments.to)
            print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    except RicnetError as error:
        sys.exit(f"archive_results: {error}")


def archive_run(folder: str | Path, target: Path) -> Path:
    """Write the file of a finished run into `target`, named after its folder; an existing file is replaced."""
    run = read_run(folder)
    path = target / f"{run.path.resolve().name}.json"
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda draft: _write(draft, archive_text(run)))
    return path


def archive_text(run: RunRecord) -> str:
    """JSON with one line per entry of the outer two levels: compact, but with readable diffs."""
    entries = {name: entry for name, entry in _entries(run).items() if entry is not None}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(entry)}" for name, entry in entries.items()) + "\n}\n"


def log_scores(run: RunRecord) -> Float[np.ndarray, "n"] | None:
    """log a_y of each test example at its halt; None if the run did not store it."""
    if is_archive(run.path):
        return _kept_scores(read_json(run.path).get("log_scores"), run.path)
    if not (run.path / "predictions.npz").is_file():
        return None
    return -scores(read_predictions(run.path))[:, 1]


def _kept_scores(kept: object, path: Path) -> Float[np.ndarray, "n"] | None:
    if kept is None:
        return None
    try:
        numbers = np.array(kept)  # checked as a whole: there are ten thousand
    except ValueError:  # lists of different lengths
        numbers = np.array([])
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all():
        raise RicnetError(f"{path} has log_scores that are not numbers: archive the run again.")
    return UNIT * numbers.astype(np.float64)


def _entries(run: RunRecord) -> dict[str, Any]:
    kept = log_scores(run)
    return {
        "ricnet": run.version,
        "config": run.config | {"data": Path(run.data_name).name},  # local paths mean nothing elsewhere
        "data": run.data,
        "hardware": run.hardware,
        "derived_from": run.derived_from,
        "collapses": _rounded(list(run.collapses), CURVE_DIGITS) or None,  # found in all epochs, not only those kept
        "speed": _rounded(
            {
                "seconds": run.seconds,
                "training_seconds": run.training_seconds,
                "images_per_second": run.images_per_second,
            },
            DIGITS,
        ),
        "evaluation": _rounded(run.evaluation, DIGITS),
        "metrics": _rounded(to_columns(_curves(run)), CURVE_DIGITS),
        "log_scores": None if kept is None else np.rint(_checked(run, kept) / UNIT).astype(int).tolist(),
    }


def _checked(run: RunRecord, kept: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Check that predictions and evaluation are of the same run."""
    if abs(-kept.mean() - run.test["nll"]) > 1e-3:
        raise RicnetError(
            f"{run.path / 'predictions.npz'} has NLL {-kept.mean():.4f} where evaluation.json says "
            f"{run.test['nll']:.4f}: they are of different runs; train this one again."
        )
    return kept


def _curves(run: RunRecord) -> list[dict[str, Any]]:
    """The epochs that a figure can show, the selected one among them; none for a run that was not trained. With
    `--measure-every` only some epochs were measured on all data; these are thinned separately."""
    if run.derived_from is not None or not run.metrics:
        return []
    clock, selected = run.clock, run.evaluation.get("selected_epoch")
    measured = [entry for entry in run.metrics if "test" in entry]
    shown = {rows[place]["epoch"] for rows in (run.metrics, measured) for place in thin(len(rows))} | {selected}
    return [
        entry | ({"training_seconds": clock[entry["epoch"]]} if clock else {})
        for entry in run.metrics
        if entry["epoch"] in shown
    ]


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A column for each name that any row has; None where a row does not have it."""
    flat = [flatten(row) for row in rows]
    return {name: [row.get(name) for row in flat] for name in dict.fromkeys(name for row in flat for name in row)}


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


if __name__ == "__main__":
    main()
