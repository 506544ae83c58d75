"""Finished runs for reports: one record per run, and groups of runs that differ only in their seed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar

from ricnet.data.columns import Columns, columns_from_json
from ricnet.errors import RicnetError, listing
from ricnet.evaluation.choices import NEVER
from ricnet.evaluation.evaluate import Outcome, read_predictions
from ricnet.evaluation.examples import Examples
from ricnet.evaluation.metrics import Collapse, collapses, measured_rows
from ricnet.io import LARGEST_NUMBER, MARK, TABLE, short, shown_name, user_path
from ricnet.methods import modern_method
from ricnet.report.collapses import alarm_words, alarms
from ricnet.report.files import is_archive, read_archive, read_folder
from ricnet.report.names import CHOSEN, DATA_TITLES, differences, system_name, without_seed


class Task(NamedTuple):
    """Runs with the same task can be compared."""

    data: str
    label_noise: float
    n: int
    """Size of the test set."""


C = TypeVar("C", "RunRecord", "RunGroup")


def by_task(given: Iterable[C]) -> list[list[C]]:
    """Group by task, in order of appearance."""
    found: dict[Task, list[C]] = {}
    for each in given:
        found.setdefault(each.task, []).append(each)
    return list(found.values())


@dataclass(frozen=True)
class RunRecord:
    path: Path
    label: str
    """Name in tables and legends, unique within a report."""
    version: str
    config: dict[str, Any]
    data: dict[str, Any]
    hardware: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluation: dict[str, Any]
    examples: Examples | None
    derived_from: str | None = None
    """The trained run with the same weights, if this one differs only in settings applied after training."""
    collapses: tuple[Collapse, ...] = ()
    """Epochs in which training collapsed or the value loss jumped (`alarms`); for a derived run, those of the trained
    run."""

    @property
    def name(self) -> str:
        """Name of the run folder or of the archive."""
        return self.path.stem if is_archive(self.path) else self.path.name

    @property
    def method(self) -> str:
        return system_name(self.config)

    @property
    def title(self) -> str:
        """The method. A final fit is marked, because it is trained on the validation rows too."""
        return f"{self.method}, final fit" if self.final_fit else self.method

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def data_name(self) -> str:
        """Name of a data set, or path of the user's data."""
        return str(self.config["data"])

    @property
    def data_label(self) -> str:
        """Short name of the data with the share of flipped labels."""
        flipped = f", {100 * self.label_noise:.0f} % flipped" if self.label_noise else ""
        return shown_name(self.data_name) + flipped

    @property
    def data_title(self) -> str:
        """Official title of a known data set, else the label."""
        return DATA_TITLES.get(self.data_label, short(self.data_label, TABLE))

    @property
    def label_noise(self) -> float:
        """Share of flipped training labels."""
        return float(self.config.get("label_noise") or 0)

    @property
    def task(self) -> Task:
        return Task(self.data_name, self.label_noise, int(self.test["n"]))

    @property
    def seconds(self) -> float | None:
        """Duration of the run with evaluation after each epoch; None for a derived run."""
        spent = self.evaluation.get("seconds")
        return None if self.derived_from or spent is None else float(spent)

    @property
    def clock(self) -> dict[int, float]:
        """Seconds of training at the end of each epoch, without evaluation; computed from images/s in older runs, empty
        if that is missing."""
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
        """Seconds of all updates; None for a derived run."""
        clock = self.clock
        return clock[max(clock)] if clock and self.derived_from is None else self.seconds

    @property
    def images_per_second(self) -> float | None:
        """Median over epochs, since single epochs can be slowed down by other work."""
        rates = [entry["images_per_second"] for entry in self.metrics if entry.get("images_per_second")]
        return float(median(rates)) if rates and self.derived_from is None else None

    def curve(self, key: str, split: str = "val") -> dict[int, float]:
        """A score of a split by epoch, where it was measured and is finite, clipped to what can be drawn."""
        scores = {entry["epoch"]: (entry.get(split) or {}).get(key) for entry in self.metrics}
        known = {epoch: float(score) for epoch, score in scores.items() if score is not None and isfinite(score)}
        return {epoch: min(max(score, -LARGEST_NUMBER), LARGEST_NUMBER) for epoch, score in known.items()}

    @property
    def halt_threshold(self) -> float | None:
        """The run halts once its value falls below this; None if it always takes all steps."""
        threshold = float((self.rule or self.config["method"]).get("halt_threshold") or 0)
        return None if threshold == NEVER else threshold

    @property
    def max_steps(self) -> int:
        """Maximum number of steps."""
        return int((self.rule or {}).get("max_steps", len(self.test["per_step"])))

    @property
    def rule(self) -> dict[str, Any] | None:
        """Halting rule chosen on validation data, if any."""
        return (self.evaluation.get("fitted") or {}).get("halting")

    @property
    def raw(self) -> "RunRecord | None":
        """The run without calibration; None if it was not calibrated."""
        raw = self.evaluation.get("raw")
        return replace(self, label=f"{self.label}, raw", evaluation=raw) if raw else None

    @cached_property
    def columns(self) -> Columns | None:
        """Columns of a table, if they match the stored examples."""
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
    def final_fit(self) -> bool:
        """Whether its validation rows are training rows."""
        return bool(self.config.get("final_fit"))

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
        """Whether predictions.npz exists."""
        return (self.path / "predictions.npz").is_file()

    @property
    def iterative(self) -> bool:
        return len(self.test["per_step"]) > 1

    @property
    def costs(self) -> list[float]:
        """With exits, the cumulative share of compute by step; else empty."""
        shares = [entry.get("cost") for entry in self.test["per_step"]]
        return [] if None in shares or self.test.get("mean_cost") is None else shares

    @property
    def has_exits(self) -> bool:
        return len(self.costs) > 0

    @property
    def steps_per_exit(self) -> int:
        return int(self.config.get("network", {}).get("steps_per_exit", 1))

    def work(self, step: int) -> str:
        """Share of compute up to this step, in words; empty without exits."""
        costs = self.costs
        return f"{100 * costs[min(step, len(costs)) - 1]:.0f} % of compute" if costs else ""


class Baseline(NamedTuple):
    """A simpler model on the same test rows."""

    label: str
    first: RunRecord
    """The run that has it."""
    scores: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.label

    @property
    def task(self) -> Task:
        return self.first.task


def baselines(runs: Iterable[RunRecord]) -> list[Baseline]:
    """Baselines of each task, from the first run that has them; the base rate is first."""
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
    header, metrics, evaluation, examples = read_archive(path) if is_archive(path) else read_folder(path)
    config = header["config"] | {"method": modern_method(header["config"]["method"])}
    found = RunRecord(
        path=path,
        label="",
        version=str(header.get("ricnet", "unknown")),
        config=config,
        data=header["data"],
        hardware=header.get("hardware", {}),
        metrics=metrics,
        evaluation=evaluation,
        examples=examples,
        derived_from=header.get("derived_from"),
        collapses=tuple(header.get("collapses") or alarms(collapses(metrics, _measured(header)), metrics)),
    )
    return replace(found, label=found.title)


def _measured(header: Mapping[str, Any]) -> int | None:
    rows = header["data"].get("rows", {}).get("train")
    return None if rows is None else measured_rows(rows, str(header.get("hardware", {}).get("device")))


def read_runs(folders: Sequence[str | Path]) -> list[RunRecord]:
    """Read runs in the given order, each folder once, and give them unique labels."""
    distinct: dict[Path, str | Path] = {}
    for folder in folders:
        distinct.setdefault(user_path(folder).resolve(), folder)
    return distinguish([read_run(folder) for folder in distinct.values()])


def distinguish(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Label runs of the same title by the settings in which they differ; mark collapsed ones."""
    labels = zip(runs, _names(runs), strict=True)
    return [replace(run, label=label + MARK * bool(run.collapses)) for run, label in labels]


def _names(runs: Sequence[RunRecord]) -> list[str]:
    labels = {id(run): run.title for run in runs}
    for title in {run.title for run in runs}:
        alike = [run for run in runs if run.title == title]
        if len(alike) > 1:
            folders = [run.name for run in alike]
            unique = folders if len(set(folders)) == len(folders) else [str(run.path) for run in alike]
            names = differences([_settings(run) for run in alike]) or unique
            labels |= {id(run): f"{title}, {name}" if name else title for run, name in zip(alike, names, strict=True)}
    return [labels[id(run)] for run in runs]


def _settings(run: RunRecord) -> dict[str, Any]:
    """Settings of a run, with calibration and halting rule merged into one entry."""
    settings = {key: value for key, value in run.config.items() if key not in ("calibration", "halt_rule")}
    chosen = (run.config.get("calibration") or "none", run.rule is not None)
    return {"chosen": CHOSEN.get(chosen, str(chosen[0])), **settings}


_JUDGED = re.compile(r"\b([Tt])est(?= (?:set|examples?|answers?|inputs?|accuracy|NLL|ECE|data)\b)")


def judged_words(text: str, runs: Iterable[RunRecord]) -> str:
    """The text with `test` replaced by `validation` if all of these runs are judged on validation rows."""
    if any(run.judged_on == "test" for run in runs):
        return text
    return _JUDGED.sub(lambda found: "Validation" if found[1] == "T" else "validation", text)


def untested_note(runs: Iterable[RunRecord]) -> str:
    """A sentence if nothing was held out for some of the runs, else empty."""
    untested = [run for run in runs if run.judged_on == "val"]
    if not untested:
        return ""
    names = listing(list(dict.fromkeys(run.label for run in untested)))
    use = "which were trained on too (--final-fit)" if untested[0].final_fit else "on which the epoch was chosen too"
    return (
        f"Nothing was held out for testing ({names}): the results are of validation rows, {use}, and may be too good."
    )


def collapse_note(runs: Iterable[RunRecord]) -> str:
    """A sentence about collapsed trainings, one about those in which only the value loss jumped; empty without any."""
    found = {run.derived_from or run.name: alarm_words(run.collapses) for run in runs if run.collapses}
    sentences = []
    for what in ("training collapsed", "the value loss jumped"):
        of_kind = {short(name, TABLE): words for name, words in found.items() if words.startswith(what)}
        named = [f"{name} ({words.removeprefix(f'{what} in ')})" for name, words in of_kind.items()]
        sentences += [f"{MARK.strip()} {what[0].upper()}{what[1:]}: {'; '.join(named)}."] if named else []
    return " ".join(sentences)


# Groups of runs that differ only in their seed


@dataclass(frozen=True)
class RunGroup:
    label: str
    """Name of the system in tables and legends, unique within a report."""
    runs: tuple[RunRecord, ...]
    """One run per seed, sorted by seed."""
    repeats: tuple[RunRecord, ...] = ()
    """Further runs with one of these seeds, which are left out."""

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def name(self) -> str:
        """The label without the data, for a table with a column of data."""
        return self.label.replace(f", {shown_name(self.first.data_name)}", "", 1)

    @property
    def task(self) -> Task:
        return self.first.task

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def collapsed(self) -> bool:
        return any(run.collapses for run in self.runs)

    @property
    def raw(self) -> "RunGroup | None":
        """The system without calibration; None if it was not calibrated."""
        runs = [run.raw for run in self.runs]
        return RunGroup(f"{self.label}, raw", tuple(filter(None, runs))) if all(runs) else None


def group_seeds(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Group runs that differ only in their seed, in order of their first run; of equal seeds the first run counts."""
    groups: dict[tuple[str, bool], list[RunRecord]] = {}
    for run in runs:  # a derived run kept the epoch of other settings
        groups.setdefault((without_seed(run.config), run.derived_from is not None), []).append(run)
    ordered = [sorted(group, key=lambda run: run.seed) for group in groups.values()]
    found = []
    for label, group in zip(_names([group[0] for group in ordered]), ordered, strict=True):
        kept = {run.seed: run for run in reversed(group)}  # of equal seeds the first
        own = tuple(run for run in group if kept[run.seed] is run)
        repeats = tuple(run for run in group if kept[run.seed] is not run)
        found.append(RunGroup(label + MARK * any(run.collapses for run in own), own, repeats))
    return found


def repeats_note(groups: Sequence[RunGroup]) -> str:
    """A sentence about runs that are left out as repeats, else empty."""
    names = [short(run.path.name, TABLE) for group in groups for run in group.repeats]
    return f"Left out, because settings and seed equal those of another run: {listing(names)}." if names else ""
