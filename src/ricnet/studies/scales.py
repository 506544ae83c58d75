"""How large a reproduction is: on digits in minutes, on one GPU in about an hour, or as large as the paper's.

At every scale a figure asks for the same systems; what changes is the data, the network, how long it learns, and how
often. The paper compares on three data sets and looks at label noise on one of them; at `smoke` digits with none, 9 %
and 40 % of the labels flipped stand in for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ricnet.errors import RicnetError, what_else
from ricnet.studies.runner import Benchmark, Changes, Experiment

GIVEN = "given runs"
"""The name of a scale whose runs are taken as they were found."""


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
    """What all runs share."""
    dynamics: Changes = ()
    """What the runs of Figure 2 alone have: the paper trains them for 1000 epochs."""
    ablation: Changes = ()
    """What the runs of Figure 9 alone have: SPO and PPO differ only where a snapshot lasts for several updates, which
    in `fast` it does not."""

    def experiments(self, systems: Sequence[str], benchmarks: Sequence[Benchmark], **changes: Any) -> list[Experiment]:
        """One of each system and benchmark, benchmark by benchmark."""
        own = tuple(sorted((dict(self.changes) | changes).items()))
        return [Experiment(system, bench, self.seeds, own, self.preset) for bench in benchmarks for system in systems]


def find_scale(name: str) -> Scale:
    if name not in SCALES:
        raise RicnetError(f"--scale {name} is unknown; {what_else(name, SCALES)}")
    return SCALES[name]


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
        ablation=(("updates_per_snapshot", 5),),
    ),
    "small": Scale(
        "small",
        "fast",
        (0, 1, 2),
        (_CIFAR10, _SVHN, Benchmark("ImageWoof", "imagewoof", (("resolution", 64),))),
        _HUMAN_LABELS,
        (("encoder", "resnet18"), ("epochs", 30), ("measure_all", True), ("width", 0.5)),
        ablation=(("clip", 0.5), ("updates_per_snapshot", 10)),
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
