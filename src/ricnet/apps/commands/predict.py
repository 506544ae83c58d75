"""ric predict: answers for images and arrays, with the reasoning on request."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from jaxtyping import Num
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ricnet.apps.commands.evaluate import adjust, check_steps
from ricnet.apps.commands.parsing import parse
from ricnet.core.trajectory import Trajectory
from ricnet.data import find_images, read_image, read_npz_inputs
from ricnet.errors import RicnetError, require
from ricnet.evaluation.evaluate import pool_size
from ricnet.report.trace import trace_lines
from ricnet.training.api import pick_device
from ricnet.training.classifier import Classifier, load


@dataclass(frozen=True)
class Predict:
    """Classify image files, folders of images, or the rows of .npz files (array x). Each input is refined until the
    model expects nothing more to gain."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote."""
    inputs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT...")]
    """Image files, folders (searched for images), or .npz files."""
    max_steps: int | None = None
    """Stop after this many steps at the latest."""
    max_ms: float | None = None
    """Answer each input within this many milliseconds of beginning it, with the steps there is time for; at least one
    is made, however long it takes. Inputs are then taken one at a time."""
    halt_threshold: float | None = None
    """Stop once the value falls below this (0 as trained). Raise it to stop earlier."""
    readout: Literal["mean", "mu", "implied"] | None = None
    """Reported belief: mean (the paper), mu (softmax), implied (what the Dirichlet's optimum implies)."""
    top: int = 1
    """How many classes to show for each input."""
    trace: bool = False
    """Show the belief after each step as a small bar chart, and where the model stops."""
    json: bool = False
    """One JSON object a line: input, answer, confidence, steps, top (and the beliefs of each step with --trace)."""
    device: str = "auto"
    """auto, cpu, cuda …"""


def main(arguments: Sequence[str]) -> None:
    options: Predict = parse(Predict, arguments, "predict")
    check_steps(options.max_steps)
    require(options.max_ms is None or options.max_ms > 0, "max_ms", options.max_ms, "above 0")
    if not options.inputs:
        raise RicnetError("ric predict needs something to classify: image files, a folder or an .npz file.")
    if options.top < 1:
        raise RicnetError(f"--top {options.top} is out of range: it must be at least 1.")
    classifier = adjust(load(options.run, str(pick_device(options.device))), options.halt_threshold, options.readout)
    names, inputs = _read(options.inputs, classifier)
    answers = (
        answer for path in _refine(inputs, classifier, options) for answer in _answers(path, classifier, options)
    )
    records = [{"input": name, **answer} for name, answer in zip(names, answers, strict=True)]
    _show(records, classifier, options)


def _read(paths: Sequence[Path], classifier: Classifier) -> tuple[list[str], Num[Tensor, "n ..."]]:
    """All inputs as one tensor, and what to call each."""
    is_image = len(classifier.input_shape) == 3
    names: list[str] = []
    parts: list[Tensor] = []
    for path in paths:
        if path.suffix.lower() == ".npz":
            rows = read_npz_inputs(path, classifier.input_shape, "image" if is_image else "features")
            names += [f"{path}[{row}]" for row in range(len(rows))]
            parts.append(rows)
        elif not is_image and path.exists():
            columns = classifier.input_shape[0]
            raise RicnetError(
                f"{path}: this model reads rows of {columns} features; give an .npz file with an array x."
            )
        else:
            images = (
                _read_folder(path, classifier) if path.is_dir() else {path: read_image(path, classifier.input_shape)}
            )
            names += [str(file) for file in images]
            parts.append(torch.stack(list(images.values())))
    return names, torch.cat(parts)


def _read_folder(folder: Path, classifier: Classifier) -> dict[Path, Tensor]:
    """Every image that can be read; a broken one among many is named and left out."""
    images = {}
    for file in find_images(folder):
        try:
            images[file] = read_image(file, classifier.input_shape)
        except RicnetError as problem:
            Console(stderr=True).print(f"skipped: {problem}", highlight=False, markup=False, soft_wrap=True)
    if not images:
        raise RicnetError(f"{folder} holds no images that can be classified.")
    return images


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
    best = path.final.exp().topk(min(options.top, len(classifier.class_names)))
    answers: list[dict[str, Any]] = []
    for row, (probabilities, classes, steps) in enumerate(
        zip(best.values.tolist(), best.indices.tolist(), path.halt_step.tolist(), strict=True)
    ):
        top = [
            {"class": classifier.class_names[k], "probability": p} for p, k in zip(probabilities, classes, strict=True)
        ]
        answer = {"answer": top[0]["class"], "confidence": top[0]["probability"], "steps": steps, "top": top}
        if options.trace:
            answer["log_beliefs"] = path.log_beliefs[:, row].cpu().numpy()
            answer["values"] = None if path.values is None else path.values[:, row].cpu().numpy()
        answers.append(answer)
    return answers


def _show(records: list[dict[str, Any]], classifier: Classifier, options: Predict) -> None:
    if options.json:
        for record in records:
            print(json.dumps(_plain(record)))
    elif options.trace:
        console = Console()
        for record in records:
            console.print(f"\n{_headline(record)}", highlight=False, markup=False, style="bold")
            top = max(3, options.top)
            lines = trace_lines(record["log_beliefs"], record["values"], record["steps"], classifier.class_names, top)
            console.print(lines)
    else:
        Console().print(_table(records))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """JSON's numbers: beliefs as probabilities, step by step."""
    plain = {name: value for name, value in record.items() if name not in ("log_beliefs", "values")}
    if "log_beliefs" in record:
        plain["beliefs"] = torch.from_numpy(record["log_beliefs"]).exp().tolist()
        plain["values"] = None if record["values"] is None else record["values"].tolist()
    return plain


def _headline(record: dict[str, Any]) -> str:
    steps = "1 step" if record["steps"] == 1 else f"{record['steps']} steps"
    return f"{record['input']}: {record['answer']} ({record['confidence']:.1%}) after {steps}"


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table("input", "answer", "confidence", "steps", box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"  # a path cut short is no use
    for record in records:
        answers = "\n".join(str(t["class"]) for t in record["top"])
        confidences = "\n".join(f"{t['probability']:.1%}" for t in record["top"])
        table.add_row(Text(record["input"]), Text(answers), confidences, str(record["steps"]))
    return table
