"""Pretrained encoders (`hf:…`, `timm:…`): find them by name, and keep a frozen one with its run.

Each run has its own copy of the weights, encoder.safetensors, whose SHA-256 is in config.json. So a run folder can be
copied, and damage to one run does not affect another.
"""

import copy
import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pooch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ricnet.data.texts import MOST_PIECES, Tokenizer, read_tokenizer
from ricnet.errors import RicnetError, setting
from ricnet.io import user_path, write_atomically
from ricnet.models.locate import HUB_ID, download
from ricnet.models.manifest import file_hash
from ricnet.models.run import RunFolder
from ricnet.nets.architecture import architecture_from_json, limit_for
from ricnet.nets.encoders import is_pretrained
from ricnet.nets.hf import require_hf
from ricnet.nets.pretrained import Pretrained, TextEncoder, build, read_hf, read_timm, rebuild, timm_source

HF_FILES = (
    *("config.json", "preprocessor_config.json", "*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
)
"""Files to download: JSON, text and safetensors. Reading them executes nothing."""


def cache_folder() -> Path:
    """$RICNET_CACHE, else the user's cache folder."""
    return user_path(os.environ.get("RICNET_CACHE") or pooch.os_cache("ricnet"))


@lru_cache(maxsize=2)
def find_encoder(name: str) -> Pretrained:
    """The encoder named `hf:…` or `timm:…`; cached, so do not change it."""
    library, _, rest = name.partition(":")
    if library == "timm":
        return _find_timm(rest)
    require_hf()  # before a download
    return read_hf(hf_folder(rest))


def named_encoder(name: str) -> Pretrained | None:
    """The pretrained encoder of this name; None for other names."""
    return find_encoder(name) if is_pretrained(name) else None


@lru_cache
def weights_of(name: str) -> str | None:
    """Hash of the weights of a pretrained encoder; None for other names."""
    weights: str | None = describe_encoder(find_encoder(name))["weights"] if is_pretrained(name) else None
    return weights


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
    found = HUB_ID.fullmatch(name)
    if found is None or path.is_file():
        raise RicnetError(
            f"{setting('encoder', 'hf:' + name)} is neither a folder here nor a model on the Hub (user/name); check it."
        )
    return download(f"{found['user']}/{found['name']}", found["revision"], HF_FILES)


def _find_timm(name: str) -> Pretrained:
    network, at, file = name.partition("@")
    if at:
        return read_timm(network, user_path(file))
    source = timm_source(network)
    if source is None:
        raise RicnetError(
            f"timm has no weights for {network}; give a file: {setting('encoder', f'timm:{network}@FILE.safetensors')}."
        )
    return read_timm(network, download(source, None, ("model.safetensors",)) / "model.safetensors")


# Kept with a run


def describe_encoder(encoder: nn.Module) -> dict[str, Any]:
    """Entry in config.json: architecture, and hash of the initial weights."""
    entry: dict[str, Any] = {"architecture": encoder.architecture.to_json()} if isinstance(encoder, Pretrained) else {}
    return entry | {"weights": hashlib.sha256(_as_bytes(encoder)).hexdigest()}


def keep_encoder(encoder: nn.Module, folder: RunFolder) -> None:
    """Write its weights into the run folder."""
    write_atomically(folder.encoder, lambda draft: draft.write_bytes(_as_bytes(encoder)))


def read_encoder(entry: object, folder: RunFolder, own: nn.Module | None = None) -> nn.Module:
    """The encoder of a run. `own` is the caller's module for an encoder without a name."""
    described = entry if isinstance(entry, dict) else {}
    weights, source = _read_weights(folder, str(described.get("weights"))), str(folder.encoder)
    if "architecture" in described:
        return rebuild(architecture_from_json(described["architecture"], str(folder.config)), weights, source)
    if own is None:
        raise RicnetError(f"{folder.path} began with an encoder of your own; pass that module as {setting('encoder')}.")
    encoder = copy.deepcopy(own)
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise RicnetError(f"{source} holds the weights of another encoder; pass the encoder of the run.") from error
    return encoder


def build_described(entry: object, folder: RunFolder, numbers: int) -> Pretrained:
    """The encoder without its weights, within the memory limit for so many numbers."""
    described = entry if isinstance(entry, dict) else {}
    with limit_for(numbers):
        return build(architecture_from_json(described.get("architecture"), str(folder.config)))


def _read_weights(folder: RunFolder, wanted: str) -> dict[str, Tensor]:
    if folder.encoder.is_file() and file_hash(folder.encoder) == wanted:
        return load_file(folder.encoder)
    what = "is damaged (its checksum does not fit)" if folder.encoder.is_file() else "is missing"
    raise RicnetError(f"{folder.encoder}, with the weights of its encoder, {what}; get a whole copy of the run.")


def _as_bytes(encoder: nn.Module) -> bytes:
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()})
