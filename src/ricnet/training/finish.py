"""The end of a run: calibrate on validation data, evaluate on all splits, and write the results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from ricnet.data import Dataset, Split
from ricnet.data.dataset import balanced
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError, in_flags
from ricnet.evaluation.baselines import against_base_rate, as_given, fit_baselines
from ricnet.evaluation.choices import (
    HaltChoice,
    OperatingPoint,
    TemperatureFit,
    choose_exit,
    choose_exit_temperatures,
    choose_halt,
    choose_temperature,
    fit_exit_temperatures,
    fit_temperature,
    operating_points,
)
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading, observe, observe_each, report, save_predictions
from ricnet.evaluation.examples import save_examples
from ricnet.io import write_atomically
from ricnet.methods import Inference, in_steps
from ricnet.models.config import Config
from ricnet.models.run import RunFolder, halting_entry
from ricnet.training.console import ended_early, hints


@dataclass(frozen=True)
class Fitted:
    halting: HaltChoice | None = None
    """None if the method keeps its own rule."""
    calibration: TemperatureFit | None = None
    """None if no temperature is configured."""
    budgets: tuple[OperatingPoint, ...] = ()
    """With exits, a threshold for every budget."""

    @property
    def entry(self) -> dict[str, Any]:
        """In evaluation.json."""
        parts = {"halting": self.halting, "calibration": self.calibration}
        return {name: asdict(part) for name, part in parts.items() if part is not None}

    @property
    def reading(self) -> Reading:
        temperature = self.calibration.temperature if self.calibration else 1.0
        rule = self.halting
        return Reading(temperature, *((rule.halt_threshold, rule.max_steps) if rule else (None, None)))


def fit(config: Config, model: nn.Module, val: Split, processes: Processes = ALONE) -> Fitted:
    """Halting rule first, then a temperature for the beliefs at the halt; with exits first a temperature per exit."""
    if config.network.exits != "none":
        return _fit_exits(config, model, val, processes)
    outcome = observe(config.method, model, val, processes=processes)
    if not _all_finite(outcome, processes):
        return Fitted()  # the evaluation refuses such a network
    fitted = Fitted()
    if config.chooses_halt:
        fitted = Fitted(processes.broadcast(lambda: choose_halt(outcome)))
        outcome = observe(config.method, model, val, reading=fitted.reading, processes=processes)
    if config.fits_temperature:
        find = fit_temperature if config.calibration == "temperature" else choose_temperature
        fitted = replace(fitted, calibration=processes.broadcast(lambda: find(outcome.log_beliefs, outcome.labels)))
    return fitted


def _fit_exits(config: Config, model: nn.Module, val: Split, processes: Processes) -> Fitted:
    calibration = None
    if config.fits_temperature:
        each = [Reading(step=step) for step in range(1, len(model.costs) + 1)]  # type: ignore[arg-type]
        held_out = observe_each(config.method, model, val, each, processes=processes)
        beliefs, labels = [outcome.log_beliefs for outcome in held_out], held_out[0].labels
        find = fit_exit_temperatures if config.calibration == "temperature" else choose_exit_temperatures
        calibration = processes.broadcast(lambda: find(beliefs, labels))
    fitted = Fitted(None, calibration)
    if not config.has_budgets:
        return fitted
    outcome = observe(config.method, model, val, reading=fitted.reading, processes=processes)
    if not _all_finite(outcome, processes):
        return fitted
    budgets = processes.broadcast(lambda: operating_points(outcome))
    rule = processes.broadcast(lambda: choose_exit(outcome, config.budget)) if config.chooses_halt else None
    return Fitted(rule, calibration, budgets)


def _all_finite(outcome: Outcome, processes: Processes) -> bool:
    return processes.broadcast(lambda: bool(outcome.step_scores.isfinite().all()))


def weighted(config: Config, dataset: Dataset) -> Dataset:
    """The dataset with the weights of `class_weight` for training and validation rows."""
    if config.class_weight is None:
        return dataset
    return replace(dataset, train=balanced(dataset.train), val=balanced(dataset.val))


def finalize(
    config: Config,
    model: nn.Module,
    dataset: Dataset,
    folder: RunFolder | None,
    facts: dict[str, Any],
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Calibrate, evaluate and write. `dataset` comes from `weighted`; `facts` (selected epoch, seconds) is stored with
    the evaluation, which is written last and marks a finished run. Only the first of several processes has a folder.

    Results are calibrated (temperature, halting rule); if that changes them, `raw` holds the uncalibrated ones. Without
    test rows, `test` is null."""
    fitted = fit(config, model, dataset.val, processes)
    reading, method = fitted.reading, config.method
    tempered, as_trained = (in_steps(method, model, heat) or method for heat in (reading.temperature, 1.0))
    readings = [reading] if reading == AS_TRAINED else [reading, AS_TRAINED]
    splits = {"train": dataset.train, "val": dataset.val, **({"test": dataset.test} if len(dataset.test) else {})}
    seen = {name: observe_each(tempered, model, split, readings, processes=processes) for name, split in splits.items()}
    outcomes, raw = ({name: each[i] for name, each in seen.items()} for i in (0, -1))
    if tempered != as_trained:  # confidence, and so the exit, depends on the temperature
        raw = {name: observe(as_trained, model, split, processes=processes) for name, split in splits.items()}
    if folder is not None:
        _refuse_no_belief(outcomes, dataset, folder)

    def evaluated() -> dict[str, Any]:
        measured = _reports(outcomes, config, dataset)
        unfitted = _reports(raw, config, dataset) if len(readings) > 1 else measured
        entry = measured | ({} if unfitted == measured else {"raw": unfitted}) | {"fitted": fitted.entry} | facts
        return entry | _baselines_and_hints(entry, outcomes, config, dataset, folder)

    evaluation: dict[str, Any] = processes.broadcast(evaluated)
    if folder is not None:
        _write_files(folder, tempered, model, dataset, outcomes, fitted)
        folder.finish(evaluation)
    return evaluation


def _reports(outcomes: Mapping[str, Outcome], config: Config, dataset: Dataset) -> dict[str, Any]:
    """Results of each split, and of the base rate of the training classes."""
    test = dataset.test if config.class_weight is None else balanced(dataset.test)
    weights = {"train": dataset.train.weights, "val": dataset.val.weights, "test": test.weights}
    return {"test": None} | {
        name: report(outcome) | against_base_rate(outcome.log_beliefs, outcome.labels, dataset.train, weights[name])
        for name, outcome in outcomes.items()
    }


def _baselines_and_hints(
    entry: Mapping[str, Any],
    outcomes: Mapping[str, Outcome],
    config: Config,
    dataset: Dataset,
    folder: RunFolder | None,
) -> dict[str, Any]:
    """Baselines, notes and hints for evaluation.json."""
    baselines, note = dict[str, Any](), None
    if config.baselines and "test" in outcomes:
        balanced = config.class_weight == "balanced"
        baselines, note = fit_baselines(dataset, outcomes["test"].log_beliefs, balanced, config.final_fit)
    val_nll = {} if folder is None else folder.validation_nll()
    found = hints({**entry, "baselines": baselines}, val_nll, config, as_given(dataset))
    return {
        "baselines": baselines,
        "baselines_note": note,
        "notes": [in_flags(each) for each in (*dataset.notes, *ended_early(val_nll, config))],
        "hints": [in_flags(hint) for hint in found],
    }


def _refuse_no_belief(outcomes: Mapping[str, Outcome], dataset: Dataset, folder: RunFolder) -> None:
    """Raise if finite weights overflow on inputs far from the training data."""
    for split, outcome in outcomes.items():
        if broken := int((~outcome.log_beliefs.isfinite()).any(-1).sum()):
            raise RicnetError(
                f"{dataset.name}: the answer to {broken} of {len(outcome.labels)} {split} rows is NaN: their inputs "
                f"lie far beyond the training data; correct or remove them. The trained model is in {folder.model}."
            )


def _write_files(
    folder: RunFolder,
    method: Inference,
    model: nn.Module,
    data: Dataset,
    outcomes: Mapping[str, Outcome],
    fitted: Fitted,
) -> None:
    """Write predictions, examples (validation rows if there are no test rows) and calibration."""
    unseen, reading = {name: outcomes[name] for name in ("val", "test") if name in outcomes}, fitted.reading
    write_atomically(folder.predictions, lambda draft: save_predictions(unseen, draft))
    shown, outcome = (data.test, outcomes["test"]) if "test" in outcomes else (data.val, outcomes["val"])
    write_atomically(folder.examples, lambda draft: save_examples(method, model, shown, outcome, draft, reading))
    if fitted.halting is not None or fitted.budgets:
        rule = {} if fitted.halting is None else asdict(fitted.halting)
        folder.write_json(folder.halting, halting_entry(rule, fitted.budgets))
    if fitted.calibration is not None:
        folder.write_json(folder.calibration, {"method": "temperature", "split": "val", **asdict(fitted.calibration)})
