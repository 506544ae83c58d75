"""`ric predict`: answers for images, texts, arrays and rows of tables, on request with the belief after each step."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Num
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ricnet.apps.commands.decisions import decide, open_model
from ricnet.apps.commands.options import Predict
from ricnet.core.trajectory import Trajectory
from ricnet.data.inputs import read_inputs
from ricnet.errors import RicnetError, counted
from ricnet.evaluation.choices import NEVER
from ricnet.evaluation.evaluate import pool_size, validation_sentence
from ricnet.io import CLASS, printable, short
from ricnet.models.classifier import Classifier
from ricnet.terminal import say

SOME_UNREAD = 1
"""Exit status if some of the named inputs cannot be read; if none can, it is 2."""
SHADES = "█▓▒░▚"  # bars differ in shade as well as in colour, so that they can be read in a log file
COLOURS = ("blue", "yellow", "magenta", "cyan", "green")  # the terminal's own, so that its theme is kept
TERMINAL, SHORTEST_BAR = 80, 8
TIME_UP = "time's up"
"""Reason for the end, if a time limit ended the steps."""


def predict(options: Predict) -> None:
    classifier, decisions = decide(open_model(options.run, options.device, *options.rule), options)
    asked = options.inputs or _examples(classifier)
    names, rows, notes, problems = read_inputs(asked, classifier.input_shape, classifier.columns)
    say([*notes, *(f"skipped: {problem}" for problem in problems)])
    records: list[dict[str, Any]] = []
    least = options.abstain_below if decisions.answered is None else decisions.answered.threshold
    for path in _refine(rows, classifier, options):
        batch = names[len(records) : len(records) + len(path.halt_step)]
        records += decisions.answers(path, batch, classifier.class_names, options.top, least, options.trace)
    if not options.inputs:
        records = _stored(records, classifier, options)
    _show(records, classifier, options)
    if options.abstain_below is not None:
        say([_coverage(options, options.abstain_below, classifier)])
    if problems:
        sys.exit(SOME_UNREAD)


def _examples(classifier: Classifier) -> tuple[str, ...]:
    """The examples stored in the run folder."""
    examples = None if classifier.folder is None else classifier.folder / "examples.npz"
    if examples is None or not examples.is_file():
        raise RicnetError(
            "ric predict needs something to classify: image files, a folder, a table, an .npz file, a sentence, or - "
            "for standard input."
        )
    return (str(examples),)


def _stored(records: list[dict[str, Any]], classifier: Classifier, options: Predict) -> list[dict[str, Any]]:
    """The examples of the run to print, after a note: with --trace the one that takes the most steps."""
    kind = {"image": "image", "tokens": "text", "features": "row"}[classifier.kind]
    stored = f"the {counted(len(records), f'test {kind}')} stored with the model"
    if not options.trace or options.json:
        say([f"note: no input given; these are {stored}"])
        return records
    say([f"note: no input given; of {stored}, this one takes the most steps (--json has all)"])
    return [max(records, key=lambda record: record["steps"])]


def _coverage(options: Predict, least: float, classifier: Classifier) -> str:
    """Coverage and risk on validation data, which are known only for the halting rule of the run."""
    if classifier.config.final_fit:
        return f"Coverage and risk of {least:g} are unknown: --final-fit held no validation data out."
    changed = [name for name in ("halt_threshold", "budget", "readout", "max_ms") if getattr(options, name) is not None]
    changed += ["max_steps"] * ((options.max_steps or 0) > getattr(classifier.inference, "horizon", 1))
    if changed or classifier.folder is None:
        flag = f" with --{changed[0].replace('_', '-')}" if changed else ""
        return f"Coverage and risk of {least:g}{flag} were not measured on validation data."
    return validation_sentence(classifier.folder, least, options.max_steps)


def _refine(inputs: Num[Tensor, "n ..."], classifier: Classifier, options: Predict) -> Iterator[Trajectory]:
    """In batches; with a time limit one at a time, after a first answer that prepares the device and is not timed."""
    batch = pool_size(len(classifier.class_names))
    if options.max_ms is not None:
        batch, classifier = 1, classifier.recorded()
        classifier.refine(inputs[:1], options.max_steps)
    for part in inputs.split(batch):
        yield classifier.refine(part, options.max_steps, not options.trace, options.max_ms)


def _show(records: list[dict[str, Any]], classifier: Classifier, options: Predict) -> None:
    if options.json:
        for record in records:
            print(json.dumps(record))
    elif options.csv:
        _write_csv(records, options.top)
    elif options.trace:
        _show_steps(records, classifier, options)
    else:
        if not options.inputs and classifier.text is None:  # the user has not given the path of the examples
            records = [record | {"input": f"example {number}"} for number, record in enumerate(records)]
        Console().print(_table(records))


def _show_steps(records: list[dict[str, Any]], classifier: Classifier, options: Predict) -> None:
    console = Console()
    for record in records:
        steps = counted(record["steps"], "step")
        if "cost" in record:
            steps += f", {record['cost']:.0%} of compute"
        line = f"\n{record['input']}: {record['answer']} ({record['confidence']:.1%}) after {steps}"
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True, style="bold")
        table = trace_lines(
            *(np.array(record["beliefs"]), record["values"], record["steps"], classifier.class_names),
            top=max(3, options.top),
            costs=record.get("costs", ()),
            steps_per_exit=classifier.config.network.steps_per_exit,
            end=_end(len(record["beliefs"]), classifier, options),
            threshold=getattr(classifier.method, "halt_threshold", 0.0),
        )
        console.print(table)


def _end(made: int, classifier: Classifier, options: Predict) -> str:
    """Why no more steps were made."""
    exits = len(getattr(classifier.model, "costs", ()))
    horizon = getattr(classifier.inference, "horizon", None)  # None for a method with one step
    wanted = 1 if horizon is None else options.max_steps or int(horizon)
    if made < (min(wanted, exits) if exits else wanted):
        return TIME_UP
    return "last exit" if made == exits else "last step"


def _write_csv(records: list[dict[str, Any]], top: int) -> None:
    places = range(len(records[0]["top"])) if top > 1 else ()
    names = ["input", "answer", "confidence", "steps"]
    names += [name for name in ("cost", "expected_cost", "set") if name in records[0]]
    ranked = [(place, what) for place in places for what in ("class", "probability")]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*names, *(f"{what}_{place + 1}" for place, what in ranked)])
    for record in records:
        record = record | ({"set": "|".join(record["set"])} if "set" in record else {})
        row = [*(record[name] for name in names), *(record["top"][place][what] for place, what in ranked)]
        writer.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])


def _table(records: list[dict[str, Any]]) -> Table:
    exits, sets, priced = ("cost" in records[0], "set" in records[0], "expected_cost" in records[0])
    titles = ["input", "answer", "confidence", "steps", *["compute"] * exits, *["set"] * sets]
    titles += ["expected cost"] * priced
    table = Table(*titles, box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"  # paths are not cut
    for record in records:
        lines = [(str(t["class"]), f"{t['probability']:.1%}") for t in record["top"]]
        if record["answer"] != record["top"][0]["class"]:  # unsure, or another class costs less
            lines = [(record["answer"], lines[0][1])] if len(lines) == 1 else [(record["answer"], ""), *lines]
        answers, confidences = ("\n".join(column) for column in zip(*lines, strict=True))
        more = [f"{record['cost']:.0%}"] if exits else []
        more += [printable(", ".join(record["set"]))] if sets else []
        more += [f"{record['expected_cost']:.3g}"] if priced else []
        cells = (confidences, str(record["steps"]), *more)
        table.add_row(Text(printable(record["input"])), Text(printable(answers)), *map(Text, cells))
    return table


# --trace: a table with the belief after each step as a stacked bar


def trace_lines(
    belief: Float[np.ndarray, "steps classes"],
    values: Sequence[float] | None,
    halt_step: int,
    class_names: Sequence[str],
    top: int = 3,
    costs: Sequence[float] = (),
    steps_per_exit: int = 1,
    end: str = "last step",
    threshold: float = 0.0,
) -> Table:
    """One row per step with the probabilities of the `top` classes (at most five). `costs` are those of a trajectory
    with exits, `end` is the reason for the last step, `threshold` the one of the value."""
    leaders = leading_classes(belief, halt_step, min(top, len(SHADES)))
    places = ["step"] if not costs else ["exit", "compute"] if steps_per_exit == 1 else ["step", "exit", "compute"]
    free = TERMINAL - len(" +0.000 ◀ last step ") - sum(len(place) + 1 for place in places)
    for longest in range(CLASS, 0, -1):  # names are cut only if the bar would be too short
        names = [short(class_names[k], longest) for k in leaders]
        width = min(30, free - sum(max(len(name) + 2, 5) + 1 for name in names))
        if width >= SHORTEST_BAR:
            break
    table = _trace_table(places, names, None if values is None else threshold)
    for step, row in enumerate(belief, start=1):
        shares = row[leaders]
        place = {"step": str(step), "exit": str((step - 1) // steps_per_exit + 1)}
        if costs:
            place["compute"] = f"{100 * costs[step - 1]:.0f} %"
        cells = [Text(place[name]) for name in places]
        cells += [_stacked_bar(shares, width), *(Text(f"{share:.3f}") for share in shares)]
        if values is not None:
            cells.append(Text(f"{values[step]:+.3f}" if step < len(values) else ""))
        cells.append(Text(_mark(step, halt_step, len(belief), end, values is not None, bool(costs)), style="bold"))
        table.add_row(*cells, style="dim" if step > halt_step else None)
    return table


def leading_classes(belief: Float[np.ndarray, "steps classes"], halt_step: int, top: int) -> list[int]:
    """The answer, then the classes of highest probability at any step before the halt."""
    answer = int(belief[halt_step - 1].argmax())
    order = np.argsort(-belief[:halt_step].max(axis=0), kind="stable")
    return [answer, *(int(k) for k in order if k != answer)][:top]


def _trace_table(places: Sequence[str], names: Sequence[str], threshold: float | None) -> Table:
    """An empty table; without a threshold it has no column of values."""
    going, stops = ("looking further", "leaves") if "compute" in places else ("going on", "stops")
    note = None if threshold is None else f"V: the gain expected from {going}; below {threshold:.3g}, it {stops}."
    if threshold == NEVER:
        note = f"V: the gain expected from {going}. All steps are taken."
    table = Table(box=None, padding=(0, 1, 0, 0), caption=note, caption_justify="left", header_style="none")
    for place in places:
        table.add_column(place, justify="right", no_wrap=True)
    table.add_column("belief", no_wrap=True)
    for name, shade, colour in zip(names, SHADES, COLOURS, strict=False):
        table.add_column(Text(f"{shade} {name}", style=colour), justify="right", no_wrap=True)
    if threshold is not None:
        table.add_column("V", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    return table


def _stacked_bar(shares: Float[np.ndarray, "leaders"], width: int) -> Text:
    """Round the ends of parts, not their lengths, so that they do not exceed the width."""
    ends = np.rint(width * np.cumsum(shares)).astype(int).clip(0, width)
    lengths = np.diff(ends, prepend=0)
    bar = Text()
    for length, shade, colour in zip(lengths, SHADES, COLOURS, strict=False):
        bar.append(shade * int(length), style=colour)
    return bar.append("·" * (width - int(ends[-1])), style="dim")


def _mark(step: int, halt_step: int, last: int, end: str, has_values: bool, has_exits: bool) -> str:
    if step != halt_step:
        return ""
    if step == last and (has_values or has_exits or end == TIME_UP):
        return f"◀ {end}"
    return "◀ leaves" if has_exits else "◀ stops"
