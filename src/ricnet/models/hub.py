"""Share a model: write the folder that the Hub expects, and upload it.

It holds no data: the examples of the run are left out, and of the data's path only the last part is kept.
"""

import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ricnet.errors import RicnetError, first_line
from ricnet.io import read_json, without_folder, write_atomically
from ricnet.models.classifier import Classifier, backbone_of, own_weights
from ricnet.models.config import Config, from_json, to_json
from ricnet.models.locate import describe_encoder, keep_encoder, require_hub
from ricnet.models.run import LOADED, RunFolder, halting_entry, read_config
from ricnet.report.card import DIAGRAM, draw_diagram, model_card
from ricnet.report.runs import read_run
from ricnet.version import __version__

MEASURED = ("evaluation.json", "metrics.jsonl")
"""Results of a finished run; copied if weights, settings and temperature are unchanged."""
PROMISED = ("guarantees.npz", "guarantees.json")
"""Calibration examples without their inputs; copied with the results, if there are any."""


def save_pretrained(model: Classifier, folder: str | Path, name: str | None = None) -> Path:
    target, run = RunFolder(folder), None if model.folder is None else RunFolder(model.folder)
    _refuse_if_taken(target, run)
    try:
        target.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RicnetError(f"{folder} cannot be made ({error.strerror}); choose another folder.") from error
    stored = read_config(run.path) if run is not None and run.begun else {}
    chosen = run is not None and model.config.chooses_halt and run.halting.is_file()
    rule = read_json(run.halting) if run is not None and chosen else {}
    config = _shared_config(model, rule)
    entry = _entry(model, config, stored)
    measured = run if run is not None and _was_measured(model, config, stored, run) else None
    target.drop_manifest()
    stale = (*MEASURED, *PROMISED, target.calibration.name, target.halting.name, target.encoder.name, DIAGRAM)
    for file in stale:
        (target.path / file).unlink(missing_ok=True)  # left by a model saved here before
    target.write_json(target.config, entry)
    if config.calibration != "none":
        target.write_json(target.calibration, {"method": "temperature", "temperature": model.temperature})
    rule = rule if config.chooses_halt else {}
    if rule or model.budgets:
        target.write_json(target.halting, halting_entry(rule, model.budgets))
    frozen = backbone_of(model.model).frozen_encoder
    if frozen is not None:
        keep_encoder(frozen, target)
    if measured is None:
        target.write_model(own_weights(model.model))
    else:
        promised = [name for name in PROMISED if (measured.path / name).is_file()]
        for file in (measured.model.name, *MEASURED, *promised):
            write_atomically(target.path / file, partial(shutil.copyfile, measured.path / file))
    target.write_manifest()
    record = None if measured is None else read_run(target.path)
    card = model_card(entry["config"], entry["data"], name or target.path.resolve().name, record)
    write_atomically(target.path / "README.md", lambda draft: draft.write_text(card, encoding="utf-8"))
    if record is not None:
        draw_diagram(record, target.path)
    return target.path


def push_to_hub(model: Classifier, repo: str, private: bool = False) -> str:
    """Upload in one commit, so that configuration and weights belong together."""
    hub = require_hub("uploading a model to the Hub")
    with tempfile.TemporaryDirectory() as draft:
        folder = save_pretrained(model, Path(draft) / "model", repo)
        files = [hub.CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
        api = hub.HfApi(library_name="ricnet", library_version=__version__)
        try:
            address = str(api.create_repo(repo, private=private, exist_ok=True))
            api.create_commit(repo, files, commit_message=f"{model.method.name}, by ricnet {__version__}")
        except (hub.errors.HTTPError, OSError, ValueError, RuntimeError) as error:
            told = f"{repo} could not be uploaded to the Hub ({first_line(error)}); try again."
            if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
                how = "set a token with write access (hf auth login, $HF_TOKEN)"
                told = f"you may not write to {repo} on the Hub; {how}."
            raise RicnetError(told) from error
    return address


def _refuse_if_taken(target: RunFolder, run: RunFolder | None) -> None:
    """Replace only a shared model, not a run or other files."""
    if run is not None and target.path.resolve() == run.path.resolve():
        raise RicnetError(f"{target.path} is the run itself; choose another folder to save it to.")
    if any(file.exists() for file in (target.state, target.predictions, target.examples, target.report)):
        raise RicnetError(f"{target.path} holds a run of ric train; choose another folder to save to.")
    if (target.path / "README.md").exists() and not target.config.exists():
        raise RicnetError(f"{target.path} holds a README.md that ricnet did not write; choose a new folder.")


def _shared_config(model: Classifier, rule: dict[str, Any]) -> Config:
    """The run's configuration if the halting rule of the model is unchanged, else with its current method. `rule` is
    the calibrated halting rule of the run, if any."""
    config = model.config
    if config.calibration == "none" and model.temperature != 1:
        config = replace(config, calibration="temperature")
    if rule and model.method == config.method.stopping_by(rule["halt_threshold"], rule["max_steps"]):
        return config
    if config.chooses_halt:
        config = replace(config, halt_rule="value", budget=None)
    return replace(config, method=model.method)


def _entry(model: Classifier, config: Config, stored: dict[str, Any]) -> dict[str, Any]:
    """config.json of the run, with the current settings of the model."""
    data: dict[str, Any] = {"input_shape": list(model.input_shape), "class_names": list(model.class_names)}
    if model.columns is not None:
        data["columns"] = model.columns.to_json()
    settings = to_json(config) | {"data": Path(config.data).name}
    settings["network"]["encoder"] = without_folder(config.network.encoder)
    entry = {"ricnet": __version__, **stored, "config": settings, "data": stored.get("data", {}) | data}
    features = backbone_of(model.model).features
    return entry if features is None or "encoder" in entry else entry | {"encoder": describe_encoder(features)}


def _was_measured(model: Classifier, config: Config, stored: dict[str, Any], run: RunFolder) -> bool:
    """Whether the results of the run hold for this model: same weights, settings and temperature."""
    if not stored or not all((run.path / file).is_file() for file in (run.model.name, *MEASURED)):
        return False
    run.verify((*LOADED, *MEASURED))
    temperature = read_json(run.calibration).get("temperature") if run.calibration.is_file() else 1.0
    own_temperature = list(model.temperature) if isinstance(model.temperature, tuple) else model.temperature
    if from_json(stored.get("config"), str(run.config)) != config or temperature != own_temperature:
        return False
    own, weights = own_weights(model.model), load_file(run.model)
    return own.keys() == weights.keys() and all(
        torch.equal(tensor.cpu(), weights[name].to(tensor.dtype)) for name, tensor in own.items()
    )
