"""ric evaluate: how good a trained run is, perhaps on other data, with fewer steps or another readout."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ricnet.apps.cli import parse
from ricnet.apps.commands.settings import Answering
from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.dataset import altered, divisible
from ricnet.data.inputs import wanted
from ricnet.data.registry import DATASETS
from ricnet.errors import RicnetError, listed, require
from ricnet.evaluation.evaluate import Reading, observe, report
from ricnet.io import is_table, split_target, user_path
from ricnet.models.classifier import Classifier
from ricnet.models.loading import load
from ricnet.models.run import fingerprint, read_config
from ricnet.report.comparison import COST, METRICS, Metric
from ricnet.report.tables import Cell, Confusion, Grid, class_grid, confusion, matrix_grid, pair_words, terminal
from ricnet.training.api import pick_device
from ricnet.training.console import say, unfinished
from ricnet.training.features import behind_encoder

MOST_STEPS = 10_000
"""Every belief on the way is kept."""
MOST_IN_A_TERMINAL = 12
"""Classes whose confusion matrix fits beside one another."""


@dataclass(frozen=True)
class Evaluate(Answering):
    """Measure a trained run on its train, validation and test data, without augmentation, or on other data; and say
    which classes are confused there, with precision and recall of each."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote, a model that comes with ricnet (pretrained:NAME), or one on the Hub (user/name)."""
    data: str | None = None
    """Other data with the same classes, or some of them: images (of a folder at any size), texts, arrays of the same
    shape, or a table with the same columns. What has no test part of its own is measured as one part. A copy of what
    the run learned from is recognised only if it is whole and in the same order; else all its rows are measured as one
    part. By default the data that the run was trained on, divided as it was then."""
    data_dir: Path | None = None
    """Where named data sets lie; by default $RICNET_DATA, else the user's cache folder."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print everything as JSON, in the form of evaluation.json, with precision, recall and answers of each class."""


def main(arguments: Sequence[str]) -> None:
    options: Evaluate = parse(Evaluate, arguments, "evaluate")
    check_steps(options.max_steps)
    trained = load(options.run, str(pick_device(options.device)))
    classifier = adjust(trained, options.halt_threshold, options.readout, options.budget)
    say(unfinished(classifier))
    classifier, dataset = behind_encoder(classifier, _data_for(classifier, options))
    entries, mistakes = _measure(classifier, dataset, options.max_steps)
    judged = list(entries)[-1]
    if options.json:
        entries[judged]["classes"] = _by_class(mistakes)
        print(json.dumps(entries, indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_table(options.run, entries))
    for table in _mistakes(mistakes, judged):
        console.print(table)


def _measure(
    classifier: Classifier, dataset: Dataset, max_steps: int | None
) -> tuple[dict[str, dict[str, Any]], Confusion]:
    """The results of each split, and the confusions of the last one, which is the test data if there is any. On large
    data a split takes minutes, so its name is printed first."""
    made = max_steps or getattr(classifier.config.method, "horizon", None)  # more than are taken, as in evaluation.json
    most = None if max_steps else getattr(classifier.method, "horizon", None)
    how: dict[str, Any] = {"max_steps": made, "reading": Reading(classifier.temperature, max_steps=most)}
    entries = {}
    for name, split in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        if not len(split):
            continue
        say([f"measuring {name}: {len(split):,} {dataset.unit} …"])
        outcome = observe(classifier.asked, classifier.model, split, **how)
        entries[name] = report(outcome)
    answers = outcome.log_beliefs.argmax(-1)
    return entries, confusion(outcome.labels.numpy(), answers.numpy(), classifier.class_names)


def check_steps(max_steps: int | None) -> None:
    if max_steps is not None and max_steps < 1:
        raise RicnetError(f"--max-steps {max_steps} is out of range: at least one step is taken.")
    require(max_steps is None or max_steps <= MOST_STEPS, "max_steps", max_steps, f"at most {MOST_STEPS:,}")


def adjust(
    classifier: Classifier, halt_threshold: float | None, readout: str | None, budget: float | None = None
) -> Classifier:
    """The same weights, halting or answering differently, if the method can. A threshold takes the place of the whole
    rule that was chosen on validation data, its largest number of steps included; and so does a budget."""
    if budget is not None:
        if halt_threshold is not None:
            raise RicnetError("--halt-threshold and --budget are two rules when to stop; choose one.")
        classifier = within_budget(classifier, budget)
    horizon = None if halt_threshold is None else getattr(classifier.config.method, "horizon", None)
    changes = {"halt_threshold": halt_threshold, "readout": readout, "horizon": horizon}
    wanted = {name: value for name, value in changes.items() if value is not None}
    known = {f.name for f in dataclasses.fields(classifier.method)}
    for name in wanted:
        if name not in known:
            raise RicnetError(
                f"--{name.replace('_', '-')} means nothing to the method {classifier.method.name}; leave it out."
            )
    return dataclasses.replace(classifier, method=dataclasses.replace(classifier.method, **wanted))


def within_budget(classifier: Classifier, budget: float) -> Classifier:
    frugal, told = classifier.within(budget)
    say([] if told is None else [f"note: {told}."])
    return frugal


def _data_for(classifier: Classifier, options: Evaluate) -> Dataset:
    config = classifier.config
    data = config.data if options.data is None else options.data
    how: dict[str, Any] = {
        "data_dir": options.data_dir,
        "resolution": _resolution(classifier, data),
        "val_fraction": config.val_fraction,
        "columns": classifier.columns,
        "class_names": classifier.class_names,
    }
    held_out: dict[str, Any] = {"test": config.test, "test_fraction": config.test_fraction}
    own = split_target(whole_path(data))[0] == split_target(whole_path(config.data))[0]
    if not own:
        _refuse_other_kind(data, classifier)
    dataset = load_data(data, **how, **held_out) if own else _other_data(data, classifier, how, held_out)
    say(f"note: {note}" for note in dataset.notes)
    if dataset.input_shape != classifier.input_shape:
        raise RicnetError(
            f"{dataset.name} has inputs of shape {dataset.input_shape}; the model reads {classifier.input_shape}."
        )
    if not own:
        return _with_classes(classifier.class_names, dataset)
    _require_classes(classifier.class_names, dataset)
    learned = altered(dataset, config.train_fraction, config.label_noise)
    say(_changed(learned, classifier))
    return learned if options.data is None else dataset


def _refuse_other_kind(data: str, classifier: Classifier) -> None:
    """Before it is read, which may take long, as far as a name tells."""
    path = split_target(data)[0]
    if classifier.text is not None and path not in DATASETS:
        return  # a folder may hold texts, a table a column of them
    images = path in DATASETS or user_path(path).is_dir()
    if (images and len(classifier.input_shape) != 3) or (is_table(path) and classifier.columns is None):
        kind = "holds images" if images else "is a table"
        raise RicnetError(f"{data} {kind}, but the model reads {wanted(classifier.input_shape, classifier.columns)}.")


def _other_data(data: str, classifier: Classifier, how: dict[str, Any], held_out: dict[str, Any]) -> Dataset:
    """As one part, unless it has its own. But a copy of what the run learned from is divided as it was then, lest rows
    that were learned pass for new ones. It is recognised only if it is whole and in the same order; else all its rows
    are measured as one part."""
    whole = load_data(data, undivided=True, **how)
    known = _learned_from(classifier)
    config = classifier.config
    rows = _count_rows(known.get("rows"), with_test=held_out["test"] is None)
    as_many = not len(whole.train) and (config.train_fraction < 1 or len(whole.test) == rows)
    cuts_test = held_out["test"] is None and held_out["test_fraction"] != 0
    if as_many and divisible(whole.test.labels, whole.class_names, 2 + cuts_test):  # what a run learned from was
        divided = load_data(data, **how, **held_out)
        if fingerprint(altered(divided, config.train_fraction, config.label_noise)) == known.get("fingerprint"):
            return divided
    return whole


def _changed(own: Dataset, classifier: Classifier) -> list[str]:
    """A note if a run's own data is no longer what it was."""
    if _learned_from(classifier).get("fingerprint") in (None, fingerprint(own)):
        return []
    return [
        f"note: {own.name} is not what the run learned from: it has changed, or is read by other versions. Rows that "
        "were learned may be among the test rows."
    ]


def _learned_from(classifier: Classifier) -> dict[str, Any]:
    """What a run has kept of its data."""
    return read_config(classifier.folder).get("data", {}) if classifier.folder else {}


def _count_rows(splits: object, with_test: bool) -> int:
    """Of a configuration, which others may have written."""
    found = splits.items() if isinstance(splits, dict) else ()
    return sum(n for name, n in found if isinstance(n, int) and (with_test or name != "test"))


def _require_classes(ours: tuple[str, ...], dataset: Dataset) -> None:
    """What a run learned from has all of its classes, unless it has changed since."""
    theirs = dataset.class_names
    if theirs == ours:
        return
    extra, missing = [[name for name in a if name not in b] for a, b in ((theirs, ours), (ours, theirs))]
    parts = [f"it adds {listed(extra)}"] * bool(extra) + [f"it lacks {listed(missing)}"] * bool(missing)
    difference = " and ".join(parts) or "their order differs"
    raise RicnetError(f"{dataset.name} has other classes than the model: {difference}.")


def _with_classes(ours: tuple[str, ...], dataset: Dataset) -> Dataset:
    """Labels as the model numbers them; the data need not have all of its classes, but which it lacks is said."""
    theirs = dataset.class_names
    unknown = [name for name in theirs if name not in ours]
    if unknown:
        raise RicnetError(
            f"{dataset.name} has classes that the model does not know: {listed(unknown)}; it knows {listed(ours)}."
        )
    missing = [name for name in ours if name not in theirs]
    if missing:
        say([f"note: {dataset.name} lacks classes that the model knows: {listed(missing)}."])
    place = torch.tensor([ours.index(name) for name in theirs])
    train, val, test = (
        replace(split, labels=place[split.labels]) for split in (dataset.train, dataset.val, dataset.test)
    )
    return replace(dataset, train=train, val=val, test=test, class_names=ours)


def _resolution(classifier: Classifier, data: str) -> int | None:
    """Photographs of other sizes are shown to the model as those it was trained on."""
    is_folder = data not in DATASETS and user_path(data).is_dir()
    return (
        classifier.input_shape[-1] if is_folder and len(classifier.input_shape) == 3 else classifier.config.resolution
    )


def _table(title: str, entries: dict[str, dict[str, Any]]) -> Table:
    parts = list(entries.values())
    rows = [
        [Cell(_named(metric)), *(Cell(metric.write(entry[metric.name], unit=True)) for entry in parts)]
        for metric in METRICS
        if metric.name in parts[-1]
    ]
    return terminal(Grid(["", *entries], rows), box=True, title=f"{title} (ECE with {parts[-1]['ece_bins']} bins)")


def _named(metric: Metric) -> str:
    return COST.title.lower() if metric is COST else metric.name.replace("_", " ")


def _by_class(found: Confusion) -> list[dict[str, Any]]:
    """Of the test data: each class with its precision, its recall, and what its examples were taken for."""
    return [
        {
            "class": name,
            "precision": _finite(found.precision[k]),
            "recall": _finite(found.recall[k]),
            "n": int(found.counts[k].sum()),
            "answers": {found.names[j]: int(found.counts[k, j]) for j in np.flatnonzero(found.counts[k])},
        }
        for k, name in enumerate(found.names)
    ]


def _finite(share: float) -> float | None:
    return None if np.isnan(share) else float(share)


def _mistakes(found: Confusion, split: str) -> list[Table | Text]:
    """Tables of the mistakes of one split, with the confusion matrix if it is small enough to read."""
    tables: list[Table | Text] = [terminal(class_grid(found), box=True, title=f"{split}, by class")]
    if len(found.names) <= MOST_IN_A_TERMINAL:
        tables.append(terminal(matrix_grid(found), box=True, title=f"{split}, answers by true class"))
    pairs = "\n".join(pair_words(found, *pair) for pair in found.pairs())
    none = f"no {split} example is taken for another class"
    return [*tables, Text(f"\nconfused most\n{pairs}" if pairs else f"\n{none}")]
