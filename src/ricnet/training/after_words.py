"""What was chosen on validation data after training, in sentences: for the end of a run, and for its report."""

from collections.abc import Mapping
from typing import Any


def chosen_words(evaluation: Mapping[str, Any]) -> list[str]:
    """Of evaluation.json; none where nothing was to be chosen."""
    fitted = evaluation.get("fitted") or {}
    found = []
    if fit := fitted.get("calibration"):
        found.append(_temperature_words(fit))
    if rule := fitted.get("halting"):
        found.append(_halt_words(rule))
    return found


def rule_words(rule: Mapping[str, Any]) -> str:
    """after 3 steps; or: once V < 0.01, after 12 steps at the latest."""
    most = "1 step" if rule["max_steps"] == 1 else f"{rule['max_steps']} steps"
    if rule["max_steps"] == 1 or not rule["reached"]:
        return f"after {most}"
    return f"once V < {rule['halt_threshold']:g}, after {most} at the latest"


def _halt_words(rule: Mapping[str, Any]) -> str:
    return (
        f"stops {rule_words(rule)}, chosen on {rule['n']:,} validation examples: NLL {rule['nll']:.4f} there in "
        f"{rule['mean_steps']:.1f} steps (V < 0: {rule['nll_before']:.4f} in {rule['steps_before']:.1f} steps; "
        f"best single step, {rule['best_step']}: {rule['best_step_nll']:.4f})"
    )


def _temperature_words(fit: Mapping[str, Any]) -> str:
    if not fit["found"]:
        return (
            f"temperature left at 1: on {fit['n']:,} validation examples no finite one is best (is none of them wrong?)"
        )
    if not fit["kept"]:
        small = "" if fit["gain"] is None else f" (by {fit['gain']:.4f} ± {fit['gain_error']:.4f} of NLL)"
        return f"temperature left at 1: on {fit['n']:,} validation examples another helps by no more than chance{small}"
    change = f"validation NLL {fit['nll_before']:.4f} → {fit['nll_after']:.4f}"
    return f"temperature {fit['temperature']:.3f}, fitted on {fit['n']:,} validation examples: {change}"
