"""Find a model by name: a run folder, `pretrained:NAME`, which comes with ricnet, or `user/name[@revision]` on the Hub.

Only JSON and safetensors files are fetched from the Hub; reading them executes nothing.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ricnet.errors import RicnetError, first_line, require_extra
from ricnet.io import user_path
from ricnet.models import manifest
from ricnet.version import __version__

PREFIX = "pretrained:"
PRETRAINED = Path(__file__).parents[1] / "pretrained"
FETCHED = (
    *("config.json", "model.safetensors", "encoder.safetensors", "calibration.json", "halting.json"),
    *("evaluation.json", "metrics.jsonl", manifest.NAME),
)
RUNS = "runs"
"""Default folder of `ric train`; runs/NAME is never a Hub id."""
HUB_ID = re.compile(r"(?P<user>\w[\w.-]*)/(?P<name>\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")


def locate(run: str | Path) -> Path:
    """The folder of a run, given as a path or as a name; a model on the Hub is downloaded."""
    if not str(run).startswith(PREFIX):
        return fetch(str(run)) if is_hub_id(run) else user_path(run)
    name = str(run).removeprefix(PREFIX)
    if name not in pretrained_names():
        known = ", ".join(PREFIX + each for each in pretrained_names()) or "no pretrained models"
        raise RicnetError(
            f"{run} is not included in this version of ricnet, which has {known}; give the folder of a run."
        )
    return PRETRAINED / name


def pretrained_names() -> list[str]:
    return sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))


def is_hub_id(run: str | Path) -> bool:
    """False if the path exists, or if only its last part is missing, which is more likely a typo."""
    found = HUB_ID.fullmatch(str(run))
    if found is None or Path(run).suffix == ".json" or Path(run).exists():
        return False
    return found["user"] != RUNS and not Path(found["user"]).is_dir()


def fetch(run: str) -> Path:
    """Download a model of ricnet from the Hub."""
    found = HUB_ID.fullmatch(run)
    assert found is not None
    repo = f"{found['user']}/{found['name']}"
    purpose = f"there is no run at {run}; if it is a model on the Hub, looking there"
    folder = download(repo, found["revision"], FETCHED, purpose)
    if not (folder / "config.json").is_file():
        raise RicnetError(f"{repo} is not a ricnet model: it has no config.json on the Hub; check the name.")
    return folder


def download(repo: str, revision: str | None, patterns: Sequence[str], purpose: str | None = None) -> Path:
    """Download files of a repository into the Hub's cache, which also serves offline. A private repository needs the
    token of `hf auth login` or $HF_TOKEN."""
    hub = require_hub(purpose or f"fetching {repo} from the Hub")
    try:
        folder = hub.snapshot_download(
            repo, revision=revision, allow_patterns=list(patterns), library_name="ricnet", library_version=__version__
        )
    except hub.errors.RevisionNotFoundError as error:
        raise RicnetError(f"{repo} has no revision {revision} on the Hub; see its history there.") from error
    except hub.errors.GatedRepoError as error:
        raise RicnetError(f"{repo} is a gated repository; request access on its page on the Hub.") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise RicnetError(
            f"there is no folder {repo} here and no model {repo} on the Hub that you may see; check the name, or give "
            "a token (hf auth login, or $HF_TOKEN) if it is private."
        ) from error
    except (hub.errors.HTTPError, OSError, ValueError) as error:
        raise RicnetError(f"{repo} could not be fetched from the Hub ({first_line(error)}); try again.") from error
    return Path(folder)


def require_hub(purpose: str) -> Any:
    """The huggingface_hub library, an extra."""
    require_extra(purpose, "hub", "huggingface_hub")
    import huggingface_hub
    import huggingface_hub.errors
    import huggingface_hub.utils

    library: Any = huggingface_hub
    if not sys.stderr.isatty():
        library.utils.disable_progress_bars()
    return library
