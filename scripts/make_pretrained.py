"""Make a model that comes with ricnet out of a finished run.

    python scripts/make_pretrained.py RUN --name cifar10

Matrices and kernels are stored in half precision and loaded in single precision. The stored examples are classified
with both; an answer that changes is an error. `ric evaluate pretrained:NAME` measures the stored weights on a test set.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ricnet.errors import RicnetError
from ricnet.models.loading import load
from ricnet.models.locate import PRETRAINED
from ricnet.models.run import RunFolder
from ricnet.report.card import classes_text, data_text, numbers_table, recipe_text
from ricnet.report.runs import RunRecord, read_run

MOST_BYTES = 6_000_000
COPIED = ("config.json", "evaluation.json", "examples.npz", "calibration.json", "halting.json")
KEPT = ("epoch", "update", "seconds", "images_per_second", "val")
"""Parts of a line of metrics.jsonl that the report draws."""
LIMITS = """\
- It knows {count} classes and always answers with one of them, possibly with high confidence: confidence compares the
  {count} classes and does not say whether any of them is present.
- It reads {shape} pixels. Larger images are cropped and resized to that size.
- Its calibration was measured on test images like its training images. On other images (drawings, other cameras, blur,
  noise, adversarial images) expect overconfidence.
- It is a demonstration and a baseline. Do not use it for decisions about people, or where a wrong answer does harm."""
DATA_LIMITS = {
    "cifar10": """\
- About 3 % of the test images of CIFAR-10 have a near-duplicate among its training images (Barz and Denzler, 2020), so
  accuracies on CIFAR-10 are slightly too high."""
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="finished run folder")
    parser.add_argument("--name", required=True, help="what it is loaded by: pretrained:NAME")
    arguments = parser.parse_args()
    try:
        target = make(arguments.run, PRETRAINED, arguments.name)
    except RicnetError as error:
        sys.exit(f"make_pretrained: {error}")
    print((target / "card.md").read_text(encoding="utf-8"))
    print(f"written to {target}")


def make(run: Path, shelf: Path, name: str) -> Path:
    """Write a draft, check it, then replace the old model."""
    record, target = read_run(run), shelf / name
    shelf.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".making-", dir=shelf))
    try:
        for file in COPIED:
            if (run / file).is_file():
                shutil.copy(run / file, beside / file)
        (beside / "metrics.jsonl").write_text("".join(map(slim_line, record.metrics)), encoding="utf-8")
        (beside / "model.safetensors").write_bytes(save(halved(load(run).model.state_dict())))
        RunFolder(beside).write_manifest()
        check_size(beside)
        check_answers(run, beside, record)
        (beside / "card.md").write_text(card(read_run(beside), name), encoding="utf-8")
        beside.chmod(0o755)  # temporary folders are private
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def halved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and kernels in half precision. Statistics and biases are few, and a variance may be too small for half
    precision, so they are unchanged."""
    return {
        name: (tensor.half() if tensor.is_floating_point() and tensor.dim() > 1 else tensor).contiguous()
        for name, tensor in weights.items()
    }


def slim_line(entry: Mapping[str, object]) -> str:
    return json.dumps({key: entry[key] for key in KEPT if key in entry}) + "\n"


def check_size(folder: Path) -> None:
    size = (folder / "model.safetensors").stat().st_size
    if size > MOST_BYTES:
        raise RicnetError(
            f"the weights take {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: train a narrower one."
        )


@torch.no_grad()
def check_answers(run: Path, made: Path, record: RunRecord) -> None:
    """Compare answers on the same machine and device, so that only the rounding of the weights differs."""
    if record.examples is None:
        raise RicnetError(f"{run} holds no examples.npz to check the stored weights with: train the run again.")
    before, after = (load(folder).refine(record.examples.inputs, halt=False) for folder in (run, made))
    changed = before.final.argmax(-1) != after.final.argmax(-1)
    if changed.any():
        rows = ", ".join(str(row) for row in changed.nonzero().flatten().tolist())
        raise RicnetError(f"half precision changes the answer to example {rows} of {run}: ship another run.")
    steps = int((before.halt_step != after.halt_step).sum())
    largest = float((before.final.exp() - after.final.exp()).abs().max())
    print(f"{len(changed)} examples: equal answers, {steps} with other steps, beliefs differ by {largest:.1e} at most")


def card(run: RunRecord, name: str) -> str:
    """Model card in Markdown, made from the files of the folder."""
    shape = " × ".join(str(side) for side in run.data["input_shape"])
    limits = LIMITS.format(count=len(run.class_names), shape=shape)
    parts = [
        f"# pretrained:{name}",
        f"{run.method} on {run.data_title}: {classes_text(run.class_names)}.",
        f"    ric predict pretrained:{name} photo.png --trace",
        f"## Data\n\n{data_text(run)}",
        f"## Recipe\n\n{recipe_text(run)} {_storage(run)}",
        f"## What it reaches\n\n{numbers_table(run)}",
        "\n".join(filter(None, [f"## Limits\n\n{limits}", DATA_LIMITS.get(run.data_name, "")])),
    ]
    return "\n\n".join(parts) + "\n"


def _storage(run: RunRecord) -> str:
    size = (run.path / "model.safetensors").stat().st_size / 1e6
    return f"Matrices are stored in half precision, {size:.1f} MB in all."


if __name__ == "__main__":
    main()
