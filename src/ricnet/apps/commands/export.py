"""`ric export` writes a trained run as an ONNX file; `ric push` uploads it to the Hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console

from ricnet.apps.cli import Positional, make_folder, parse
from ricnet.apps.commands.model import Answering, open_model
from ricnet.errors import RicnetError


@dataclass(frozen=True)
class Export(Answering):
    """Write a trained run as one ONNX file (pip install 'ricnet[onnx]') with normalisation, network and halting rule.
    Its input is `input`, a batch of uint8 images, float features or int32 token ids, as in training; its outputs are
    `probabilities` and `steps`, with exits also `cost`. The file is compared with PyTorch before it is written.
    examples/onnx_consumer.py shows how to use one."""

    run: Annotated[str, Positional("RUN")]
    """Folder that ric train wrote, or pretrained:NAME."""
    out: Path = Path("model.onnx")
    """File to write."""
    overwrite: bool = False
    """Replace the file if it exists."""
    fixed_steps: int | None = None
    """Make this many steps for every input, without a loop, and return `beliefs` after each of them (steps, batch,
    classes), the `steps` after which each input would stop, and RIC's `values`."""


def export(arguments: Sequence[str]) -> None:
    options: Export = parse(Export, arguments, "export")
    if options.out.suffix.lower() != ".onnx":
        raise RicnetError(f"--out {options.out} is not an ONNX file; give a name that ends in .onnx.")
    if options.out.exists() and not options.overwrite:
        raise RicnetError(f"--out {options.out} exists already; choose another name, or replace it with --overwrite.")
    classifier = open_model(options.run, how=options)
    make_folder(options.out.parent)
    from ricnet.models.onnx import export_onnx

    with Console(stderr=True).status("exporting …"):
        found = export_onnx(classifier, options.out, options.max_steps, options.fixed_steps)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    console.print(
        f"On {found.inputs} inputs its probabilities differ from PyTorch's by at most {found.difference:.1e}, "
        f"and {found.same_steps} of them halt at the same step."
    )
    if classifier.text is not None:
        console.print(f"It reads {classifier.text.rule}")
    elif classifier.columns is not None:
        console.print(
            f"It reads {classifier.columns.width} numbers per row, not cells: how the cells of "
            f"{len(classifier.columns.inputs)} columns become numbers is in its metadata, as JSON, under columns."
        )


@dataclass(frozen=True)
class Push:
    """Upload a trained model to the Hub, with its settings, results and a model card, and without its data. Others then
    use it by its name: ric predict user/name photo.jpg. Log in first: hf auth login, or $HF_TOKEN."""

    run: Annotated[str, Positional("RUN")]
    """Folder that ric train wrote."""
    repo: Annotated[str, Positional("USER/NAME")]
    """Repository on the Hub; created if it does not exist."""
    private: bool = False
    """Make the repository private if it does not exist yet."""


def push(arguments: Sequence[str]) -> None:
    options: Push = parse(Push, arguments, "push")
    from ricnet.models.hub import push_to_hub

    print(push_to_hub(open_model(options.run), options.repo, options.private))
