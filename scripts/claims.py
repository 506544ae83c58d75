"""Sentences about the archived runs of RIC. RIC is called better only if its NLL is below that of SL + temperature.

One temperature, fitted on validation data, costs nothing and corrects most of the over-confidence of supervised
learning, so RIC must do better than that. As in `report.comparison`, a verdict needs at least five seeds, and a
difference that is significant both over seeds and over test examples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive_results import log_scores
from ricnet.report.comparison import ACCURACY, ALPHA, ECE, ENOUGH_SEEDS, NLL, Metric
from ricnet.report.names import ALGORITHMS
from ricnet.report.runs import RunGroup, RunRecord
from ricnet.report.statistics import Difference, Interval, holm, mean_interval, paired_difference

CLAIMANTS = tuple(
    algorithm + readout for algorithm in ALGORITHMS for readout in ("", " + temperature", ", readout mu + temperature")
)
RIVAL = "SL + temperature"
Pairs = Sequence[tuple[RunRecord, RunRecord]]
"""Runs of a system and its rival with the same seed."""


@dataclass(frozen=True)
class Claim:
    system: RunGroup
    rival: RunGroup
    pairs: Pairs
    seeds: Difference
    """Difference in NLL over seeds."""
    examples: Interval | None
    """Difference in NLL over examples; None if the runs did not store log-scores."""
    p_corrected: float | None = None


def claims(groups: Sequence[RunGroup]) -> list[Claim]:
    """Sentences about the systems of one data set, tested together."""
    chosen = ("calibration", "halt_rule")  # on validation data
    groups = [group for group in groups if not any(group.first.config.get(name) == "auto" for name in chosen)]
    rivals = [group for group in groups if group.first.method == RIVAL]
    found = [_claim(group, rival) for group in groups for rival in rivals if group.first.method in CLAIMANTS]
    possible = [claim for claim in found if claim is not None]
    corrected = iter(holm([claim.seeds.p_value for claim in possible if claim.seeds.p_value is not None]))
    return [c if c.seeds.p_value is None else replace(c, p_corrected=next(corrected)) for c in possible]


def sentences(groups: Sequence[RunGroup]) -> list[str]:
    """A sentence for each difference on one data set, shown or not."""
    found = claims(groups)
    if any(group.first.method in CLAIMANTS for group in groups) and not found:
        return [f"Nothing is claimed of RIC here: there are no runs of {RIVAL} with the same seeds to hold it against."]
    return [f"{_measured(claim)} {_verdict(claim)} {_others(claim)}" for claim in found]


def _claim(system: RunGroup, rival: RunGroup) -> Claim | None:
    theirs = dict(zip(rival.seeds, rival.runs, strict=True))
    pairs = [(run, theirs[seed]) for seed, run in zip(system.seeds, system.runs, strict=True) if seed in theirs]
    return Claim(system, rival, pairs, _over_seeds(pairs, NLL), _over_examples(pairs)) if pairs else None


def _over_seeds(pairs: Pairs, metric: Metric) -> Difference:
    ours, theirs = zip(*((metric.of(run), metric.of(other)) for run, other in pairs), strict=True)
    return paired_difference(ours, theirs)


def _over_examples(pairs: Pairs) -> Interval | None:
    """Difference of −log a_y between two systems on each example, averaged over seeds."""
    kept = [(log_scores(run), log_scores(other)) for run, other in pairs]
    gaps = [theirs - ours for ours, theirs in kept if ours is not None and theirs is not None]
    alike = len({(str(run.data.get("fingerprint")), run.test["n"]) for pair in pairs for run in pair}) == 1
    return mean_interval(np.mean(gaps, axis=0)) if alike and len(gaps) == len(pairs) else None


def _measured(claim: Claim) -> str:
    seeds = f" over {claim.seeds.n} seeds" if claim.seeds.n > 1 else " with one seed"
    over = NLL.write(claim.seeds.mean, claim.seeds.half_width, signed=True) + seeds
    if claim.examples is not None:
        over += f",{NLL.write_half(claim.examples.half_width)} over the {claim.examples.n:,} test examples"
    return f"NLL of {claim.system.label} less that of {claim.rival.label}: {over}."


def _verdict(claim: Claim) -> str:
    side = "lower" if claim.seeds.mean < 0 else "higher"
    by_seeds = claim.p_corrected is not None and claim.p_corrected < ALPHA
    width = claim.examples.half_width if claim.examples is not None else None
    by_examples = width is not None and abs(claim.seeds.mean) > width
    if claim.seeds.n == 1:
        return "One seed says nothing about other seeds, so nothing is shown."
    if by_examples and not by_seeds and abs(claim.seeds.mean) > (claim.seeds.half_width or math.inf):
        return "Corrected for all comparisons here (Holm) no difference is shown."
    if not (by_seeds and by_examples):
        return "No difference is shown."
    if claim.seeds.n < ENOUGH_SEEDS:
        few = f"but {claim.seeds.n} seeds are fewer than the {ENOUGH_SEEDS} from which we call a system better or worse"
        return f"It is {side} by more than either interval, {few}."
    return f"{claim.system.label} is {'better' if side == 'lower' else 'worse'} than {claim.rival.label}."


def _others(claim: Claim) -> str:
    """Differences in accuracy and ECE, which do not change the verdict."""
    accuracy, ece = (_over_seeds(claim.pairs, metric) for metric in (ACCURACY, ECE))
    points = ACCURACY.write(accuracy.mean, accuracy.half_width, signed=True)
    error = ECE.write(ece.mean, ece.half_width, signed=True)
    return f"Accuracy differs by {points} points, ECE by {error}."
