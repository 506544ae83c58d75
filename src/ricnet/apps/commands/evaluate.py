"""`ric evaluate`: scores a trained run on its own data or on other data, with confusions by class."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ricnet.apps.commands.decisions import decide, open_model, sentences
from ricnet.apps.commands.options import Evaluate
from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.dataset import altered, divisible
from ricnet.data.images import holds_texts
from ricnet.data.inputs import wanted
from ricnet.data.registry import DATASETS
from ricnet.errors import RicnetError, listed
from ricnet.evaluation.evaluate import Outcome, Reading, observe, report
from ricnet.io import is_table, short, split_target, user_path
from ricnet.models.classifier import Classifier
from ricnet.models.run import RunFolder, fingerprint, read_config
from ricnet.report.comparison import COST, METRICS
from ricnet.report.tables import Cell, Confusion, Grid, confusion, pair_words, percent, terminal
from ricnet.terminal import say
from ricnet.training.features import behind_encoder

MOST_CLASSES, MOST_PAIRS = 3, 3
"""Classes and confusions that are printed; --json has all."""


def evaluate(options: Evaluate) -> None:
    classifier, decisions = decide(open_model(options.run, options.device, *options.rule), options)
    classifier, dataset = behind_encoder(classifier, data_for(classifier, options.data, options.data_dir))
    entries, outcome = _measure(classifier, dataset, options.max_steps)
    last, labels = list(entries)[-1], outcome.labels.numpy()
    mistakes = confusion(labels, outcome.log_beliefs.argmax(-1).numpy(), classifier.class_names)
    found = decisions.measured(outcome.log_beliefs.double().softmax(-1).numpy(), labels)
    entries[last] |= found
    if options.json:
        entries[last]["classes"] = _by_class(mistakes)
        print(json.dumps(entries, indent=2, allow_nan=False))
        return
    console = Console()
    console.print(Text(f"{options.run} (ECE with {_bins(entries)} bins)"), _table(entries), sep="\n")
    say([*_mistakes(mistakes, last), *(f"{last}: {line}" for line in sentences(found))], console)


def _measure(
    classifier: Classifier, dataset: Dataset, max_steps: int | None
) -> tuple[dict[str, dict[str, Any]], Outcome]:
    """The results of each split, and the outcome of the last one, which is the test split if there is one."""
    made = max_steps or getattr(classifier.config.method, "horizon", None)  # all steps, as in evaluation.json
    most = None if max_steps else getattr(classifier.method, "horizon", None)
    reading = Reading(classifier.temperature, max_steps=most)
    entries, status = {}, Console(stderr=True).status
    for name, split in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test)):
        if not len(split):
            continue
        with status(f"measuring {name}: {len(split):,} {dataset.unit} …"):  # takes minutes on large data
            outcome = observe(classifier.inference, classifier.model, split, max_steps=made, reading=reading)
        entries[name] = report(outcome)
    return entries, outcome


# Data


def data_for(classifier: Classifier, given: str | None, data_dir: Path | None) -> Dataset:
    """The data of the run, or other data with the classes of the model."""
    config = classifier.config
    data = config.data if given is None else given
    own = split_target(whole_path(data))[0] == split_target(whole_path(config.data))[0]
    how: dict[str, Any] = {
        "data_dir": data_dir,
        **_resolution(classifier, data),
        "val_fraction": config.val_fraction,
        "columns": classifier.columns,
        "class_names": classifier.class_names,
    }
    held_out = {name: getattr(config, name) for name in ("test", "test_fraction", "calibration_fraction")}
    dataset = load_data(data, **how, **held_out) if own else _other_data(data, classifier, how, held_out)
    say(f"note: {note}" for note in dataset.notes)
    if dataset.input_shape != classifier.input_shape:
        raise RicnetError(
            f"{dataset.name} has inputs of shape {dataset.input_shape}; the model reads {classifier.input_shape}."
        )
    dataset = _with_classes(classifier.class_names, dataset, own)
    if not own:
        _note_known_rows(classifier, dataset)
        return dataset
    learned = altered(dataset, config.train_fraction, config.label_noise, config.final_fit)
    if _known_data(classifier).get("fingerprint") not in (None, fingerprint(learned)):
        say(
            [
                f"note: {dataset.name} differs from the data that the run was trained on: it has changed, or another "
                "version of ricnet reads it. Test rows may have been trained on."
            ]
        )
        _note_known_rows(classifier, dataset)
    shown = learned if given is None else altered(dataset, final_fit=config.final_fit)
    return _without_val(shown) if config.final_fit else shown


def _note_known_rows(classifier: Classifier, dataset: Dataset) -> None:
    count = RunFolder(classifier.folder).count_known(dataset.test) if classifier.folder else 0
    where = "" if dataset.columns is None or dataset.is_text else " in the columns that are read"
    if count:
        say(
            [
                f"note: {count:,} of {len(dataset.test):,} test {dataset.unit} of {dataset.name} are exact copies of "
                f"training or validation examples of the run{where}: results and guarantees from them may be too good."
            ]
        )


def _without_val(dataset: Dataset) -> Dataset:
    """Without the validation rows, which are training rows after a final fit."""
    return replace(dataset, val=dataset.val.take(torch.empty(0, dtype=torch.int64)))


def _other_data(data: str, classifier: Classifier, how: dict[str, Any], held_out: dict[str, Any]) -> Dataset:
    """Other data as one test split, unless it has splits. A copy of the training data is split as in training, so that
    training rows are not evaluated as new ones."""
    _refuse_other_kind(data, classifier)
    whole = load_data(data, undivided=True, **how)
    config, known = classifier.config, _known_data(classifier)
    rows = known.get("rows")
    counts = list(rows.items()) if isinstance(rows, dict) else []
    if config.final_fit:  # its validation rows are training rows
        counts = [(name, n) for name, n in counts if name != "val"]
    learned = sum(n for name, n in counts if isinstance(n, int) and (name != "test" or config.test is None))
    as_many = not len(whole.train) and (config.train_fraction < 1 or len(whole.test) == learned)
    cuts_test = config.test is None and config.test_fraction != 0
    if as_many and divisible(whole.test.labels, whole.class_names, 2 + cuts_test):
        divided = load_data(data, **how, **held_out)
        trained_on = altered(divided, config.train_fraction, config.label_noise, config.final_fit)
        if fingerprint(trained_on) == known.get("fingerprint"):
            return _without_val(altered(divided, final_fit=True)) if config.final_fit else divided
    return whole


def _refuse_other_kind(data: str, classifier: Classifier) -> None:
    """Raise if the name shows that the model cannot read the data, before it is read."""
    path = split_target(data)[0]
    is_folder = path not in DATASETS and user_path(path).is_dir()
    texts = is_folder and holds_texts(user_path(path))
    images = (is_folder and not texts) or path in DATASETS
    other = texts if classifier.text is None else images
    if other or (images and len(classifier.input_shape) != 3) or (is_table(path) and classifier.columns is None):
        kind = "holds texts" if texts else "holds images" if images else "is a table"
        raise RicnetError(f"{data} {kind}, but the model reads {wanted(classifier.input_shape, classifier.columns)}.")


def _known_data(classifier: Classifier) -> dict[str, Any]:
    """The entry of config.json about the training data; untrusted."""
    return read_config(classifier.folder).get("data", {}) if classifier.folder else {}


def _with_classes(ours: tuple[str, ...], dataset: Dataset, own: bool) -> Dataset:
    """The data with labels as the model numbers them. Only other data may lack classes, which a note names."""
    theirs = dataset.class_names
    extra, missing = [name for name in theirs if name not in ours], [name for name in ours if name not in theirs]
    if extra or (own and theirs != ours):
        parts = [f"it adds {listed(extra)}"] * bool(extra) + [f"it lacks {listed(missing)}"] * bool(missing)
        difference = " and ".join(parts) or "their order differs"
        raise RicnetError(
            f"{dataset.name} has other classes than the model: {difference}; the model knows {listed(ours)}."
        )
    if missing:
        say([f"note: {dataset.name} lacks classes that the model knows: {listed(missing)}."])
    place = torch.tensor([ours.index(name) for name in theirs])
    train, val, test = (
        replace(split, labels=place[split.labels]) for split in (dataset.train, dataset.val, dataset.test)
    )
    return replace(dataset, train=train, val=val, test=test, class_names=ours)


def _resolution(classifier: Classifier, data: str) -> dict[str, Any]:
    """Images in a folder are resized to the size that the model reads."""
    is_folder = data not in DATASETS and user_path(data).is_dir()
    if is_folder and len(classifier.input_shape) == 3:
        return {"resolution": classifier.input_shape[-1]}
    return {"resolution": classifier.config.resolution, "oversize": classifier.config.oversize}


# Output


def _bins(entries: dict[str, dict[str, Any]]) -> int:
    return int([*entries.values()][-1]["ece_bins"])


def _table(entries: dict[str, dict[str, Any]]) -> Table:
    parts = list(entries.values())
    shown = [metric for metric in METRICS if metric.name in parts[-1]]
    names = [COST.title.lower() if metric is COST else metric.name.replace("_", " ") for metric in shown]
    rows = [
        [Cell(name), *(Cell(metric.write(entry[metric.name], unit=True)) for entry in parts)]
        for name, metric in zip(names, shown, strict=True)
    ]
    return terminal(Grid(["", *entries], rows))


def _by_class(found: Confusion) -> list[dict[str, Any]]:
    """Precision, recall and answers of each class, for JSON."""
    shares = np.stack([found.precision, found.recall], axis=1).astype(object)
    shares[shares != shares] = None  # NaN
    return [
        {
            "class": name,
            "precision": shares[k, 0],
            "recall": shares[k, 1],
            "n": int(found.counts[k].sum()),
            "answers": {found.names[j]: int(found.counts[k, j]) for j in np.flatnonzero(found.counts[k])},
        }
        for k, name in enumerate(found.names)
    ]


def _mistakes(found: Confusion, split: str) -> list[str]:
    """The classes of lowest recall and the commonest confusions."""
    order = [k for k in np.argsort(found.recall, kind="stable").tolist() if found.counts[k].any()]
    worst = [f"{short(found.names[k], 24)} {percent(float(found.recall[k]), 1)}" for k in order]
    pairs = [pair_words(found, *pair) for pair in found.pairs(MOST_PAIRS)]
    return [
        f"{split} recall, lowest first: {listed(worst, MOST_CLASSES)} (all: --json)",
        f"{split}, confused most: {'; '.join(pairs) or 'none'}",
    ]
