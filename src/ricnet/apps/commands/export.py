"""ric export: a trained run as one ONNX file, which needs neither PyTorch nor ricnet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from ricnet.apps.cli import make_folder, parse
from ricnet.apps.commands.evaluate import adjust
from ricnet.apps.commands.settings import Answering
from ricnet.errors import RicnetError
from ricnet.models.loading import load
from ricnet.models.onnx import export_onnx
from ricnet.training.console import say, unfinished


@dataclass(frozen=True)
class Export(Answering):
    """Write a trained run as one ONNX file (pip install 'ricnet[onnx]'): normalisation, network and the loop that stops
    by itself. It takes `input`, uint8 images, float features or int32 token ids as the run was trained on, a batch of
    one row or more, and gives `probabilities` and `steps`, with exits also `cost`. The file is compared with PyTorch
    before it is written. examples/onnx_consumer.py shows how to use one."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote, or pretrained:NAME."""
    out: Path = Path("model.onnx")
    """File to write."""
    overwrite: bool = False
    """Replace the file if it is there."""
    fixed_steps: int | None = None
    """Make so many steps for every input, without a loop, and give `beliefs` after each of them (steps, batch,
    classes), the `steps` after which each input would stop, and RIC's `values`."""


def main(arguments: Sequence[str]) -> None:
    options: Export = parse(Export, arguments, "export")
    if options.out.suffix.lower() != ".onnx":
        raise RicnetError(f"--out {options.out} is no name of a model; give one that ends in .onnx.")
    if options.out.exists() and not options.overwrite:
        raise RicnetError(f"--out {options.out} is there already; choose another name, or replace it with --overwrite.")
    classifier = adjust(load(options.run), options.halt_threshold, options.readout, options.budget)
    say(unfinished(classifier))
    make_folder(options.out.parent)
    with Console(stderr=True).status("exporting …"):
        found = export_onnx(classifier, options.out, options.max_steps, options.fixed_steps)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    console.print(
        f"On {found.inputs} inputs it agrees with PyTorch within {found.difference:.1e}, "
        f"and {found.same_steps} of them halt at the same step."
    )
    if classifier.text is not None:
        console.print(f"It reads {classifier.text.rule}")
    elif classifier.columns is not None:
        console.print(
            f"It reads {classifier.columns.width} numbers a row, not cells: how those of "
            f"{len(classifier.columns.inputs)} columns become numbers is in its metadata, as JSON, under columns."
        )
