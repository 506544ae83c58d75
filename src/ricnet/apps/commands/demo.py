"""ric demo: the demo page with the pretrained model, or with one trained on digits first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ricnet.apps.cli import parse
from ricnet.apps.commands.serve import NEEDED, serve
from ricnet.errors import require_extra

PRETRAINED = "cifar10"
FOLDER = Path("runs") / "digits-demo"
EPOCHS = 12


@dataclass(frozen=True)
class Demo:
    """Show in a browser how a classifier refines its belief (pip install 'ricnet[serve]'): the pretrained CIFAR-10
    model, or, if this installation lacks it, one of scikit-learn's digits, trained first in less than a minute."""

    port: int = 8000
    """Port to listen on; 0 takes any that is free."""
    browser: bool = True
    """Open the page in a browser."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""


def main(arguments: Sequence[str]) -> None:
    options: Demo = parse(Demo, arguments, "demo")
    require_extra("ric demo", *NEEDED)
    from ricnet.apps.server.connections import listen
    from ricnet.models.loading import load
    from ricnet.training.api import pick_device

    with listen("127.0.0.1", options.port) as listening:
        run = prepare(options.device)
        serve(load(run, str(pick_device(options.device))), run, listening, options.browser)


def prepare(device: str) -> str:
    """The run to show; digits are trained only once."""
    from ricnet.models.locate import PREFIX, pretrained_names
    from ricnet.models.run import RunFolder
    from ricnet.training.api import train
    from ricnet.training.console import say

    if PRETRAINED in pretrained_names():
        return PREFIX + PRETRAINED
    if not RunFolder(FOLDER).finished:
        say([f"This installation lacks {PREFIX}{PRETRAINED}; training on digits instead, in {FOLDER}."])
        train("digits", out=FOLDER, epochs=EPOCHS, device=device, overwrite=True)
    return str(FOLDER)
