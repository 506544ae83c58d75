"""Notes and hints printed at the end of a run.

A hint needs evidence: a difference beyond its standard error, on enough rows. Runs of fewer than SHORT epochs get no
hints about training.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ricnet.data import Dataset
from ricnet.errors import setting
from ricnet.evaluation.baselines import better_baseline
from ricnet.models.config import Config
from ricnet.training.recipes import ROWS_TO_JUDGE

STILL_FALLING = 0.05
"""Training was too short if the mean validation NLL of the last tenth of the epochs is lower by this share than that of
the tenth before. In finished runs on CIFAR-10 (results/) the share was 0.002 to 0.018."""
SHORT = 8
"""No preset makes fewer epochs: a shorter run is the user's own choice."""
SURE = 0.05
"""Over-confident: mean confidence minus accuracy exceeds this on held-out data."""
ERRORS = 2
"""Standard errors that a difference must exceed."""
ANEW = f"(with {setting('overwrite', True)}, or another {setting('out')})"
"""A finished run cannot be continued."""

Evaluation = Mapping[str, Any]


def advice(evaluation: Evaluation, course: Sequence[float], config: Config, dataset: Dataset) -> list[str]:
    """Lines for the terminal, hints first: only the first lines may be shown. `course` is the validation NLL of each
    epoch."""
    notes = [*ended_early(course, config), *filter(None, [evaluation.get("baselines_note")])]
    found = hints(evaluation, course, config, dataset)
    return [*(f"hint: {hint}" for hint in found), *(f"note: {note}" for note in notes)]


def ended_early(course: Sequence[float], config: Config) -> list[str]:
    epochs, patience = config.optimization.epochs, config.optimization.patience
    if patience is None or len(course) >= epochs:
        return []
    why = f"because the last {patience} brought no improvement ({setting('patience')})"
    return [f"Ended after {len(course)} of {epochs} epochs, {why}."]


def hints(evaluation: Evaluation, course: Sequence[float], config: Config, dataset: Dataset) -> list[str]:
    found = []
    if config.optimization.epochs >= SHORT:
        found = [
            _nothing_learned(evaluation, config, dataset) or _too_short(course, config),
            _too_sure(evaluation, config),
        ]
    found += [_simpler_is_better(evaluation, dataset), _too_few(evaluation, config, dataset.unit)]
    return [sentence for sentence in found if sentence]


def _held_out(evaluation: Evaluation) -> list[tuple[str, dict[str, Any]]]:
    """The validation and test splits that have rows."""
    return [(name, evaluation[name]) for name in ("val", "test") if (evaluation.get(name) or {}).get("n")]


def _nothing_learned(evaluation: Evaluation, config: Config, dataset: Dataset) -> str | None:
    """If the NLL on held-out rows is not below that of the base rate, which ignores the inputs."""
    split, entry = _held_out(evaluation)[-1]
    names = [name for name in ("nll_gain", "nll_gain_weighted") if entry.get(f"{name}_error") is not None]
    learned = any(entry[name] > ERRORS * entry[f"{name}_error"] for name in names)
    if learned or not names or entry["n"] < ROWS_TO_JUDGE:
        return None
    rows = f"{entry['n']:,} {'validation' if split == 'val' else split} {dataset.unit}"
    return (
        f"it has learned nothing yet: on {rows} its NLL is not below that of the base rate (gain "
        f"{entry[names[-1]]:.3f} ± {entry[f'{names[-1]}_error']:.3f}); train longer, for instance with "
        f"{setting('epochs', 2 * config.optimization.epochs)} {ANEW}, and check that the inputs tell the classes apart."
    )


def _too_short(course: Sequence[float], config: Config) -> str | None:
    """None too if patience ended the run: then it was long enough."""
    epochs, part = config.optimization.epochs, max(1, len(course) // 10)
    if len(course) < max(2, epochs):
        return None
    before, after = (sum(course[-end * part :][:part]) / part for end in (2, 1))
    if after > (1 - STILL_FALLING) * before:
        return None
    last = f"the last {part} epochs" if part > 1 else "the last epoch"
    return (
        f"validation NLL was still falling in {last} ({before:.3f} to {after:.3f}); "
        f"train longer, for instance with {setting('epochs', 2 * epochs)} {ANEW}."
    )


def _excess(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Mean confidence minus accuracy, and ERRORS standard errors of it."""
    error = entry["ece_signed_error"]
    return entry["ece_signed"], math.inf if error is None else ERRORS * error


def _too_sure(evaluation: Evaluation, config: Config) -> str | None:
    """On both validation and test rows: one of them alone may be chance."""
    splits = _held_out(evaluation)
    if any(excess < max(SURE, chance) for excess, chance in (_excess(entry) for _, entry in splits)):
        return None
    name, entry = splits[-1]
    remedies = [f"fit a temperature with {setting('calibration', 'temperature')}"] * (config.calibration == "none")
    remedies += [f"choose the epoch by its NLL with {setting('select', 'nll')}"] * (config.optimization.select != "nll")
    remedies += [f"raise {setting('val_fraction')} (now {config.val_fraction:g})"] * (not remedies)
    return (
        f"it is over-confident ({'validation' if name == 'val' else name} accuracy {entry['accuracy']:.1%}, "
        f"mean confidence {entry['mean_confidence']:.1%}); {', or '.join(remedies)} {ANEW}."
    )


def _simpler_is_better(evaluation: Evaluation, dataset: Dataset) -> str | None:
    """If a baseline has a lower NLL on the test rows, by more than the standard error of the paired difference."""
    baselines = evaluation.get("baselines") or {}
    name = better_baseline(baselines)
    if name is None:
        return None
    entry, own = baselines[name], evaluation["test"]
    rival = name if name[:2].isupper() else f"{name[0].lower()}{name[1:]}"
    return (
        f"a simpler model is better: on the {entry['n']:,} test {dataset.unit}, {rival} has an NLL "
        f"of {entry['nll']:.3f}, this network {own['nll']:.3f} (difference {entry['advantage']:.3f} ± "
        f"{entry['advantage_error']:.3f}), and accuracies of {entry['accuracy']:.1%} and {own['accuracy']:.1%}."
    )


def _too_few(evaluation: Evaluation, config: Config, unit: str) -> str | None:
    counts = {name: entry["n"] for name, entry in _held_out(evaluation)}
    if min(counts.values()) >= ROWS_TO_JUDGE:
        return None
    val, test = counts.get("val", 0), counts.get("test", ROWS_TO_JUDGE)
    doubts = [f"{val} validation {unit} chose the epoch"] * (val < ROWS_TO_JUDGE)
    doubts += [f"{test} test {unit} gave these numbers"] * (test < ROWS_TO_JUDGE)
    share = f", or raise {setting('val_fraction')} (now {config.val_fraction:g})" if test >= ROWS_TO_JUDGE else ""
    return f"only {' and '.join(doubts)}, so the result is noisy; collect more{share}."
