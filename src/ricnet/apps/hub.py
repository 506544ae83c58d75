"""Sharing a model: the folder that the Hub expects, and putting it there.

The data stays at home: the examples that a run keeps are left out, and of its path only the last part is told.
`ricnet.load` reads such a folder, here or on the Hub (see `training.hub`).
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ricnet.apps.hub_card import DIAGRAM, draw_diagram, hub_card
from ricnet.errors import RicnetError
from ricnet.io import read_json, write_atomically
from ricnet.report.runs import read_run
from ricnet.training.classifier import Classifier, stopping_by
from ricnet.training.config import Config, from_json, to_json
from ricnet.training.hub import first_line, require_hub
from ricnet.training.run import RunFolder, read_config, void
from ricnet.version import __version__

MEASURED = ("evaluation.json", "metrics.jsonl")
"""What a finished run says of its weights: copied where it holds for the model that is shared."""


def save_pretrained(model: Classifier, folder: str | Path, name: str | None = None) -> Path:
    target = RunFolder(folder)
    if model.folder is not None and target.path.resolve() == model.folder.resolve():
        raise RicnetError(f"{folder} is the run itself; choose another folder to save it to.")
    _refuse_if_taken(target)
    try:
        target.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RicnetError(f"{folder} cannot be made ({error.strerror}); choose another folder.") from error
    entry, source = _entry(model), _measured_at(model)
    left = (*MEASURED, target.calibration.name, target.halting.name, DIAGRAM)
    for file in left:  # of a model that was saved here before
        (target.path / file).unlink(missing_ok=True)
    target.write_json(target.config, entry)
    if entry["config"]["calibration"] != "none":
        target.write_json(target.calibration, {"method": "temperature", "temperature": model.temperature})
    if entry["config"]["halt_rule"] == "auto" and (rule := _chosen_rule(model)):
        target.write_json(target.halting, rule)
    if source is None:
        target.write_model(model.model.state_dict())
    else:
        for file in ("model.safetensors", *MEASURED):
            shutil.copyfile(source / file, target.path / file)
    _write_card(entry, target.path, name or target.path.resolve().name, measured=source is not None)
    return target.path


def _refuse_if_taken(target: RunFolder) -> None:
    """A model that was shared there before is replaced; a run and other people's files are not."""
    if any(file.exists() for file in (target.state, target.predictions, target.examples, target.report)):
        raise RicnetError(f"{target.path} holds a run of ric train; choose another folder to save to.")
    if (target.path / "README.md").exists() and not target.config.exists():
        raise RicnetError(f"{target.path} holds a README.md that is not ours; choose an empty or a new folder.")


def push_to_hub(model: Classifier, repo: str, private: bool = False) -> str:
    """In one commit, so that nobody ever fetches the configuration of one model with the weights of another."""
    hub = require_hub("putting a model on the Hub")
    with tempfile.TemporaryDirectory() as draft:
        folder = save_pretrained(model, Path(draft) / "model", repo)
        files = [hub.CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
        api = hub.HfApi(library_name="ricnet", library_version=__version__)
        try:
            address = str(api.create_repo(repo, private=private, exist_ok=True))
            api.create_commit(repo, files, commit_message=f"{model.method.name}, by ricnet {__version__}")
        except (hub.errors.HTTPError, OSError, ValueError, RuntimeError) as error:
            raise RicnetError(_refusal(error, repo)) from error
    return address


def _entry(model: Classifier) -> dict[str, Any]:
    """What config.json says: all that the run's own did, about the model as it is now."""
    stored = _stored_entry(model)
    config = to_json(_config(model)) | {"data": Path(model.config.data).name}
    data: dict[str, Any] = {"input_shape": list(model.input_shape), "class_names": list(model.class_names)}
    if model.columns is not None:
        data["columns"] = model.columns.to_json()
    return {"ricnet": __version__, **stored, "config": config, "data": stored.get("data", {}) | data}


def _stored_entry(model: Classifier) -> dict[str, Any]:
    """Empty where the run is gone, or never was a folder."""
    there = model.folder is not None and (model.folder / "config.json").is_file()
    return read_config(model.folder) if there and model.folder is not None else {}


def _config(model: Classifier) -> Config:
    """As it was trained where the model still answers as its run did; else with what it has become."""
    config = model.config
    calibration = "temperature" if config.calibration == "none" and model.temperature != 1 else config.calibration
    rule = _chosen_rule(model)
    if rule and model.method == stopping_by(config.method, rule["halt_threshold"], rule["max_steps"]):
        return replace(config, calibration=calibration)
    halt_rule = "value" if config.chooses_halt else config.halt_rule
    return replace(config, method=model.method, calibration=calibration, halt_rule=halt_rule)


def _chosen_rule(model: Classifier) -> dict[str, Any]:
    """When to stop, as validation data chose it; empty where it did not."""
    path = None if model.folder is None else RunFolder(model.folder).halting
    there = path is not None and path.is_file() and model.config.chooses_halt
    return read_json(path) if there and path is not None else {}


def _measured_at(model: Classifier) -> Path | None:
    """The folder whose numbers hold for this model: the same weights, settings and temperature."""
    folder, stored = model.folder, _stored_entry(model)
    if folder is None or not stored or not all((folder / file).is_file() for file in ("model.safetensors", *MEASURED)):
        return None
    fitted = RunFolder(folder).calibration
    temperature = read_json(fitted).get("temperature") if fitted.is_file() else 1.0
    config = from_json(stored.get("config"), str(folder / "config.json"))
    same = config == _config(model) and temperature == model.temperature
    return folder if same and _same_weights(model, folder / "model.safetensors") else None


def _same_weights(model: Classifier, path: Path) -> bool:
    own, stored = model.model.state_dict(), load_file(path)
    return own.keys() == stored.keys() and all(
        torch.equal(tensor.cpu(), stored[name].to(tensor.dtype)) for name, tensor in own.items()
    )


def _write_card(entry: dict[str, Any], folder: Path, name: str, measured: bool) -> None:
    run = read_run(folder) if measured else None
    card = hub_card(entry["config"], entry["data"], name, run)
    write_atomically(folder / "README.md", lambda draft: void(draft.write_text(card, encoding="utf-8")))
    if run is not None:
        draw_diagram(run, folder)


def _refusal(error: Exception, repo: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the Hub does not let you write to {repo}; give a token that may (hf auth login, or $HF_TOKEN)."
    return f"{repo} could not be put on the Hub ({first_line(error)})."
