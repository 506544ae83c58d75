"""The card of a model that comes with ricnet: what it learned from, how well it does, and what it is not for."""

from collections.abc import Sequence

from ricnet.report.pace import training_seconds
from ricnet.report.published import data_title
from ricnet.report.runs import RunRecord
from ricnet.report.words import TABLE, epochs, listing, markdown_safe, number, percent, short

MOST_CLASSES = 20
"""That are named; of more, the rest are counted."""
MEASURES = {
    "accuracy": "accuracy",
    "ece": "calibration error (ECE, {bins} bins)",
    "ece_signed": "confidence less accuracy",
    "nll": "NLL",
    "brier": "Brier score",
    "mean_steps": "steps on average",
    "mean_cell_evaluations": "evaluations of the cell on average",
}
LIMITS = """\
- It knows {count} kinds of things and nothing else. Whatever it is shown, it answers with one of them, and it can be
  sure of it: a confidence says how the {count} compare, not whether any of them is there.
- It sees {shape} pixels. Larger images are cut to that shape and shrunk to that size first.
- Its confidence was measured on test images drawn like its training images. On anything else (drawings, other cameras,
  blur, noise, images made to mislead it) expect it to be wrong more often than it says.
- It is a demonstration and a baseline. Decide nothing about people by it, and nothing that can do harm when it is
  wrong."""
DATA_LIMITS = {
    "cifar10": """\
- Of CIFAR-10's test images about 3 % have a near-duplicate among the training images (Barz and Denzler, 2020), so every
  accuracy on it is a little too high, this one included."""
}


def card(run: RunRecord, name: str) -> str:
    """In Markdown, from the folder's own files and nothing else."""
    shape = " × ".join(str(side) for side in run.data["input_shape"])
    limits = LIMITS.format(count=len(run.class_names), shape=shape)
    parts = [
        f"# pretrained:{name}",
        f"{run.method} on {data_title(run)}: {classes_text(run.class_names)}.",
        f"    ric predict pretrained:{name} photo.png --trace",
        f"## Data\n\n{data_text(run)}",
        f"## Recipe\n\n{recipe_text(run)} {_storage(run)}",
        f"## What it reaches\n\n{numbers_table(run)}",
        "\n".join(filter(None, [f"## Limits\n\n{limits}", DATA_LIMITS.get(run.data_name, "")])),
    ]
    return "\n\n".join(parts) + "\n"


def classes_text(names: Sequence[str]) -> str:
    """A thousand names tell a reader no more than twenty."""
    shown = [markdown_safe(short(name, TABLE)) for name in names[:MOST_CLASSES]]
    return listing(shown if len(names) <= MOST_CLASSES else [*shown, f"{len(names) - MOST_CLASSES} more"])


def data_text(run: RunRecord) -> str:
    rows = run.data["rows"]
    noise = f" {percent(run.label_noise, 0)} of the training labels were flipped." if run.label_noise else ""
    counts = f"{rows['train']:,} to train on, {rows['val']:,} to choose the epoch, {rows['test']:,} to test"
    return f"{markdown_safe(data_title(run))}: {counts}.{noise}"


def recipe_text(run: RunRecord) -> str:
    network, course = run.config["network"], run.config["optimization"]
    width = f" of width {network['width']:g}" if network["width"] != 1 else ""
    encoder = "The usual encoder for inputs of this size" if network["encoder"] == "auto" else network["encoder"]
    selected, seconds = run.evaluation.get("selected_epoch"), training_seconds(run)
    spent = "Trained" if seconds is None else f"{number(seconds, 0)} seconds of training"
    return (
        f"{encoder}{width}, {epochs(course['epochs'])} of batches of {course['batch_size']}, "
        f"{course['optimizer']} at {course['lr']:g}, seed {run.config['seed']}; the weights are those of epoch "
        f"{selected}, chosen on validation data. {spent} on "
        f"{run.hardware.get('name', 'unknown')}, PyTorch {run.hardware.get('torch', 'unknown')}, ricnet {run.version}. "
        "Every setting is in config.json."
    )


def _storage(run: RunRecord) -> str:
    size = (run.path / "model.safetensors").stat().st_size / 1e6
    return f"Matrices are stored in half precision, {size:.1f} MB in all."


def numbers_table(run: RunRecord) -> str:
    test = run.test
    names = {key: text.format(bins=test["ece_bins"]) for key, text in MEASURES.items() if key in test}
    rows = [f"| {text} | {_text(key, test[key])} |" for key, text in names.items()]
    return "\n".join([f"| on {test['n']:,} test examples | |", "| :--- | ---: |", *rows])


def _text(key: str, value: float) -> str:
    if key == "accuracy":
        return percent(value)
    return number(value, 1 if key.startswith("mean_") else 3)
