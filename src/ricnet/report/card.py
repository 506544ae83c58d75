"""Writes the model card of a run for the Hub: README.md with a header that the Hub reads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ricnet.errors import counted, listing
from ricnet.io import TABLE, short, write_atomically
from ricnet.report.collapses import alarm_words
from ricnet.report.comparison import ACCURACY, BRIER, CELLS, COST, ECE, ECE_SIGNED, NLL, STEPS, Metric
from ricnet.report.figures import house_style
from ricnet.report.names import DATA_TITLES, system_name
from ricnet.report.page import refinement_words
from ricnet.report.pictures import reliability
from ricnet.report.runs import RunGroup, RunRecord, judged_words, untested_note
from ricnet.report.tables import Cell, Grid, markdown_safe, markdown_table, number, percent

DIAGRAM = "reliability.png"
TAGS = ("ricnet", "calibration", "adaptive-computation", "reinforcement-learning")
SHOWN = (ACCURACY, ECE, ECE_SIGNED, NLL, BRIER, STEPS, CELLS, COST)
IN_HEADER = (ACCURACY, ECE, NLL, BRIER, STEPS)
"""Metrics in the header."""
MAX_CLASSES = 20
"""Maximum classes that are named."""
ITERATIVE = """\
It starts from the uniform belief, changes it in up to {steps} steps, and answers with a probability for every class. It
was trained with ricnet, which implements [Reinforced Iterative Classification](https://arxiv.org/abs/2604.22110) and
its baselines."""
ONE_PASS = """\
It answers in one pass with a probability for every class. It was trained with ricnet, as a baseline for [Reinforced
Iterative Classification](https://arxiv.org/abs/2604.22110)."""
UNMEASURED = "There are no measurements of this model: its weights differ from those that the training run evaluated."
LIMITS = """\
- It knows {count} classes and always answers with one of them, possibly with high confidence: confidence compares the
  {count} classes and does not say whether any of them is present.
- {inputs}
- Its calibration was measured on data like its training data. On other data expect overconfidence; measure it on your
  own data before you rely on it."""
USE = """\
    pip install 'ricnet[hub]'

```python
import ricnet

model = ricnet.load("{name}"{encoder})
path = model.refine({inputs}
path.final.exp(), path.halt_step  # probabilities, and steps taken
```"""
INPUTS = {
    "image": "images)  # uint8 (batch, channels, height, width)",
    "text": '["a sentence", "another one"])',
    "row": "rows)  # float32 (batch, columns)",
}
IMAGES = "Its inputs are {shape} pixels. Larger images are cropped and resized to that size.{centre}"
CENTRE = " It reads the central {side} × {side} pixels of an input; training cut random crops out of the whole."
TEXTS = "It reads the first {tokens} {pieces} of a text, in the language of its training data."
ROWS = "It reads rows of {columns} numbers, in the order and units of its training data."


def model_card(config: Mapping[str, Any], data: Mapping[str, Any], name: str, run: RunRecord | None) -> str:
    """The card in Markdown. `config` and `data` are as in config.json; `run` is None if the model was not evaluated."""
    kind = "image" if len(data["input_shape"]) == 3 else "text" if _text(data) else "row"
    source = Path(config["data"]).name
    title = DATA_TITLES.get(source, short(source, TABLE))
    most = run.max_steps if run is not None else config["method"].get("horizon")
    parts = [
        f"---\n{_header(name, title, kind, run)}---",
        f"# {name.rpartition('/')[2]}",
        f"{system_name(config)} on {markdown_safe(title)}: {classes_text(data['class_names'])}.",
        ITERATIVE.format(steps=most) if most is not None and (most > 1 or "horizon" in config["method"]) else ONE_PASS,
        f"## Use\n\n{_use(name, kind, config['network']['encoder'] == 'custom')}",
        f"## What it reaches\n\n{UNMEASURED if run is None else _measured(run)}",
        *([] if run is None else [f"## Data\n\n{data_text(run)}", f"## Recipe\n\n{recipe_text(run)}"]),
        f"## Limits\n\n{_limits(data, kind, config.get('oversize', 1.0))}",
    ]
    return "\n\n".join(parts) + "\n"


def _text(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The text column, if there is one."""
    columns = data.get("columns", {}).get("inputs", [])
    return next((column for column in columns if column["kind"] == "text"), None)


def draw_diagram(run: RunRecord, folder: Path) -> None:
    with house_style():
        figure = reliability([RunGroup(run.label, (run,))]).figure
        write_atomically(folder / DIAGRAM, lambda draft: figure.savefig(draft, format="png", dpi=200))


def _header(name: str, title: str, kind: str, run: RunRecord | None) -> str:
    """YAML with values written as JSON, which quotes any name."""
    task = f"{ {'row': 'tabular'}.get(kind, kind) }-classification"
    entries: dict[str, Any] = {"library_name": "ricnet", "pipeline_tag": task, "tags": TAGS}
    if run is not None:
        metrics = [
            {"type": m.name, "name": _title(m, run), "value": run.test[m.name]}
            for m in IN_HEADER
            if m.of(run) is not None
        ]
        data = {"name": title, "type": Path(run.data_name).name, "split": run.judged_on}
        results = [{"task": {"type": task}, "dataset": data, "metrics": metrics}]
        entries["model-index"] = [{"name": name.rpartition("/")[2], "results": results}]
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items())


def _use(name: str, kind: str, custom: bool) -> str:
    encoder = ", encoder=encoder" if custom else ""
    own = "\n\nThe encoder is a module of the author, which is needed to load the weights." if custom else ""
    asked = {"image": "photo.png", "text": '"a sentence"'}.get(kind)
    shell = f"\n\n    ric predict {name} {asked} --trace" if asked and not custom else ""
    return USE.format(name=name, encoder=encoder, inputs=INPUTS[kind]) + shell + own


def _measured(run: RunRecord) -> str:
    alt = f"Reliability diagram and histogram of confidence; expected calibration error {run.test['ece']:.3f}"
    reading = "*Accuracy of test answers by confidence; a calibrated model has bars at the diagonal.*"
    parts = [
        untested_note([run]),
        f"{words[0].upper()}{words[1:]}." if (words := alarm_words(run.collapses)) else "",
        numbers_table(run),
        refinement_words(RunGroup(run.label, (run,))) if run.iterative else "",
        f"![{alt}]({DIAGRAM})\n\n{reading}",
    ]
    return judged_words("\n\n".join(filter(None, parts)), [run])


def _limits(data: Mapping[str, Any], kind: str, oversize: float) -> str:
    shape = " × ".join(str(side) for side in data["input_shape"])
    pieces = "tokens" if (_text(data) or {}).get("tokenizer") else "words and word pairs"
    reads = {"image": IMAGES, "text": TEXTS, "row": ROWS}[kind]
    centre = CENTRE.format(side=round(data["input_shape"][-1] / oversize)) if oversize > 1 else ""
    inputs = reads.format(shape=shape, columns=shape, tokens=shape, pieces=pieces, centre=centre)
    return LIMITS.format(count=len(data["class_names"]), inputs=inputs)


def classes_text(names: Sequence[str]) -> str:
    """The first MAX_CLASSES names and the number of the others."""
    shown = [markdown_safe(short(name, TABLE)) for name in names[:MAX_CLASSES]]
    return listing(shown if len(names) <= MAX_CLASSES else [*shown, f"{len(names) - MAX_CLASSES} more"])


def data_text(run: RunRecord) -> str:
    rows = run.data["rows"]
    noise = f" {percent(run.label_noise, 0)} of the training labels were flipped." if run.label_noise else ""
    chosen = "" if run.final_fit else f" {rows['val']:,} to choose the epoch,"
    counts = f"{rows['train']:,} to train on,{chosen} {rows['test']:,} to test"
    return f"{markdown_safe(run.data_title)}: {counts}.{noise}"


def recipe_text(run: RunRecord) -> str:
    network, course = run.config["network"], run.config["optimization"]
    width = f" of width {network['width']:g}" if network["width"] != 1 else ""
    if network.get("freeze"):
        width = ", frozen, and a small network after it"
    encoder = "The usual encoder for inputs of this size" if network["encoder"] == "auto" else network["encoder"]
    selected, seconds = run.evaluation.get("selected_epoch"), run.training_seconds
    spent = "Trained" if seconds is None else f"{number(seconds, 0)} seconds of training"
    return (
        f"{encoder}{width}, {counted(course['epochs'], 'epoch')} of batches of {course['batch_size']}, "
        f"{course['optimizer']} at {course['lr']:g}, seed {run.config['seed']}; the weights are those of epoch "
        f"{selected}, {'the last one' if run.final_fit else 'chosen on validation data'}. {spent} on "
        f"{run.hardware.get('name', 'unknown')}, PyTorch {run.hardware.get('torch', 'unknown')}, ricnet {run.version}. "
        "Every setting is in config.json."
    )


def numbers_table(run: RunRecord) -> str:
    rows = [
        [Cell(_title(metric, run)), Cell(metric.write(metric.of(run), unit=True))]
        for metric in SHOWN
        if metric.name in run.test
    ]
    return markdown_table(Grid([f"on {run.test['n']:,} test examples", ""], rows))


def _title(metric: Metric, run: RunRecord) -> str:
    return f"ECE ({run.test['ece_bins']} bins)" if metric is ECE else metric.title
