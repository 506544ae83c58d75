"""Models that come with ricnet: `pretrained:NAME` stands wherever a run folder does."""

from pathlib import Path

from ricnet.errors import RicnetError
from ricnet.io import user_path
from ricnet.training.hub import fetch, is_hub_id

PREFIX = "pretrained:"
SHELF = Path(__file__).parents[1] / "pretrained"


def locate(run: str | Path) -> Path:
    """The folder of a run: the one given, or where the model of that name is, one of ricnet's own or of the Hub's."""
    if not str(run).startswith(PREFIX):
        path = user_path(run)
        return fetch(str(run)) if is_hub_id(run) else path
    name = str(run).removeprefix(PREFIX)
    if name not in pretrained_names():
        known = ", ".join(PREFIX + each for each in pretrained_names()) or "no pretrained models"
        raise RicnetError(
            f"{run} does not come with this ricnet, which has {known}; give a folder that ric train wrote."
        )
    return SHELF / name


def pretrained_names() -> list[str]:
    return sorted(path.parent.name for path in SHELF.glob("*/config.json"))
