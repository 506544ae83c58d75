"""What the steps of a system did, in sentences that are computed from its runs: nothing is promised that they lack."""

from ricnet.report.runs import RunGroup
from ricnet.report.steps import mean_of, step_curves
from ricnet.report.words import number, steps
from ricnet.training.console import rule_words


def refinement_words(group: RunGroup) -> str:
    """How far it goes, when it stops, and whether that is better than its first step."""
    return f"{_course(group)} {_worth(group)}"


def halting_rule(group: RunGroup) -> str:
    """What made the first run stop where it does, if validation data chose that."""
    rule = group.first.rule
    return f"It stops {rule_words(rule)}; validation data chose that." if rule else ""


def _course(group: RunGroup) -> str:
    most, mean = max(run.max_steps for run in group.runs), mean_of(group, "mean_steps")
    start = f"{group.label} begins with an even belief and changes it in up to {steps(most)}"
    if mean == most:
        return f"{start}, which it always makes."
    return f"{start}; it stops after {number(mean, 1)} on average."


def _worth(group: RunGroup) -> str:
    """By the NLL on the test set, which every step is rewarded for; digits that are not shown decide nothing."""
    every = step_curves(group, "nll")[1].mean(axis=0)
    first, halt, best = float(every[0]), mean_of(group, "nll"), int(every.argmin())
    lowest = f"lowest after {steps(best + 1)}, {number(float(every[best]), 3)}"
    shown = f"NLL {number(first, 3)} after the first, {number(halt, 3)} where it stops, {lowest}"
    if number(first, 3) == number(halt, 3):
        return f"On the test set the steps after the first change little: {shown}."
    better = "better than its first step" if halt < first else "worse than its first step"
    return f"On the test set it ends {better}: {shown}."
