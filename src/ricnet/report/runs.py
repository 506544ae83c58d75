"""What a run left behind, read back and checked: the only file of the report that opens a run's folder.

First what its files must look like, then the run itself, then runs that differ in their seed alone, and what runs are
called, the same in every table, figure and page.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from ricnet.data.columns import Columns, columns_from_json
from ricnet.errors import RicnetError, listing
from ricnet.evaluation.collapse import Collapse, collapses, summary
from ricnet.evaluation.evaluate import Examples, Outcome, read_examples, read_predictions
from ricnet.io import (
    FIGURE,
    MARK,
    TABLE,
    Absent,
    Maybe,
    are_texts,
    is_count,
    is_finite,
    is_number,
    is_switch,
    is_text,
    misfit,
    parse_json,
    printable,
    read_json,
    read_text,
    short,
    shown_name,
    user_path,
    without_folder,
)
from ricnet.methods import METHODS
from ricnet.methods.archive import modern_method

DEEPEST = 2
"""Tables within one another: a configuration, and its method."""


def is_share(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def is_positive(value: object) -> bool:
    return is_count(value) and value > 0  # type: ignore[operator]


def are_counts(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(is_count, value.values()))


def are_temperatures(value: object) -> bool:
    """One, or with exits one for each step."""
    return is_number(value) or (isinstance(value, list) and all(map(is_number, value)))


def is_setting(value: object, depth: int = DEEPEST) -> bool:
    """A value of the configuration: nothing that a table could not show."""
    if isinstance(value, Mapping):
        return depth > 0 and all(is_setting(each, depth - 1) for each in value.values())
    return value is None or isinstance(value, str | bool) or is_number(value)


def is_measure(value: object) -> bool:
    """An entry of metrics.jsonl: a number, or several by name, some of them missing.

    Training that diverges writes any finite number there before it is stopped, and its run is still a run.
    """
    if isinstance(value, Mapping):
        return all(each is None or is_finite(each) for each in value.values())
    return value is None or isinstance(value, str | bool) or is_finite(value)


def is_collapse(value: object) -> bool:
    """An entry of `collapses` in an archive."""
    if not isinstance(value, Mapping) or not is_positive(value.get("epoch")) or not all(map(is_number, value.values())):
        return False
    pairs = (("accuracy", "best_accuracy"), ("value_loss", "median_value_loss"))
    return all((name in value) == (reference in value) for name, reference in pairs)


SPLIT = {
    **dict.fromkeys(("accuracy", "ece", "mean_confidence"), is_share),
    **dict.fromkeys(("nll", "brier"), is_number),
    **dict.fromkeys(("base_rate", "roc_auc", "average_precision", "balanced_accuracy"), Maybe(is_share)),
    **dict.fromkeys(("base_rate_nll", "auroc_correctness"), Maybe(is_number)),
    **dict.fromkeys(("n", "ece_bins"), is_positive),
    **dict.fromkeys(("mean_steps", "mean_steps_correct", "mean_steps_wrong"), Maybe(is_number)),
    "mean_cell_evaluations": Maybe(is_number),
    **dict.fromkeys(("mean_cost", "mean_cost_correct", "mean_cost_wrong"), Maybe(is_share)),
    "per_step": [
        {
            **{"step": is_positive, "accuracy": is_share, "ece": is_share, "nll": is_number},
            **{"mean_confidence": is_share, "cost": Maybe(is_share)},
        }
    ],
    "reliability": [
        {
            **dict.fromkeys(("lower", "upper"), is_share),
            **dict.fromkeys(("accuracy", "confidence"), Maybe(is_share)),
            "n": is_count,
        }
    ],
    "halting": [dict.fromkeys(("step", "correct", "wrong"), is_count)],
}
HALTING = {
    **dict.fromkeys(("halt_threshold", "nll", "mean_steps", "nll_before", "steps_before"), is_number),
    **dict.fromkeys(("max_steps", "n"), is_positive),
    **dict.fromkeys(("mean_cost", "budget"), Maybe(is_share)),
    **dict.fromkeys(("gain", "gain_error"), Maybe(is_number)),
    "reached": is_switch,
    "kept": Maybe(is_switch),
}
CALIBRATION = {
    "temperature": are_temperatures,
    **dict.fromkeys(("nll_before", "nll_after"), is_number),
    **dict.fromkeys(("gain", "gain_error"), Maybe(is_number)),
    **dict.fromkeys(("found", "kept"), is_switch),
    "n": is_positive,
}
BASELINE = {
    **dict.fromkeys(("accuracy", "ece"), is_share),
    **dict.fromkeys(("nll", "brier", "seconds", "advantage"), is_number),
    **dict.fromkeys(("roc_auc", "average_precision", "balanced_accuracy"), Maybe(is_share)),
    "advantage_error": Maybe(is_number),
    **dict.fromkeys(("n", "rows"), is_positive),
    "library": is_text,
}


def are_baselines(value: object) -> bool:
    return isinstance(value, Mapping) and all(misfit(entry, BASELINE) is None for entry in value.values())


EVALUATION = {
    "train": SPLIT,
    "test": Maybe(SPLIT),
    "raw": Maybe({"train": SPLIT, "test": Maybe(SPLIT)}),
    "fitted": Maybe({"halting": Maybe(HALTING), "calibration": Maybe(CALIBRATION)}),
    "baselines": Maybe(are_baselines),
    "baselines_note": Maybe(is_text),
    **dict.fromkeys(("notes", "hints"), Maybe(are_texts)),
    "selected_epoch": Maybe(is_count),
    "seconds": Maybe(is_number),
}
METRICS = {
    "epoch": is_count,
    "update": Maybe(is_count),
    **dict.fromkeys(("images_per_second", "training_seconds"), Maybe(is_number)),
    **dict.fromkeys(("train", "val", "test"), Maybe({})),
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
    "data": {
        "class_names": [is_text],
        "rows": Absent(are_counts),
        "input_shape": Absent([is_positive]),
    },
    "hardware": Absent({}),
    "derived_from": Maybe(is_text),
    "collapses": Absent([is_collapse]),
}


PARTS = ("train", "val", "test")
NEEDED = (
    *("accuracy", "ece", "ece_bins", "nll", "brier", "mean_confidence", "mean_steps", "n"),
    *("per_step", "reliability", "halting"),
)

Files = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], Examples | None]
"""Of a run: config.json, the lines of metrics.jsonl, evaluation.json and the examples."""


class Task(NamedTuple):
    """What makes runs comparable."""

    data: str
    label_noise: float
    n: int
    """The size of the test set."""


@runtime_checkable
class Comparable(Protocol):
    """A run, or some that share its task."""

    @property
    def task(self) -> Task: ...


C = TypeVar("C", bound=Comparable)


def by_task(given: Iterable[C]) -> list[list[C]]:
    """Those of the same task, together: only they may be compared, and belong in one panel."""
    found: dict[Task, list[C]] = {}
    for each in given:
        found.setdefault(each.task, []).append(each)
    return list(found.values())


@dataclass(frozen=True)
class RunRecord:
    path: Path
    label: str
    """What tables and legends call this run; unique among the runs of one report."""
    version: str
    config: dict[str, Any]
    data: dict[str, Any]
    hardware: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluation: dict[str, Any]
    examples: Examples | None
    derived_from: str | None = None
    """The run whose weights these are: it was trained, this one only answers in another way."""
    collapses: tuple[Collapse, ...] = ()
    """Epochs in which its training collapsed; of a derived run, that of the run whose weights these are."""

    @property
    def trained_as(self) -> str:
        """The name of the run that was trained."""
        return self.derived_from or (self.path.stem if is_archive(self.path) else self.path.name)

    @property
    def method(self) -> str:
        return system_name(self.config)

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def data_name(self) -> str:
        """What tells data apart: a name, or the whole path of the user's own."""
        return str(self.config["data"])

    @property
    def data_label(self) -> str:
        """The same, short enough to show, with what was done to its labels."""
        flipped = f", {100 * self.label_noise:.0f} % flipped" if self.label_noise else ""
        return shown_name(self.data_name) + flipped

    @property
    def test_label(self) -> str:
        """What the test rows come from: the data, or a file of their own."""
        own = self.config.get("test")
        return shown_name(str(own)) if own else self.data_label

    @property
    def data_title(self) -> str:
        """As its authors write it, where the data is a known set."""
        return DATA_TITLES.get(self.data_label, short(self.data_label, TABLE))

    @property
    def label_noise(self) -> float:
        """The share of training labels that were flipped."""
        return float(self.config.get("label_noise") or 0)

    @property
    def task(self) -> Task:
        return Task(self.data_name, self.label_noise, int(self.test["n"]))

    @property
    def seconds(self) -> float | None:
        """Of the whole course, measuring each epoch included, if this run was trained."""
        spent = self.evaluation.get("seconds")
        return None if self.derived_from or spent is None else float(spent)

    @property
    def clock(self) -> dict[int, float]:
        """Seconds spent in updates until the end of each epoch, by the run's own log of images a second; empty where
        it has none. Measuring the model after each epoch is not counted: how often that is done says nothing about
        how fast a method learns."""
        if all("training_seconds" in entry for entry in self.metrics):
            return {entry["epoch"]: float(entry["training_seconds"]) for entry in self.metrics}
        asked = self.config.get("optimization", {}).get("batch_size")
        rows = self.data.get("rows", {}).get("train")
        timed = all(entry.get("images_per_second") and "update" in entry for entry in self.metrics)
        if asked is None or rows is None or not timed:
            return {}
        updates = [after - before for before, after in pairwise([0, *(entry["update"] for entry in self.metrics)])]
        rates = [entry["images_per_second"] for entry in self.metrics]
        spent = [min(asked, rows) * count / rate for count, rate in zip(updates, rates, strict=True)]
        return dict(zip((entry["epoch"] for entry in self.metrics), accumulate(spent), strict=True))

    @property
    def training_seconds(self) -> float | None:
        """Of all updates; None for a run that only took another's weights."""
        clock = self.clock
        return clock[max(clock)] if clock and self.derived_from is None else self.seconds

    @property
    def images_per_second(self) -> float | None:
        """The median over epochs: the first waits for kernels to be chosen, and any may share the device."""
        rates = [entry["images_per_second"] for entry in self.metrics if entry.get("images_per_second")]
        return float(median(rates)) if rates and self.derived_from is None else None

    @property
    def halt_threshold(self) -> float:
        """It stops once its value, where it has one, falls below this."""
        return float((self.rule or self.config["method"]).get("halt_threshold") or 0)

    @property
    def max_steps(self) -> int:
        """It stops after so many steps at the latest."""
        return int((self.rule or {}).get("max_steps", len(self.test["per_step"])))

    @property
    def rule(self) -> dict[str, Any] | None:
        """When to stop, where validation data chose it."""
        return (self.evaluation.get("fitted") or {}).get("halting")

    @property
    def chose(self) -> bool:
        """Whether validation data decided what its name does not tell: when it stops, or its temperature."""
        return "auto" in (self.config.get("calibration"), self.config.get("halt_rule"))

    @property
    def raw(self) -> "RunRecord | None":
        """The same weights with nothing fitted after training; None where that makes no difference."""
        raw = self.evaluation.get("raw")
        return replace(self, label=f"{self.label}, raw", evaluation=raw) if raw else None

    @cached_property
    def columns(self) -> Columns | None:
        """The columns of a table, if the stored examples are rows encoded by them."""
        try:
            found = columns_from_json(self.data.get("columns"), str(self.path))
        except RicnetError:
            return None
        shape = None if self.examples is None else self.examples.inputs.shape[1:]
        return found if found.text is None and shape == (found.width,) else None

    @property
    def class_names(self) -> list[str]:
        return [str(name) for name in self.data["class_names"]]

    @property
    def judged_on(self) -> Literal["test", "val"]:
        """The split that results are reported for: test, or validation if nothing was held out."""
        return "val" if self.evaluation["test"] is None else "test"

    @property
    def test(self) -> dict[str, Any]:
        """Results on the split `judged_on`."""
        split: dict[str, Any] = self.evaluation[self.judged_on]
        return split

    def predictions(self) -> Outcome:
        """Stored answers for the split `judged_on`."""
        return read_predictions(self.path, self.judged_on)

    @property
    def notes(self) -> list[str]:
        """Notes about data, training and baselines."""
        notes: list[str] = [*(self.evaluation.get("notes") or []), self.evaluation.get("baselines_note") or ""]
        return list(filter(None, notes))

    @property
    def hints(self) -> list[str]:
        return self.evaluation.get("hints") or []

    @property
    def has_predictions(self) -> bool:
        """Whether it kept its answers to every example."""
        return (self.path / "predictions.npz").is_file()

    @property
    def iterative(self) -> bool:
        return len(self.test["per_step"]) > 1

    @property
    def costs(self) -> list[float]:
        """With exits, the share of compute that each step has cost by its end; else nothing."""
        shares = [entry.get("cost") for entry in self.test["per_step"]]
        return [] if None in shares or self.test.get("mean_cost") is None else shares

    @property
    def has_exits(self) -> bool:
        return len(self.costs) > 0

    @property
    def steps_per_exit(self) -> int:
        return int(self.config.get("network", {}).get("steps_per_exit", 1))

    def work(self, step: int) -> str:
        """What it takes to get so far, in words; of a run without exits there is nothing to say."""
        costs = self.costs
        return f"{100 * costs[min(step, len(costs)) - 1]:.0f} % of compute" if costs else ""


class Baseline(NamedTuple):
    """A simpler model on the test rows of a run."""

    label: str
    run: RunRecord
    scores: Mapping[str, Any]


def baselines(runs: Iterable[RunRecord]) -> list[Baseline]:
    """The baselines of each task, from the first run that has them; the base rate comes first."""
    found = []
    for alike in by_task(runs):
        run = next((each for each in alike if each.test.get("base_rate") is not None), alike[0])
        if run.test.get("base_rate") is not None:
            scores = {"accuracy": run.test["base_rate"], "nll": run.test.get("base_rate_nll")}
            found.append(Baseline("Base rate", run, scores))
        run = next((each for each in alike if each.evaluation.get("baselines")), run)
        entries: Mapping[str, Any] = run.evaluation.get("baselines") or {}
        found += [Baseline(short(name, TABLE), run, entry) for name, entry in entries.items()]
    return found


def read_run(run: str | Path) -> RunRecord:
    path = user_path(run)
    header, metrics, evaluation, examples = _read_archive(path) if is_archive(path) else _read_folder(path)
    config = header["config"] | {"method": modern_method(header["config"]["method"])}
    return RunRecord(
        path=path,
        label=system_name(config),
        version=str(header.get("ricnet", "unknown")),
        config=config,
        data=header["data"],
        hardware=header.get("hardware", {}),
        metrics=metrics,
        evaluation=evaluation,
        examples=examples,
        derived_from=header.get("derived_from"),
        collapses=tuple(header.get("collapses") or collapses(metrics, header["data"].get("rows", {}).get("train"))),
    )


def is_archive(path: Path) -> bool:
    return path.suffix == ".json" and not path.is_dir()


def _read_folder(folder: Path) -> Files:
    if not (folder / "config.json").is_file():
        raise RicnetError(f"{folder} is no run folder, it has no config.json: name a folder `ric train` wrote.")
    header = _checked_header(read_json(folder / "config.json"), folder / "config.json")
    if not (folder / "evaluation.json").is_file():
        raise RicnetError(f"The run {folder} is not finished: `ric train --out {folder} --resume` goes on with it.")
    evaluation = _checked_evaluation(read_json(folder / "evaluation.json"), folder / "evaluation.json")
    examples = read_examples(folder / "examples.npz", len(header["data"]["class_names"]))
    return header, _read_metrics(folder / "metrics.jsonl"), evaluation, examples


def _read_archive(path: Path) -> Files:
    entry = read_json(path)
    header, evaluation = _checked_header(entry, path), _checked_evaluation(entry.get("evaluation"), path)
    try:
        metrics = [_checked_metrics(row) for row in to_rows(entry.get("metrics", {}))]
    except (ValueError, TypeError, AttributeError) as error:
        raise RicnetError(f"{path} has columns of metrics that do not fit together: archive the run again.") from error
    return header, metrics, evaluation, None


def read_runs(folders: Sequence[str | Path]) -> list[RunRecord]:
    """The runs of one report, in the order given; a folder named twice is still one run."""
    distinct: dict[Path, str | Path] = {}
    for folder in folders:
        distinct.setdefault(user_path(folder).resolve(), folder)
    return distinguish([read_run(folder) for folder in distinct.values()])


def distinguish(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Give runs of the same method labels that say how they differ, and mark those whose training collapsed."""
    labels = zip(runs, _names(runs), strict=True)
    return [replace(run, label=label + MARK * bool(run.collapses)) for run, label in labels]


def _names(runs: Sequence[RunRecord]) -> list[str]:
    labels = {id(run): run.method for run in runs}
    for method in {run.method for run in runs}:
        alike = [run for run in runs if run.method == method]
        if len(alike) > 1:
            names = differences([_told(run) for run in alike]) or _folders(alike)
            labels |= {id(run): f"{method}, {name}" if name else method for run, name in zip(alike, names, strict=True)}
    return [labels[id(run)] for run in runs]


def _told(run: RunRecord) -> dict[str, Any]:
    """Its settings, with all that validation data decides after training as one of them: neither the halt nor the
    temperature alone says how it answers."""
    settings = {key: value for key, value in run.config.items() if key not in ("calibration", "halt_rule")}
    chosen = (run.config.get("calibration") or "none", run.rule is not None)
    return {"chosen": CHOSEN.get(chosen, str(chosen[0])), **settings}


def _folders(runs: Sequence[RunRecord]) -> list[str]:
    """What their owner called them."""
    names = [run.path.stem if is_archive(run.path) else run.path.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _checked_header(header: dict[str, Any], path: Path) -> dict[str, Any]:
    misplaced = misfit(header, HEADER) or ("" if is_setting(header["config"]) else "config")
    if misplaced.startswith("config"):
        raise RicnetError(
            f"{path} does not say which data and method were run ({misplaced}): restore it or train again."
        )
    if misplaced.startswith("data.class_names") or misplaced == "data":
        raise RicnetError(f"{path} does not name the classes: restore it or train again.")
    if misplaced:
        raise RicnetError(f"{path}: {misplaced} is missing or invalid; restore it or train again.")
    return {name: _shown(header[name]) for name in ("ricnet", *HEADER) if name in header}


def _shown(entry: Any) -> Any:
    """All its texts as they may be shown."""
    if isinstance(entry, dict):
        return {printable(key): _shown(value) for key, value in entry.items()}
    if isinstance(entry, list):
        return [_shown(value) for value in entry]
    return printable(entry).replace("\n", " ") if isinstance(entry, str) else entry


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [line for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise RicnetError(f"{path} cannot be read ({error}): restore it or train again.") from error
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(_checked_metrics(parse_json(line)))
        except ValueError as error:
            raise RicnetError(f"Line {number} of {path} is no epoch's metrics: delete the line.") from error
    return entries


def _checked_metrics(entry: Any) -> dict[str, Any]:
    if misfit(entry, METRICS) is not None or not all(map(is_measure, entry.values())):
        raise ValueError("it is no epoch's metrics")
    return {name: value for name, value in entry.items() if value is not None}


def _checked_evaluation(evaluation: Any, path: Path) -> dict[str, Any]:
    splits = evaluation if isinstance(evaluation, dict) else {}
    nothing_held_out = "test" in splits and splits["test"] is None
    for split in ("train", "val" if nothing_held_out else "test"):
        found = splits.get(split)
        missing = [key for key in NEEDED if not isinstance(found, dict) or key not in found]
        if missing:
            raise RicnetError(
                f"{path} lacks {split}.{missing[0]}: it is of another version of ricnet; train the run again."
            )
    if misplaced := misfit(splits, EVALUATION):
        raise RicnetError(f"{path}: {misplaced} is missing or invalid; restore it or train the run again.")
    said = {name: _shown(splits[name]) for name in ("baselines", "baselines_note", "notes", "hints") if name in splits}
    raw = {"raw": _renamed(splits["raw"])} if splits.get("raw") else {}
    return _renamed(splits) | raw | said


def _renamed(splits: dict[str, Any]) -> dict[str, Any]:
    """Current names for old ones: `auroc` was what is now `auroc_correctness`."""
    old = [name for name in PARTS if isinstance(splits.get(name), dict) and "auroc" in splits[name]]
    return splits | {name: splits[name] | {"auroc_correctness": splits[name]["auroc"]} for name in old}


_JUDGED = re.compile(r"\b([Tt])est(?= (?:set|examples?|answers?|inputs?|accuracy|NLL|ECE|data)\b)")


def judged_words(text: str, runs: Iterable[RunRecord]) -> str:
    """The text with `test` replaced by `validation` if all of these runs are judged on validation rows."""
    if any(run.judged_on == "test" for run in runs):
        return text
    return _JUDGED.sub(lambda found: "Validation" if found[1] == "T" else "validation", text)


def untested_note(runs: Iterable[RunRecord]) -> str:
    """A sentence if nothing was held out for some of the runs, else empty."""
    names = list(dict.fromkeys(run.label for run in runs if run.judged_on == "val"))
    if not names:
        return ""
    return (
        f"Nothing was held out for testing ({listing(names)}): the results are of validation rows, on which the epoch "
        "was chosen too, and may be too good."
    )


def collapse_note(runs: Iterable[RunRecord]) -> str:
    """A sentence if the training of some of the runs collapsed, else empty. Each training is named once."""
    found = {run.trained_as: summary(run.collapses) for run in runs if run.collapses}
    words = "; ".join(f"{short(name, TABLE)} ({what})" for name, what in found.items())
    return f"{MARK.strip()} Training collapsed: {words}." if found else ""


def to_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of columns of equal length, without what they do not have; `val.nll` is the `nll` within `val`."""
    rows = []
    for values in zip(*columns.values(), strict=True):
        row: dict[str, Any] = {}
        for name, value in zip(columns, values, strict=True):
            *path, last = name.split(".")
            place = row
            for key in path if value is not None else []:
                place = place.setdefault(key, {})
            if value is not None:
                place[last] = value
        rows.append(row)
    return rows


# Runs that differ in their seed alone


@dataclass(frozen=True)
class RunGroup:
    label: str
    """What tables and legends call the system; unique among the groups of one report."""
    runs: tuple[RunRecord, ...]
    """In the order of their seeds, one of each."""
    repeats: tuple[RunRecord, ...] = ()
    """Further runs with the seed of one of these. They would count as seeds without being any, and are left out."""

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def task(self) -> Task:
        return self.first.task

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def collapsed(self) -> bool:
        return any(run.collapses for run in self.runs)


def group_seeds(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Groups in the order in which their first run was given. Of runs with the same seed the first is taken."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_system(run), []).append(run)
    ordered = [sorted(group, key=lambda run: run.seed) for group in groups.values()]
    labels = _names([group[0] for group in ordered])
    return [_group(label, group) for label, group in zip(labels, ordered, strict=True)]


def repeats_note(groups: Sequence[RunGroup]) -> str:
    """Which runs do not count, if any."""
    names = [short(run.path.name, TABLE) for group in groups for run in group.repeats]
    return f"Left out, for the settings and the seed are those of another run: {listing(names)}." if names else ""


def _group(label: str, runs: Sequence[RunRecord]) -> RunGroup:
    kept: dict[int, RunRecord] = {}
    for run in runs:
        kept.setdefault(run.seed, run)
    marked = label + MARK * any(run.collapses for run in kept.values())
    return RunGroup(marked, tuple(kept.values()), tuple(run for run in runs if kept[run.seed] is not run))


def _system(run: RunRecord) -> str:
    """A derived run is not what training with its settings gives: its epoch was chosen by another readout."""
    settings = {key: value for key, value in flatten(run.config).items() if _name(key) not in (*WITHOUT_EFFECT, "seed")}
    alike = {key: value for key, value in settings.items() if value != LATER.get(_name(key))}
    numbers = json.loads(json.dumps(alike), parse_int=float)  # 2 and 2.0 are the same setting
    return json.dumps([numbers, run.derived_from is not None], sort_keys=True)


# What runs are called: by their method, then only by what sets one apart from the others beside it, in the fewest words

RIC, ON_POLICY, CLOSED_FORM, MARGINAL = "RIC", "RIC, on-policy", "RIC, closed form", ", marginal credit"
"""Titles of the methods ric, ric-on-policy and ric-closed-form. The first two may have marginal credit."""
ALGORITHMS = (RIC, RIC + MARGINAL, ON_POLICY, ON_POLICY + MARGINAL, CLOSED_FORM)
VARIANTS = {
    "objective": {"ppo": "PPO", "logitnorm": "LogitNorm", "evidential": "evidential"},
    "head": {"logistic-normal": "logistic-normal"},
    "readout": {"mu": "readout mu", "implied": "readout implied"},
    "feedback": {"sample": "sampled feedback"},
}
"""Settings that make another system of a method, and what it is then called."""
DATA_TITLES = {
    "cifar10": "CIFAR-10",
    "cifar10n-aggregate": "CIFAR-10N, aggregate labels",
    "cifar10n-worst": "CIFAR-10N, worst labels",
    "imagewoof": "ImageWoof",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
}
WITHOUT_EFFECT = ("measure_all", "measure_every", "compile", "cuda_graph", "baselines")
"""Settings of what is looked at and how fast; what is learned does not depend on them."""
LATER = {
    **{"accumulate": 1, "halt_rule": "value", "exits": "none", "steps_per_exit": 1, "compute_price": 0.0},
    **{"freeze": False, "encoder_lr": 0.1, "augmented_copies": 0, "credit": "joint", "train_fraction": 1.0},
}
"""Settings that have come since runs were archived, with what those runs did."""
TELLING = ("data", "train_fraction", "label_noise", "preset", "encoder", "exits", "resolution", "epochs")
"""Settings by which people tell runs apart, if they do; then come all others, and last the seed."""
MOST = 3
"""Settings in a name."""
WORDS: dict[str, Callable[[Any], str]] = {
    "data": lambda data: shown_name(str(data)),
    "train_fraction": lambda share: f"{100 * share:g} % of the rows",
    "label_noise": lambda share: f"{100 * (share or 0):g} % flipped",
    "preset": lambda name: f"preset {name}",
    "encoder": lambda name: without_folder(str(name)),
    "exits": lambda where: "no exits" if where == "none" else f"an exit a {where}",
    "freeze": lambda frozen: "frozen" if frozen else "not frozen",
    "resolution": lambda side: "own resolution" if side is None else f"{side} pixels",
    "epochs": lambda count: f"{count} epochs",
    "batch_size": lambda rows: f"batches of {rows}",
    "chosen": str,
}
"""How a setting is said where its name and its value are not what a person would say."""
CHOSEN = {
    ("none", False): "raw",
    ("none", True): "halt chosen",
    ("auto", False): "temperature if it helps",
    ("auto", True): "halt and temperature chosen",
    ("temperature", False): "own halt",
    ("temperature", True): "halt chosen",
}
"""By how a temperature is chosen, and whether the halt is."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": {"gamma": 0.8}} as {"method.gamma": 0.8}, the way the command line spells it."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def without_algorithm(title: str) -> str:
    """RIC, PPO for RIC, on-policy, marginal credit, PPO: one look and one place for all algorithms of a system."""
    return title.replace(ON_POLICY, RIC).replace(CLOSED_FORM, RIC).replace(MARGINAL, "")


def method_title(settings: Mapping[str, Any]) -> str:
    """What the configuration of a method is called (`method` in config.json): SL; RIC, on-policy, PPO."""
    method = METHODS.get(modern_method(settings)["name"])  # None where one of somebody's own is not registered here
    parts = [method.title_of(settings) if method else str(settings["name"])]
    parts += [words[value] for key, words in VARIANTS.items() if (value := settings.get(key)) in words]
    parts += ["label smoothing"] * bool(settings.get("label_smoothing"))
    parts += ["confidence cap"] * bool(settings.get("uniform_mix"))
    return ", ".join(parts)


def system_name(config: Mapping[str, Any]) -> str:
    """The same with what is always done after training: SL + temperature."""
    return method_title(config["method"]) + " + temperature" * (config.get("calibration") == "temperature")


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """What tells runs of one system apart: as few settings as will do, the most telling first, and for a run that has
    all of the commonest values nothing. None where that takes more words than anybody would read."""
    settings = [flatten(config) for config in configs]
    keys = [key for key in dict.fromkeys(key for flat in settings for key in flat) if _differs(key, settings)]
    keys.sort(key=_rank)
    candidates = keys if len(keys) <= 12 else keys[:12]
    for count in range(1, MOST + 1):
        for chosen in combinations(keys if count == 1 else candidates, count):
            names = _describe_all(settings, chosen)
            if len(set(names)) == len(names) and max(map(len, names)) <= FIGURE:
                return names
    return None


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return _name(key) not in WITHOUT_EFFECT and len({str(_value(flat, key)) for flat in settings}) > 1


def _rank(key: str) -> int:
    name = _name(key)
    return TELLING.index(name) if name in TELLING else len(TELLING) + (name == "seed")


def _describe_all(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Of two runs both are described; of more, what most have in common is left out where that names one at most."""
    whole = [", ".join(_say(key, _value(flat, key)) for key in keys) for flat in settings]
    if len(settings) < 3 or len(keys) < 2:
        return whole
    usual = {key: Counter(str(_value(flat, key)) for flat in settings).most_common(1)[0][0] for key in keys}
    odd = [[key for key in keys if str(_value(flat, key)) != usual[key]] for flat in settings]
    brief = [", ".join(_say(key, _value(flat, key)) for key in own) for flat, own in zip(settings, odd, strict=True)]
    return brief if len(set(brief)) == len(brief) else whole


def _say(key: str, value: Any) -> str:
    name = _name(key)
    if name in WORDS:
        return WORDS[name](value)
    words = name.replace("_", " ")
    if value is None or isinstance(value, bool):
        return words if value else f"no {words}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def _value(settings: Mapping[str, Any], key: str) -> Any:
    return settings.get(key, LATER.get(_name(key)))


def _name(key: str) -> str:
    return key.rpartition(".")[2]
