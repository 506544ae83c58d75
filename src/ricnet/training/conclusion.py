"""The end of a run: evaluate the chosen weights on all splits, calibrate them if asked, write what the run leaves."""

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import Outcome, observe, report
from ricnet.evaluation.examples import save_examples
from ricnet.evaluation.predictions import save_predictions
from ricnet.evaluation.temperature import fit_temperature
from ricnet.training.classifier import load
from ricnet.training.config import Config
from ricnet.training.files import read_json
from ricnet.training.run_folder import RunFolder

AFTER_TRAINING = ("readout", "feedback", "halt_threshold", "confidence_threshold", "calibration")
"""Settings that change what trained weights answer. A derived run keeps the epoch that was selected without them."""


def conclude(
    config: Config, model: nn.Module, dataset: Dataset, folder: RunFolder, course: dict[str, Any]
) -> dict[str, Any]:
    """`course` says how training went. The evaluation is written last: it marks a finished run."""
    method, temperature = config.method, 1.0
    if config.calibration == "temperature":
        held_out = observe(method, model, dataset.val)
        fit = fit_temperature(held_out.log_beliefs, held_out.labels)
        temperature = fit.temperature
        folder.write_json(folder.calibration, {"method": "temperature", "split": "val", **asdict(fit)})
    outcomes = {
        name: observe(method, model, split, temperature=temperature)
        for name, split in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test))
    }
    for name, outcome in outcomes.items():
        refuse_no_belief(outcome, name, dataset, folder)
    save_predictions({name: outcomes[name] for name in ("val", "test")}, folder.predictions)
    save_examples(method, model, dataset.test, outcomes["test"], folder.examples, temperature)
    evaluation: dict[str, Any] = {name: report(outcome) for name, outcome in outcomes.items()}
    evaluation |= course
    folder.write_json(folder.evaluation, evaluation)
    return evaluation


def refuse_no_belief(outcome: Outcome, split: str, dataset: Dataset, folder: RunFolder) -> None:
    """Weights that are sound may still overflow on an input unlike any they learned from."""
    broken = int((~outcome.log_beliefs.isfinite()).any(-1).sum())
    if broken:
        raise RicnetError(
            f"{dataset.name}: the answer to {broken} of {len(outcome.labels)} {split} rows is NaN, so their inputs "
            f"must lie far beyond those it learned from; mend or remove them. The trained model is in {folder.model}."
        )


def derive(source: RunFolder, config: Config, dataset: Dataset, folder: RunFolder, device: torch.device) -> None:
    """A run of the same weights as a finished one, which answers, halts or is calibrated in another way."""
    trained = load(source.path, str(device))
    if stripped(config) != stripped(trained.config):
        raise RicnetError(
            f"{source.path} was trained with other settings; only {', '.join(AFTER_TRAINING)} may differ."
        )
    folder.begin(config, dataset, device, source)
    folder.model.write_bytes(source.model.read_bytes())
    folder.metrics.write_bytes(source.metrics.read_bytes())
    course = {key: read_json(source.evaluation).get(key) for key in ("selected_epoch", "seconds")}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        conclude(config, trained.model, dataset, folder, course)


def stripped(config: Config) -> Config:
    """The configuration as far as the weights depend on it."""
    defaults = type(config.method)()
    known = {name: getattr(defaults, name) for name in AFTER_TRAINING if hasattr(defaults, name)}
    return replace(config, calibration="none", method=replace(config.method, **known))
