"""The end of a run: fit what is fitted on validation data, evaluate on all splits, write what the run leaves."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ricnet.data import Dataset, Split
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading, observe, observe_each, report
from ricnet.evaluation.fitting import HaltChoice, TemperatureFit, choose_halt, fit_if_it_helps, fit_temperature
from ricnet.evaluation.predictions import save_examples, save_predictions
from ricnet.io import read_json, write_atomically
from ricnet.methods import Method
from ricnet.training.checkpoints import keep_encoder
from ricnet.training.classifier import after_encoder, backbone_of, load
from ricnet.training.config import Config
from ricnet.training.features import featured
from ricnet.training.run import RunFolder, read_config


@dataclass(frozen=True)
class Fitted:
    halting: HaltChoice | None = None
    """None where the method's own rule stays."""
    calibration: TemperatureFit | None = None
    """None where nobody asked for a temperature."""

    @property
    def reading(self) -> Reading:
        temperature = self.calibration.temperature if self.calibration else 1.0
        rule = self.halting
        return Reading(temperature, *((rule.halt_threshold, rule.max_steps) if rule else (None, None)))


def fit(config: Config, model: nn.Module, val: Split, processes: Processes = ALONE) -> Fitted:
    """First the halt, then a temperature for the beliefs at it, and under that temperature the halt again."""
    fitted = Fitted()
    if config.chooses_halt:
        fitted = replace(fitted, halting=_halt(config, model, val, AS_TRAINED, processes))
    if config.fits_temperature:
        held_out = observe(config.method, model, val, reading=fitted.reading, processes=processes)
        find = fit_temperature if config.calibration == "temperature" else fit_if_it_helps
        fitted = replace(fitted, calibration=processes.broadcast(lambda: find(held_out.log_beliefs, held_out.labels)))
    temperature = fitted.reading.temperature
    if fitted.halting is not None and temperature != 1:
        fitted = replace(fitted, halting=_halt(config, model, val, Reading(temperature), processes))
    return fitted


def _halt(config: Config, model: nn.Module, val: Split, reading: Reading, processes: Processes) -> HaltChoice | None:
    """None where some answer is NaN: there is nothing to choose by, and whoever evaluates the network refuses it."""
    outcome = observe(config.method, model, val, reading=reading, processes=processes)
    return processes.broadcast(lambda: choose_halt(outcome) if outcome.step_scores.isfinite().all() else None)


AFTER_TRAINING = ("readout", "feedback", "halt_threshold", "confidence_threshold", "calibration", "halt_rule")
"""Settings that change what trained weights answer. A derived run keeps the epoch that was selected without them."""


def finalize(
    config: Config,
    model: nn.Module,
    dataset: Dataset,
    folder: RunFolder | None,
    course: dict[str, Any],
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """`course` says how training went. The evaluation is written last: it marks a finished run. Of several processes
    only the first has a folder; the others help it to evaluate.

    What was fitted is in the numbers. Where it changes them, `raw` holds those of the weights as they were trained."""
    fitted = fit(config, model, dataset.val, processes)
    readings = [fitted.reading] if fitted.reading == AS_TRAINED else [fitted.reading, AS_TRAINED]
    observed = {
        name: observe_each(config.method, model, split, readings, processes=processes)
        for name, split in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test))
    }
    outcomes, raw = ({name: each[i] for name, each in observed.items()} for i in (0, -1))
    if folder is not None:
        for name, outcome in outcomes.items():
            refuse_no_belief(outcome, name, dataset, folder)
    evaluation: dict[str, Any] = processes.broadcast(
        lambda: (
            _reports(outcomes)
            | ({"raw": _reports(raw)} if len(readings) > 1 else {})
            | {"fitted": {name: entry for name, entry in asdict(fitted).items() if entry is not None}}
            | course
        )
    )
    if folder is not None:
        _leave(folder, config.method, model, dataset.test, outcomes, fitted.reading)
        if fitted.halting is not None:
            folder.write_json(folder.halting, {"split": "val", **asdict(fitted.halting)})
        if fitted.calibration is not None:
            folder.write_json(
                folder.calibration, {"method": "temperature", "split": "val", **asdict(fitted.calibration)}
            )
        folder.write_json(folder.evaluation, evaluation)
    return evaluation


def _reports(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    return {name: report(outcome) for name, outcome in outcomes.items()}


def refuse_no_belief(outcome: Outcome, split: str, dataset: Dataset, folder: RunFolder) -> None:
    """Weights that are sound may still overflow on an input unlike any they learned from."""
    broken = int((~outcome.log_beliefs.isfinite()).any(-1).sum())
    if broken:
        raise RicnetError(
            f"{dataset.name}: the answer to {broken} of {len(outcome.labels)} {split} rows is NaN, so their inputs "
            f"must lie far beyond those it learned from; mend or remove them. The trained model is in {folder.model}."
        )


def _leave(
    folder: RunFolder,
    method: Method[Any],
    model: nn.Module,
    test: Split,
    outcomes: Mapping[str, Outcome],
    reading: Reading,
) -> None:
    """What a report is made of without the model or the data."""
    unseen = {name: outcomes[name] for name in ("val", "test")}
    write_atomically(folder.predictions, lambda draft: save_predictions(unseen, draft))
    write_atomically(
        folder.examples, lambda draft: save_examples(method, model, test, outcomes["test"], draft, reading)
    )


def derive(source: RunFolder, config: Config, dataset: Dataset, folder: RunFolder, device: torch.device) -> None:
    """A run of the same weights as a finished one, which answers, halts or is calibrated in another way."""
    trained = load(source.path, str(device))
    if stripped(config) != stripped(trained.config):
        raise RicnetError(
            f"{source.path} was trained with other settings; only {', '.join(AFTER_TRAINING)} may differ."
        )
    course = {key: read_json(source.evaluation).get(key) for key in ("selected_epoch", "seconds")}
    encoder, features = read_config(source.path).get("encoder"), backbone_of(trained.model).features
    with folder.held(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        folder.begin(config, dataset, device, source, encoder)
        for old, new in ((source.model, folder.model), (source.metrics, folder.metrics)):
            write_atomically(new, partial(_copy, old))
        if config.network.freeze and features is not None:
            keep_encoder(features, folder)
            dataset, trained = featured(dataset, features, device), after_encoder(trained)
        torch.manual_seed(config.seed)
        finalize(config, trained.model, dataset, folder, course)


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def stripped(config: Config) -> Config:
    """The configuration as far as the weights depend on it."""
    defaults = type(config.method)()
    known = {name: getattr(defaults, name) for name in AFTER_TRAINING if hasattr(defaults, name)}
    return replace(config, calibration="none", halt_rule="value", method=replace(config.method, **known))
