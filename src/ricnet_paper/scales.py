"""Scales of a reproduction: the data sets, settings and seeds of every table and figure.

`smoke` runs on digits in minutes, `small` on one GPU in about an hour, `paper` has the paper's own settings. Every
scale trains the same systems. The paper compares them on three data sets and studies label noise on one of them; at
`smoke`, digits with 0, 9 and 40 % of the labels flipped replace both.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Benchmark, Changes, Experiment
from ricnet.studies.runner import ran_on

GIVEN = "given runs"
"""Name of a scale whose runs were given by the user, with their own settings."""


@dataclass(frozen=True)
class Scale:
    name: str
    preset: str
    seeds: tuple[int, ...]
    benchmarks: tuple[Benchmark, ...]
    """The three data sets of Tables 1 and 3 and Figures 4 to 8: CIFAR-10, SVHN and ImageWoof in the paper."""
    noise: tuple[Benchmark, ...]
    """Clean, aggregate and worst labels, as in Figure 3."""
    changes: Changes
    """Settings of all runs."""
    dynamics: Changes = ()
    """Further settings of the runs of Figure 2; the paper trains them for 1000 epochs."""
    ablation: Changes = ()
    """Further settings of the runs of Figure 9, which use Algorithm 1. SPO and PPO differ only if a snapshot lasts for
    several updates, and a logistic-normal policy needs the joint credit."""
    looked_at: int = 2
    """Index of the benchmark that Figure 5 and `halting` show."""

    def experiments(self, systems: Sequence[str], benchmarks: Sequence[Benchmark], **changes: Any) -> list[Experiment]:
        """One experiment per benchmark and system, in this order."""
        own = tuple(sorted((dict(self.changes) | changes).items()))
        return [Experiment(system, bench, self.seeds, own, self.preset) for bench in benchmarks for system in systems]


_DIGITS = (
    Benchmark("digits", "digits"),
    Benchmark("digits, 9 % flipped", "digits", (("label_noise", 0.09),)),
    Benchmark("digits, 40 % flipped", "digits", (("label_noise", 0.4),)),
)
_CIFAR10 = Benchmark("CIFAR-10", "cifar10")
_SVHN = Benchmark("SVHN", "svhn")
_IMAGEWOOF = Benchmark("ImageWoof", "imagewoof")
_HUMAN_LABELS = (
    _CIFAR10,
    Benchmark("CIFAR-10N, aggregate", "cifar10n-aggregate"),
    Benchmark("CIFAR-10N, worst", "cifar10n-worst"),
)

SCALES = {
    "smoke": Scale(
        "smoke",
        "fast",
        (0, 1, 2),
        _DIGITS,
        _DIGITS,
        (("epochs", 20), ("measure_all", True)),
        ablation=(("epsilon", 0.2), ("updates_per_snapshot", 5)),
    ),
    "small": Scale(
        "small",
        "fast",
        (0, 1, 2),
        (_CIFAR10, _SVHN, Benchmark("ImageWoof", "imagewoof", (("resolution", 64),))),
        _HUMAN_LABELS,
        (("encoder", "resnet18"), ("epochs", 30), ("measure_all", True), ("width", 0.5)),
        ablation=(("clip", 0.5), ("credit", "joint"), ("epsilon", 0.2), ("updates_per_snapshot", 10)),
    ),
    "paper": Scale(
        "paper",
        "paper",
        (0, 1, 2, 3, 4),
        (_CIFAR10, _SVHN, _IMAGEWOOF),
        _HUMAN_LABELS,
        (("measure_all", True),),
        dynamics=(("epochs", 1000),),
    ),
}


def as_given(scale: Scale, runs: Sequence[RunRecord]) -> Scale:
    """The data sets and systems of a scale, without its settings, for the seeds of the given runs.

    Items that show a single data set show the last one with runs.
    """
    seeds = tuple(sorted({run.seed for run in runs}))
    there = [i for i, benchmark in enumerate(scale.benchmarks) if any(ran_on(run, benchmark) for run in runs)]
    return dataclasses.replace(
        scale, name=GIVEN, seeds=seeds, changes=(), dynamics=(), ablation=(), looked_at=max(there, default=2)
    )
