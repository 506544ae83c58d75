"""ric push: put a trained run on the Hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ricnet.apps.cli import parse
from ricnet.models.hub import push_to_hub
from ricnet.models.loading import load


@dataclass(frozen=True)
class Push:
    """Put a trained model on the Hub, with its settings, its numbers and a card, and none of the data. Whoever may see
    it there uses it by its name: ric predict user/name photo.jpg. Log in first: hf auth login, or $HF_TOKEN."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder that ric train wrote."""
    repo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]
    """What it is called there; made if it is not there yet."""
    private: bool = False
    """Make the repository private if it does not exist yet."""


def main(arguments: Sequence[str]) -> None:
    options: Push = parse(Push, arguments, "push")
    print(push_to_hub(load(options.run), options.repo, options.private))
