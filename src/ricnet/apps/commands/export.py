"""`ric export` writes a trained run as an ONNX file; `ric push` uploads it to the Hub."""

from rich.console import Console

from ricnet.apps.cli import make_folder
from ricnet.apps.commands.decisions import open_model
from ricnet.apps.commands.options import Export, Push
from ricnet.errors import RicnetError
from ricnet.models.hub import push_to_hub
from ricnet.models.onnx import export_onnx
from ricnet.terminal import say


def export(options: Export) -> None:
    if options.out.suffix.lower() != ".onnx":
        raise RicnetError(f"--out {options.out} is not an ONNX file; give a name that ends in .onnx.")
    if options.out.exists() and not options.overwrite:
        raise RicnetError(f"--out {options.out} exists already; choose another name, or replace it with --overwrite.")
    classifier = open_model(options.run, "cpu", *options.rule)
    make_folder(options.out.parent)
    with Console(stderr=True).status("exporting …"):
        found = export_onnx(classifier, options.out, options.max_steps, options.fixed_steps)
    lines = [
        f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB",
        f"On {found.inputs} inputs its probabilities differ from PyTorch's by at most {found.difference:.1e}, "
        f"and {found.same_steps} of them halt at the same step.",
    ]
    if classifier.text is not None:
        lines.append(f"It reads {classifier.text.rule}")
    elif classifier.columns is not None:
        lines.append(
            f"It reads {classifier.columns.width} numbers per row, not cells: how the cells of "
            f"{len(classifier.columns.inputs)} columns become numbers is in its metadata, as JSON, under columns."
        )
    say(lines, Console())


def push(options: Push) -> None:
    print(push_to_hub(open_model(options.run), options.repo, options.private))
