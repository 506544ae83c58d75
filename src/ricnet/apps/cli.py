"""`ric`: finds the command, runs it, and turns what the user can mend into one sentence and exit code 2."""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from ricnet.errors import Interrupted, RicnetError, what_else
from ricnet.io import printable
from ricnet.threads import settle_threads
from ricnet.version import __version__

COMMANDS = {
    "train": "train a classifier: on digits, a named data set, a folder of images, a table or an .npz file",
    "evaluate": "accuracy, calibration and steps of a trained run, on its data or on other data",
    "predict": "classify images, tables or arrays; --trace shows the belief after every step",
    "report": "one HTML page about a run, or comparing several",
    "compare": "train several systems with several seeds and compare them, with intervals and tests",
    "reproduce": "the tables, figures and theorems of the paper, each by one command",
    "sweep": "look for better settings with Optuna, on one machine or several",
    "export": "write a trained run as one ONNX file that stops by itself",
    "push": "put a trained run on the Hub, where others load it by its name",
    "serve": "answer over HTTP, with a page on which to watch the model think",
    "demo": "the page at once: the pretrained model, or digits learned on the spot",
    "data": "list, fetch and check the named data sets",
}

HELP = f"""\
ric {__version__}: classifiers that refine a belief in steps and learn when to stop.

usage: ric COMMAND [OPTIONS]

{chr(10).join(f"  {name:<10}{text}" for name, text in COMMANDS.items())}

Start here:
  ric train                                         learn scikit-learn's digits: a minute or two on a laptop
  ric predict runs/digits-ric-seed0 runs/digits-ric-seed0/examples.npz --trace
  ric COMMAND --help                                what each command can do
"""


def main(args: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if args is None else args)
    settle_threads()
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
    except BrokenPipeError:  # the reader of our output has seen enough, as with `| head`
        sys.stderr.close()
    except (OSError, MemoryError) as error:  # of the machine, not of ours
        _complain(f"the machine cannot do it ({str(error) or 'its memory is used up'}); mend that and try again.")
        sys.exit(RicnetError.exit_code)


def _complain(sentence: str) -> None:
    rank = os.environ.get("RANK", "0")  # torchrun's number of this process, where it started several
    name = "ric" if rank == "0" else f"ric, process {rank}"
    text = f"[bold red]{name}:[/] {escape(printable(sentence))}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
    elif arguments[0] == "--version":
        print(f"ric {__version__}")
    elif arguments[0] in COMMANDS:
        if arguments[0] != "train" and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
            raise RicnetError(f"ric {arguments[0]} runs in one process; torchrun is for ric train.")
        # Imported here, so that help and typing errors do not wait for torch.
        importlib.import_module(f"ricnet.apps.commands.{arguments[0]}").main(arguments[1:])
    else:
        raise RicnetError(f"{arguments[0]!r} is not a command; {what_else(arguments[0], COMMANDS)}")
