"""manifest.json: the SHA-256 of each file of a finished run or a shared model, compared when a model is loaded.

It detects damage and files of different runs in one folder. It is not a signature: anyone who can write to the folder
can write a matching manifest. `encoder.safetensors` is not listed, because config.json has its SHA-256; `report.html`
is not, because `ric report` rewrites it.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from ricnet.errors import RicnetError
from ricnet.io import misfit, printable, read_json, write_atomically

NAME = "manifest.json"
LOADED = ("config.json", "model.safetensors", "calibration.json", "halting.json")
"""Files that decide what a model answers; compared each time it is loaded."""


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, names: Iterable[str], known: Mapping[str, str] | None = None) -> None:
    """List those of the named files that exist. `known` are hashes of files that will be written afterwards."""
    found = {name: file_hash(folder / name) for name in names if (folder / name).is_file()}
    text = json.dumps({"sha256": dict(sorted((found | dict(known or {})).items()))}, indent=2) + "\n"
    write_atomically(folder / NAME, lambda draft: draft.write_text(text, encoding="utf-8"))


def verify(folder: Path, names: Iterable[str] = LOADED) -> None:
    """Raise if one of these files differs from the manifest. Without a manifest, print a note once."""
    if not (folder / NAME).is_file():
        if not _in_training(folder):
            _note_unverified(folder)
        return
    listed = _read(folder / NAME)
    for name in names:
        path = folder / name
        if path.is_file() and name not in listed:
            _refuse(path, f"is not listed in {NAME} beside it")
        if name in listed and not path.is_file():
            _refuse(path, f"is missing, though {NAME} beside it lists it")
        if name in listed and file_hash(path) != listed[name]:
            _refuse(path, f"was changed or damaged (its SHA-256 is not the one in {NAME} beside it)")


def _read(path: Path) -> dict[str, str]:
    listed: dict[str, str] = read_json(path).get("sha256", {})
    if misfit(listed, {name: lambda value: isinstance(value, str) for name in LOADED[:2]}) is not None:
        raise RicnetError(f"{path} does not list the files of a model; get a whole copy of the run.")
    return listed


def _refuse(path: Path, what: str) -> None:
    raise RicnetError(
        f"{path} {what}; get a whole copy of the run, or delete {NAME} if you changed the file on purpose."
    )


def _in_training(folder: Path) -> bool:
    """Whether the run is unfinished: its manifest is written with the evaluation, at the end."""
    begun = (folder / "metrics.jsonl").exists() or (folder / "state.pt").exists()
    return begun and not (folder / "evaluation.json").exists()


@lru_cache
def _note_unverified(folder: Path) -> None:
    print(printable(f"note: {folder} has no {NAME}, so its files are not checked for damage."), file=sys.stderr)
