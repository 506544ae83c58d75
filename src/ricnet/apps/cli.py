"""`ric`: finds and runs a command, and prints an error that the user can fix as one sentence."""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from ricnet.errors import Interrupted, RicnetError, what_else
from ricnet.io import printable
from ricnet.version import __version__

COMMANDS = {
    "train": "train a classifier on a named data set, images, texts or a table",
    "evaluate": "scores of a trained run, on its own data or on other data",
    "predict": "classify images, texts or rows; --trace shows every step",
    "calibrate": "give a run unseen labelled data, for prediction sets and limits",
    "monitor": "compare new data with the calibration data of a run",
    "report": "one HTML page about a run, or about several in comparison",
    "compare": "train several systems with several seeds, and test differences",
    "reproduce": "the tables, figures and theorems of the paper",
    "sweep": "search for better settings with Optuna",
    "export": "write a trained run as one ONNX file that halts by itself",
    "push": "upload a trained run to the Hub, where others load it by name",
    "serve": "answer over HTTP, with a page that shows the belief by step",
    "demo": "the page of serve with the pretrained model, or one of digits",
    "data": "list, download and check the named data sets",
}
MODULES = {"reproduce": "report", "push": "export", "demo": "serve"}
"""Commands that share a module of `commands` with another one."""

HELP = f"""\
ric {__version__}: classifiers that refine a belief in steps and learn when to stop.

usage: ric COMMAND [OPTIONS]

{chr(10).join(f"  {name:<10}{text}" for name, text in COMMANDS.items())}

Start here:
  ric train            train on scikit-learn's digits, in a minute or two
  ric predict runs/digits-ric-seed0 --trace
  ric COMMAND --help   options of a command
"""


def main(args: Sequence[str] | None = None) -> None:
    arguments = with_dashes(sys.argv[1:] if args is None else args)
    warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # class names in scripts that our font lacks
    try:
        _dispatch(arguments)
    except (Interrupted, KeyboardInterrupt) as stop:
        if os.environ.get("RANK", "0") == "0":
            _complain(str(stop) or "stopped before it was done; start it with the same command.")
        sys.exit(Interrupted.exit_code)
    except RicnetError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        sys.stderr.close()
    except (OSError, MemoryError) as error:
        _complain(f"the operating system reports: {str(error) or 'out of memory'}; fix the cause and try again.")
        sys.exit(RicnetError.exit_code)


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Accept --batch_size for --batch-size; values keep their underscores."""
    split = [argument.partition("=") for argument in arguments]
    return [
        "".join((name.replace("_", "-") if name.startswith("--") else name, equals, value))
        for name, equals, value in split
    ]


def _complain(sentence: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    rank = os.environ.get("RANK", "0")  # torchrun's number of this process
    name = "ric" if rank == "0" else f"ric, process {rank}"
    text = f"[bold red]{name}:[/] {escape(printable(sentence))}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def _dispatch(arguments: list[str]) -> None:
    command = arguments[0] if arguments else "help"
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
    elif command == "--version":
        print(f"ric {__version__}")
    elif command not in COMMANDS:
        raise RicnetError(f"{command!r} is not a command; {what_else(command, COMMANDS)}")
    elif command != "train" and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise RicnetError(f"ric {command} runs in one process; torchrun is for ric train.")
    else:  # imported here, so that help does not wait for torch
        module = importlib.import_module(f"ricnet.apps.commands.{MODULES.get(command, command)}")
        getattr(module, command)(arguments[1:])


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RicnetError(f"--out {path} cannot be made ({error.strerror}); choose another folder.") from error
    return path


def replacing(path: Path) -> str:
    """Note beside the name of a file that is about to be written."""
    return " (replaced)" * path.exists()


if __name__ == "__main__":  # python -m ricnet.apps.cli
    main()
