"""Find models and pretrained encoders by name, here or on the Hub, and store an encoder with its run.

A model is a run folder, `pretrained:NAME`, which comes with ricnet, or `user/name[@revision]` on the Hub; an encoder is
`hf:…` or `timm:…`. Only JSON, text and safetensors files are downloaded; reading them executes nothing.
"""

import copy
import hashlib
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import nn

from ricnet.data.texts import MOST_PIECES, Tokenizer, read_tokenizer
from ricnet.errors import RicnetError, first_line, require_extra, setting
from ricnet.io import HUB_ID, PREFIX, is_hub_id, user_path, write_atomically
from ricnet.models.run import LOADED, MANIFEST, RunFolder, file_hash
from ricnet.nets.checkpoints import architecture_from_json, require_hf
from ricnet.nets.encoders import is_pretrained
from ricnet.nets.pretrained import Pretrained, TextEncoder, read_hf, read_timm, rebuild, timm_source
from ricnet.version import __version__

PRETRAINED = Path(__file__).parents[1] / "pretrained"
FETCHED = (*LOADED, "encoder.safetensors", "evaluation.json", "metrics.jsonl", "guarantees.npz", MANIFEST)
"""Files of a model on the Hub."""
HF_FILES = (
    *("config.json", "preprocessor_config.json", "*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
)
"""Files of an encoder on the Hub."""


# Models


def locate(run: str | Path) -> Path:
    """The folder of a run, given as a path or as a name; a model on the Hub is downloaded."""
    if str(run).startswith(PREFIX):
        name, names = str(run).removeprefix(PREFIX), pretrained_names()
        if name not in names:
            known = ", ".join(PREFIX + each for each in names) or "no pretrained models"
            raise RicnetError(
                f"{run} is not included in this version of ricnet, which has {known}; give the folder of a run."
            )
        return PRETRAINED / name
    if not is_hub_id(run):
        return user_path(run)
    folder = download(str(run), FETCHED, f"there is no run at {run}; looking for it on the Hub")
    if not (folder / "config.json").is_file():
        raise RicnetError(f"{run} is not a ricnet model: it has no config.json on the Hub; check the name.")
    return folder


def pretrained_names() -> list[str]:
    return sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))


def download(name: str, patterns: Sequence[str], purpose: str | None = None) -> Path:
    """Download files of `user/name[@revision]` into the Hub's cache, which also serves offline. A private repository
    needs the token of `hf auth login` or $HF_TOKEN."""
    found = HUB_ID.fullmatch(name)
    assert found is not None
    repo, revision = found["repo"], found["revision"]
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


# Pretrained encoders


@lru_cache(maxsize=2)
def find_encoder(name: str) -> Pretrained:
    """The encoder named `hf:…` or `timm:…`; cached, so do not change it."""
    library, _, rest = name.partition(":")
    if library == "hf":
        require_hf()  # before a download
        return read_hf(hf_folder(rest))
    network, at, file = rest.partition("@")
    if at:
        return read_timm(network, user_path(file))
    source = timm_source(network)
    if source is None:
        raise RicnetError(
            f"timm has no weights for {network}; give a file: {setting('encoder', f'timm:{network}@FILE.safetensors')}."
        )
    return read_timm(network, download(source, ("model.safetensors",)) / "model.safetensors")


def named_encoder(name: str) -> Pretrained | None:
    """The pretrained encoder of this name; None for other names."""
    return find_encoder(name) if is_pretrained(name) else None


@lru_cache
def weights_of(name: str) -> str | None:
    """Hash of the weights of a pretrained encoder; None for other names."""
    encoder = named_encoder(name)
    return None if encoder is None else str(describe_encoder(encoder)["weights"])


def find_tokenizer(name: str) -> Tokenizer | None:
    """The tokenizer of a transformers text encoder, else None."""
    if not name.startswith("hf:") or not isinstance(encoder := find_encoder(name), TextEncoder):
        return None
    architecture = encoder.architecture
    longest = architecture.network.get("max_position_embeddings")
    most = longest if isinstance(longest, int) else MOST_PIECES
    return read_tokenizer(hf_folder(name.removeprefix("hf:")), architecture.pad, most)


def hf_folder(name: str) -> Path:
    """The folder of a transformers checkpoint, given as a path or as a repository on the Hub."""
    path = user_path(name)
    if path.is_dir():
        return path
    if HUB_ID.fullmatch(name) is None or path.is_file():
        raise RicnetError(
            f"{setting('encoder', 'hf:' + name)} is neither a folder here nor a model on the Hub (user/name); check it."
        )
    return download(name, HF_FILES)


def cache_folder() -> Path:
    """$RICNET_CACHE, else the user's cache folder."""
    import pooch

    return user_path(os.environ.get("RICNET_CACHE") or pooch.os_cache("ricnet"))


# The encoder of a run. Each run has its own copy of the weights, encoder.safetensors, whose SHA-256 is in config.json.
# So a run folder can be copied, and damage to one run does not affect another.


def describe_encoder(encoder: nn.Module) -> dict[str, Any]:
    """Entry in config.json: architecture, and hash of the initial weights."""
    entry: dict[str, Any] = {"architecture": encoder.architecture.to_json()} if isinstance(encoder, Pretrained) else {}
    return entry | {"weights": hashlib.sha256(_as_bytes(encoder)).hexdigest()}


def keep_encoder(encoder: nn.Module, folder: RunFolder) -> None:
    """Write its weights into the run folder."""
    write_atomically(folder.encoder, lambda draft: draft.write_bytes(_as_bytes(encoder)))


def _as_bytes(encoder: nn.Module) -> bytes:
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()})


def read_encoder(entry: object, folder: RunFolder, own: nn.Module | None = None) -> nn.Module:
    """The encoder of a run. `own` is the caller's module for an encoder without a name."""
    described, path = entry if isinstance(entry, dict) else {}, folder.encoder
    if not path.is_file() or file_hash(path) != described.get("weights"):
        problem = "is damaged (its checksum does not fit)" if path.is_file() else "is missing"
        raise RicnetError(f"{path}, with the weights of its encoder, {problem}; get a whole copy of the run.")
    weights = load_file(path)
    if "architecture" in described:
        return rebuild(architecture_from_json(described["architecture"], str(folder.config)), weights, str(path))
    if own is None:
        raise RicnetError(f"{folder.path} began with an encoder of your own; pass that module as {setting('encoder')}.")
    encoder = copy.deepcopy(own)
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise RicnetError(f"{path} holds the weights of another encoder; pass the encoder of the run.") from error
    return encoder
