"""What is fitted on validation data once the weights are chosen: when to stop, and a temperature."""

from dataclasses import dataclass, replace

from torch import nn

from ricnet.data import Split
from ricnet.distributed import ALONE, Processes
from ricnet.evaluation.evaluate import AS_TRAINED, Reading, observe
from ricnet.evaluation.stopping import HaltChoice, choose_halt
from ricnet.evaluation.temperature import TemperatureFit, fit_if_it_helps, fit_temperature
from ricnet.training.config import Config


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
