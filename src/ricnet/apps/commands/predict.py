"""ric predict: answers for images, arrays and rows of tables, with the reasoning on request."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from jaxtyping import Num
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ricnet.apps.cli import parse
from ricnet.apps.commands.evaluate import adjust, check_steps
from ricnet.apps.commands.settings import Answering
from ricnet.apps.trace import TIME_UP, trace_lines
from ricnet.core.trajectory import Trajectory
from ricnet.data.inputs import read_inputs
from ricnet.errors import RicnetError, counted, require
from ricnet.evaluation.evaluate import UNSURE, pool_size, validation_sentence
from ricnet.io import printable
from ricnet.models.classifier import Classifier
from ricnet.models.loading import load
from ricnet.models.run import RunFolder
from ricnet.training.api import pick_device
from ricnet.training.console import say, unfinished

SOME_UNREAD = 1
"""Exit status where some of the inputs that were named got no answer; where none did, it is that of any error."""


@dataclass(frozen=True)
class Predict(Answering):
    """Classify image files, folders of images, rows of tables (.csv, .tsv, .jsonl, .parquet) or of .npz files
    (array x), sentences in quotes or .txt files. Each input is refined until the model expects nothing more to
    gain. Without an INPUT, the examples that came with the model. A file that cannot be read is named and left out. If
    it is an INPUT, the exit status is then 1; if a folder or a pattern brought it in, it stays 0; if nothing can be
    read, it is 2. A table is read as a whole or left out: in a column of numbers or dates a text that the training
    table had there is named and counts as missing; any other text, or a number too large, is an error."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote, a model that comes with ricnet (pretrained:NAME), or one on the Hub (user/name)."""
    inputs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT...")] = ()
    """Image files, folders (searched for images), patterns in quotes ('photos/*.jpg'), tables, .npz files, or - for
    standard input: one image, one text, or CSV rows below a line of column names. For a model of texts also sentences
    in quotes, .txt files and folders of them."""
    max_ms: float | None = None
    """Answer each input within this many milliseconds of beginning it, with the steps there is time for; at least one
    is made, however long it takes. Inputs are then taken one at a time."""
    top: int = 1
    """How many classes to show for each input."""
    abstain_below: float | None = None
    """Answer "unsure" where the confidence is below this probability, and say how many validation examples would
    have got an answer (coverage) and how many of the answers were wrong (risk). Raise it for fewer, safer answers."""
    trace: bool = False
    """Show the belief after each step as a small bar chart, and where the model stops."""
    json: bool = False
    """One JSON object a line: input, answer, confidence, steps, top (and the beliefs of each step with --trace); of a
    model with exits also cost, the share of compute that it took."""
    csv: bool = False
    """A CSV table: input, answer, confidence, steps, with exits cost, and with --top K the K classes and their
    probabilities."""
    device: str = "auto"
    """auto, cpu, cuda …"""


def main(arguments: Sequence[str]) -> None:
    options: Predict = parse(Predict, arguments, "predict")
    _check(options)
    trained = load(options.run, str(pick_device(options.device)))
    classifier = adjust(trained, options.halt_threshold, options.readout, options.budget)
    say(unfinished(classifier))
    asked = options.inputs or _examples(classifier)
    names, rows, notes, problems = read_inputs(asked, classifier.input_shape, classifier.columns)
    say([*notes, *(f"skipped: {problem}" for problem in problems)])
    if not options.inputs:
        say([f"note: no input given: these are the {_stored(len(names), classifier)} stored with the model"])
    answers = (answer for path in _refine(rows, classifier, options) for answer in _answers(path, classifier, options))
    records = [{"input": name, **answer} for name, answer in zip(names, answers, strict=True)]
    _show(records, classifier, options)
    if options.abstain_below is not None:
        say([_worth(options, options.abstain_below, classifier)])
    if problems:
        sys.exit(SOME_UNREAD)


def _check(options: Predict) -> None:
    check_steps(options.max_steps)
    require(options.max_ms is None or options.max_ms > 0, "max_ms", options.max_ms, "above 0")
    require(options.top >= 1, "top", options.top, "at least 1")
    least = options.abstain_below
    require(least is None or 0 < least <= 1, "abstain_below", least, "above 0 and at most 1")
    if options.csv and (options.json or options.trace):
        raise RicnetError(f"--csv and --{'json' if options.json else 'trace'} are two forms of output; choose one.")


def _examples(classifier: Classifier) -> tuple[str, ...]:
    """What came with the model, where the user gives nothing."""
    examples = None if classifier.folder is None else RunFolder(classifier.folder).examples
    if examples is None or not examples.is_file():
        raise RicnetError(
            "ric predict needs something to classify: image files, a folder, a table, an .npz file, a sentence, or - "
            "for standard input."
        )
    return (str(examples),)


def _stored(count: int, classifier: Classifier) -> str:
    kind = {"image": "image", "tokens": "text", "features": "row"}[classifier.kind]
    return f"{count} test {kind}s" if count > 1 else f"test {kind}"


def _worth(options: Predict, least: float, classifier: Classifier) -> str:
    """Validation data was answered as the run was trained, so that it says nothing of another way to halt."""
    changed = [name for name in ("halt_threshold", "budget", "readout", "max_ms") if getattr(options, name) is not None]
    changed += ["max_steps"] * ((options.max_steps or 0) > getattr(classifier.asked, "horizon", 1))
    if changed or classifier.folder is None:
        flag = f" with --{changed[0].replace('_', '-')}" if changed else ""
        return f"What {least:g} is worth{flag} was not measured on validation data."
    return validation_sentence(classifier.folder, least, options.max_steps)


def _refine(inputs: Num[Tensor, "n ..."], classifier: Classifier, options: Predict) -> Iterator[Trajectory]:
    """Batch by batch; but a deadline is each input's own, so that under one they come one at a time, after a first
    answer that is not counted and makes the device ready."""
    batch = pool_size(len(classifier.class_names))
    if options.max_ms is not None:
        batch, classifier = 1, classifier.recorded()
        classifier.refine(inputs[:1], options.max_steps)
    for part in inputs.split(batch):
        yield classifier.refine(part, options.max_steps, not options.trace, options.max_ms)


def _answers(path: Trajectory, classifier: Classifier, options: Predict) -> list[dict[str, Any]]:
    """What there is to say of each input of a batch."""
    if path.final.isnan().any():
        raise RicnetError("the model has no answer to numbers this far from those it was trained on; check the input.")
    best = path.final.exp().topk(min(options.top, len(classifier.class_names)))
    costs = None if path.cost is None else path.cost.tolist()
    answers: list[dict[str, Any]] = []
    for row, (probabilities, classes, steps) in enumerate(
        zip(best.values.tolist(), best.indices.tolist(), path.halt_step.tolist(), strict=True)
    ):
        top = [
            {"class": classifier.class_names[k], "probability": p} for p, k in zip(probabilities, classes, strict=True)
        ]
        unsure = options.abstain_below is not None and probabilities[0] < options.abstain_below
        said = UNSURE if unsure else top[0]["class"]
        answer = {"answer": said, "confidence": probabilities[0], "steps": steps, "top": top}
        if costs is not None:
            answer["cost"] = costs[row]
        if options.trace:
            answer["log_beliefs"] = path.log_beliefs[:, row].cpu().numpy()
            answer["values"] = None if path.values is None else path.values[:, row].cpu().numpy()
            chances = path.halt_probability
            answer["halt_probability"] = None if chances is None else chances[:, row].cpu().numpy()
            answer |= {"costs": path.costs} if path.costs else {}
        answers.append(answer)
    return answers


def _show(records: list[dict[str, Any]], classifier: Classifier, options: Predict) -> None:
    if options.json:
        for record in records:
            print(json.dumps(_plain(record)))
    elif options.csv:
        _write_csv(records, options.top)
    elif options.trace:
        console = Console()
        for record in records:
            console.print(f"\n{_headline(record)}", highlight=False, markup=False, style="bold")
            top = max(3, options.top)
            seen = (record["log_beliefs"], record["values"], record["steps"])
            exits = (record.get("costs", ()), classifier.config.network.steps_per_exit)
            end = _end(len(record["log_beliefs"]), classifier, options)
            threshold = getattr(classifier.method, "halt_threshold", 0.0)
            console.print(trace_lines(*seen, classifier.class_names, top, *exits, end, threshold))
    else:
        if not options.inputs and classifier.text is None:  # nobody typed the path of the stored examples
            records = [record | {"input": f"example {number}"} for number, record in enumerate(records)]
        Console().print(_table(records))


def _end(made: int, classifier: Classifier, options: Predict) -> str:
    """Why no more steps were made."""
    exits = len(getattr(classifier.model, "costs", ()))
    horizon = getattr(classifier.asked, "horizon", None)  # None of a method that answers at once
    wanted = 1 if horizon is None else options.max_steps or int(horizon)
    if made < (min(wanted, exits) if exits else wanted):
        return TIME_UP
    return "last exit" if made == exits else "last step"


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """JSON's numbers: beliefs as probabilities, step by step."""
    traced = ("log_beliefs", "values", "halt_probability")
    plain = {name: value for name, value in record.items() if name not in traced}
    if "log_beliefs" in record:
        plain["beliefs"] = torch.from_numpy(record["log_beliefs"]).exp().tolist()
        plain |= {name: None if record[name] is None else record[name].tolist() for name in traced[1:]}
    return plain


def _write_csv(records: list[dict[str, Any]], top: int) -> None:
    places = range(1, len(records[0]["top"]) + 1) if top > 1 else ()
    ranked = [f"{what}_{place}" for place in places for what in ("class", "probability")]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    cost = ["cost"] if "cost" in records[0] else []
    writer.writerow(["input", "answer", "confidence", "steps", *cost, *ranked])
    for record in records:
        best = [entry[what] for entry in record["top"] for what in ("class", "probability")] if top > 1 else []
        row = [*(record[name] for name in ("input", "answer", "confidence", "steps", *cost)), *best]
        writer.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])


def _headline(record: dict[str, Any]) -> str:
    steps = counted(record["steps"], "step")
    if "cost" in record:
        steps += f", {record['cost']:.0%} of compute"
    return printable(f"{record['input']}: {record['answer']} ({record['confidence']:.1%}) after {steps}")


def _table(records: list[dict[str, Any]]) -> Table:
    exits = "cost" in records[0]
    titles = ("input", "answer", "confidence", "steps", *(["compute"] if exits else []))
    table = Table(*titles, box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"  # a path cut short is no use
    for record in records:
        lines = [(str(t["class"]), f"{t['probability']:.1%}") for t in record["top"]]
        if record["answer"] == UNSURE:
            lines = [(UNSURE, lines[0][1])] if len(lines) == 1 else [(UNSURE, ""), *lines]
        answers, confidences = ("\n".join(column) for column in zip(*lines, strict=True))
        work = [str(record["steps"]), *([f"{record['cost']:.0%}"] if exits else [])]
        table.add_row(Text(printable(record["input"])), Text(printable(answers)), confidences, *work)
    return table
