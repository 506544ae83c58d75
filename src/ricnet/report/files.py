"""Reads the files of a run (a folder, or a JSON file of scripts/archive_results.py) and checks their contents.

Files are untrusted: every entry that a report uses is checked for its type and range.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ricnet import io
from ricnet.errors import RicnetError
from ricnet.evaluation.examples import Examples, read_examples
from ricnet.io import Absent, Maybe, is_count, is_number, is_text, misfit, printable, read_json, run_config

Files = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Examples | None]
"""Contents of config.json, metrics.jsonl, evaluation.json and examples.npz."""


# Checks of single values


def is_share(value: Any) -> bool:
    return is_number(value) and bool(0 <= value <= 1)


def is_positive(value: Any) -> bool:
    return is_count(value) and bool(value > 0)


def are_counts(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(is_count, value.values()))


def are_temperatures(value: object) -> bool:
    """One temperature, or with exits one per step."""
    return is_number(value) or (isinstance(value, list) and all(map(is_number, value)))


def is_setting(value: object, depth: int = 2) -> bool:
    """A value in the configuration that a table can show; only the configuration and its parts are nested."""
    if isinstance(value, Mapping):
        return depth > 0 and all(is_setting(each, depth - 1) for each in value.values())
    return value is None or isinstance(value, str | bool) or is_number(value)


def is_measure(value: object) -> bool:
    """An entry of metrics.jsonl: a number or a table of numbers, possibly missing.

    Any finite number is accepted, since diverging training writes large ones.
    """
    if isinstance(value, Mapping):
        return all(each is None or io.is_finite(each) for each in value.values())
    return value is None or isinstance(value, str | bool) or io.is_finite(value)


def is_collapse(value: object) -> bool:
    """An entry of `collapses` in an archive."""
    if not isinstance(value, Mapping) or not is_positive(value.get("epoch")) or not all(map(is_number, value.values())):
        return False
    pairs = (("accuracy", "best_accuracy"), ("value_loss", "median_value_loss"))
    return all((name in value) == (reference in value) for name, reference in pairs)


def are_baselines(value: object) -> bool:
    return isinstance(value, Mapping) and all(misfit(entry, BASELINE) is None for entry in value.values())


# Entries of each file, by name


def _each(check: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), check)


SPLIT = {
    **_each(is_share, "accuracy ece mean_confidence"),
    **_each(is_number, "nll brier"),
    **_each(is_positive, "n ece_bins"),
    **_each(Maybe(is_share), "base_rate roc_auc average_precision balanced_accuracy"),
    **_each(Maybe(is_share), "mean_cost mean_cost_correct mean_cost_wrong"),
    **_each(Maybe(is_number), "base_rate_nll mean_cell_evaluations"),
    **_each(Maybe(is_number), "mean_steps mean_steps_correct mean_steps_wrong"),
    "per_step": [
        {
            **_each(is_share, "accuracy ece mean_confidence"),
            **{"step": is_positive, "nll": is_number, "cost": Maybe(is_share)},
        }
    ],
    "reliability": [{**_each(is_share, "lower upper"), **_each(Maybe(is_share), "accuracy confidence"), "n": is_count}],
    "halting": [_each(is_count, "step correct wrong")],
}
HALTING = {
    **_each(is_number, "halt_threshold nll mean_steps nll_before steps_before"),
    **_each(is_positive, "max_steps n"),
    **_each(Maybe(is_share), "mean_cost budget"),
    **_each(Maybe(is_number), "gain gain_error"),
    "reached": io.is_switch,
    "kept": Maybe(io.is_switch),
}
CALIBRATION = {
    "temperature": are_temperatures,
    **_each(is_number, "nll_before nll_after"),
    **_each(Maybe(is_number), "gain gain_error"),
    **_each(io.is_switch, "found kept"),
    "n": is_positive,
}
BASELINE = {
    **_each(is_share, "accuracy ece"),
    **_each(is_number, "nll brier seconds advantage"),
    **_each(Maybe(is_share), "roc_auc average_precision balanced_accuracy"),
    **_each(is_positive, "n rows"),
    "advantage_error": Maybe(is_number),
    "library": is_text,
}
EVALUATION = {
    "train": SPLIT,
    "test": Maybe(SPLIT),
    "raw": Maybe({"train": SPLIT, "test": Maybe(SPLIT)}),
    "fitted": Maybe({"halting": Maybe(HALTING), "calibration": Maybe(CALIBRATION)}),
    "baselines": Maybe(are_baselines),
    "baselines_note": Maybe(is_text),
    **_each(Maybe(io.are_texts), "notes hints"),
    "selected_epoch": Maybe(is_count),
    "seconds": Maybe(is_number),
}
METRICS = {
    "epoch": is_count,
    "update": Maybe(is_count),
    **_each(Maybe(is_number), "images_per_second training_seconds"),
    **_each(Maybe({}), "train val test"),
}
HEADER = {
    "config": {
        "data": is_text,
        "method": {"name": is_text, "halt_threshold": Maybe(is_number)},
        "seed": Absent(is_count),
        "label_noise": Maybe(is_share),
        "optimization": Absent({"batch_size": Absent(is_positive)}),
        "network": Absent({"steps_per_exit": Absent(is_positive)}),
    },
    "data": {"class_names": [is_text], "rows": Absent(are_counts), "input_shape": Absent([is_positive])},
    "hardware": Absent({}),
    "derived_from": Maybe(is_text),
    "collapses": Absent([is_collapse]),
}


# Reading


def is_archive(path: Path) -> bool:
    return path.suffix == ".json" and not path.is_dir()


def read_folder(folder: Path) -> Files:
    path = run_config(folder)
    header = _checked_header(read_json(path), path)
    if not (folder / "evaluation.json").is_file():
        raise RicnetError(f"The run {folder} is not finished: resume it with `ric train --out {folder} --resume`.")
    evaluation = _checked_evaluation(read_json(folder / "evaluation.json"), folder / "evaluation.json")
    examples = read_examples(folder / "examples.npz", len(header["data"]["class_names"]))
    return header, _read_metrics(folder / "metrics.jsonl"), evaluation, examples


def read_archive(path: Path) -> Files:
    entry = read_json(path)
    header, evaluation = _checked_header(entry, path), _checked_evaluation(entry.get("evaluation"), path)
    try:
        metrics = [_checked_metrics(row) for row in to_rows(entry.get("metrics", {}))]
    except (ValueError, TypeError, AttributeError) as error:
        raise RicnetError(f"{path}: the columns of `metrics` do not match: archive the run again.") from error
    return header, metrics, evaluation, None


def _checked_header(header: dict[str, Any], path: Path) -> dict[str, Any]:
    misplaced = misfit(header, HEADER) or ("" if is_setting(header["config"]) else "config")
    if misplaced:
        raise RicnetError(f"{path}: {misplaced} is missing or invalid; restore it or train again.")
    return {name: _printable(header[name]) for name in ("ricnet", *HEADER) if name in header}


def _printable(entry: Any) -> Any:
    """The entry with control characters removed from all texts."""
    if isinstance(entry, dict):
        return {printable(key): _printable(value) for key, value in entry.items()}
    if isinstance(entry, list):
        return [_printable(value) for value in entry]
    return printable(entry).replace("\n", " ") if isinstance(entry, str) else entry


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [line for line in io.read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise RicnetError(f"{path} cannot be read ({error}): restore it or train again.") from error
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(_checked_metrics(io.parse_json(line)))
        except ValueError as error:
            raise RicnetError(f"Line {number} of {path} does not hold the metrics of an epoch: delete it.") from error
    return entries


def _checked_metrics(entry: Any) -> dict[str, Any]:
    if misfit(entry, METRICS) is not None or not all(map(is_measure, entry.values())):
        raise ValueError("these are not the metrics of an epoch")
    return {name: value for name, value in entry.items() if value is not None}


def _checked_evaluation(evaluation: Any, path: Path) -> dict[str, Any]:
    splits = evaluation if isinstance(evaluation, dict) else {}
    nothing_held_out = "test" in splits and splits["test"] is None
    form = EVALUATION | {"val" if nothing_held_out else "test": SPLIT}
    if misplaced := misfit(splits, form):
        raise RicnetError(
            f"{path}: {misplaced} is missing or invalid; restore it, or train again if another version wrote it."
        )
    checked: dict[str, Any] = _printable(splits)
    return checked


def to_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Columns of equal length as rows without missing values; column `val.nll` becomes `nll` within `val`."""
    rows = []
    for values in zip(*columns.values(), strict=True):
        row: dict[str, Any] = {}
        for name, value in zip(columns, values, strict=True):
            if value is not None:
                *path, last = name.split(".")
                place = row
                for key in path:
                    place = place.setdefault(key, {})
                place[last] = value
        rows.append(row)
    return rows
