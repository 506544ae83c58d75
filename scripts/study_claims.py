"""Train the runs by `--preset paper` that docs/evidence.md lacks, in pieces of minutes.

    python scripts/study_claims.py resnet34 --data-dir DIR --jobs 2 --minutes 8 --deadline 8    # until nothing is left
    python scripts/study_claims.py resnet34 --data-dir DIR --jobs 2 --minutes 6 --deadline 7 --stop    # the last piece
    python scripts/study_claims.py other-data --data-dir DIR --jobs 4 --deadline 8 --epochs 600    # shorter runs
    python scripts/study_claims.py --show

- resnet34: ImageWoof with the paper's network. RIC, and SL with as many epochs; SL with 300 is archived already.
- rivals: ImageWoof. ACT and PonderNet; Figure 9's PPO and logistic-normal policy; anytime with RIC's step weights, cap
  and value; SL with RIC's cap; RIC with samples fed back at inference, by which the epoch is chosen too.
- decay: CIFAR-10, ResNet-34. SL with weight decay in the gradient (Adam), and decoupled, as in the preset, to see
  which one reproduces the paper's SL.
- rounds: ImageWoof with a snapshot every pass and every 20 passes instead of 5; CIFAR-10 with 4000 epochs instead of
  2000.
- other-data: SVHN and CIFAR-10N, RIC and SL.

The network is a ResNet-18 of half width where nothing else is said. Nothing is calibrated and the halting rule is
V < 0; every run is also read with a temperature. Without a name all parts are trained, in this order. Repeat a command
with the same --runs: a run that was stopped goes on if its folder is still there, else it starts anew.

A run with fewer epochs than planned, by --epochs or by --stop, has `stopped` in its name; docs/evidence.md shows it but
takes no verdict from it. The learning rate is constant, so it is the beginning of the whole run.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ricnet.data import Dataset, whole_path
from ricnet.errors import RicnetError
from ricnet.models.config import Config
from ricnet.report.comparison import ACCURACY, ECE, NLL
from ricnet.training.api import pick_device
from ricnet.training.recipes import configure
from run_queue import Job, add_options, archive, archive_stopped, read, stopped, store, unfinished, work
from write_evidence import Pairing, of
from write_evidence import table as markdown
from write_questions import mean

RESULTS = Path(__file__).resolve().parents[1] / "results"
NETWORKS: dict[str, dict[str, Any]] = {
    "half-resnet18": {"encoder": "resnet18", "width": 0.5},
    "resnet34": {"encoder": "resnet34"},
}
RESOLUTION = {"imagewoof": 128}
MEASURE_EVERY = {"imagewoof": 25}
"""Epochs between measurements of training and test data; 10 for other data."""
RAW = {"calibration": "none", "halt_rule": "value"}
CAP = {"uniform_mix": 0.0099}
"""The share of the uniform in the mean of RIC's Dirichlet with ten classes."""


@dataclass(frozen=True)
class System:
    """Runs that differ in their seed only."""

    name: str
    """Of the files, without the seed."""
    method: str
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from those of the preset."""
    data: str = "imagewoof"
    network: str = "half-resnet18"
    seeds: tuple[int, ...] = (0,)

    def files(self, seed: int | str) -> str:
        return f"{self.data}-{self.network}-paper/{self.name}-seed{seed}"


THREE = (0, 1, 2)
LONG = {"epochs": 2000}
PARTS = {
    "resnet34": [
        System("ric", "ric", network="resnet34"),
        System("supervised-2000", "supervised", LONG, network="resnet34"),
    ],
    "rivals": [
        System("act", "act", seeds=THREE),
        System("pondernet", "pondernet", seeds=THREE),
        System("ric-ppo", "ric", {"objective": "ppo"}),
        System("ric-logistic-normal", "ric", {"head": "logistic-normal"}),
        System("anytime-matched", "anytime", LONG | CAP | {"step_weight": "uniform", "value_coef": 0.5}, seeds=THREE),
        System("supervised-cap-2000", "supervised", LONG | CAP, seeds=THREE),
        System("ric-sampled-feedback", "ric", {"feedback": "sample"}),
    ],
    "decay": [
        System("supervised-coupled", "supervised", {"optimizer": "adam"}, "cifar10", "resnet34"),
        System("supervised", "supervised", {}, "cifar10", "resnet34"),
    ],
    "rounds": [
        System("ric-1-pass", "ric", {"passes_per_snapshot": 1}),
        System("ric-20-passes", "ric", {"passes_per_snapshot": 20}),
        System("ric-4000", "ric", {"epochs": 4000}, "cifar10"),
    ],
    "other-data": [
        System(name, method, {}, data, seeds=THREE)
        for data in ("svhn", "cifar10n-worst", "cifar10n-aggregate")
        for name, method in (("supervised", "supervised"), ("ric", "ric"))
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"in this order: {', '.join(PARTS)}")
    add_options(parser, RESULTS)
    shorter = parser.add_mutually_exclusive_group()
    shorter.add_argument("--epochs", type=int, help="largest number of epochs of a run")
    shorter.add_argument("--stop", action="store_true", help="at the end archive unfinished runs too, as they are")
    parser.add_argument("--seeds", type=int, default=len(THREE), help="number of seeds, at most 3")
    parser.add_argument("--data", help="other data for a trial; give --to too")
    parser.set_defaults(runs=Path("runs") / "claims")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"{unknown[0]}: there is no such part; the parts are {', '.join(PARTS)}")
    if options.data and options.to == RESULTS:
        parser.error("--data is for trials, whose results do not belong to the study; add --to DIR")
    if not options.show:
        try:
            failed = train(options)
        except RicnetError as error:
            sys.exit(f"study_claims: {error}")
    print(table(options.parts or list(PARTS), options.to))
    if not options.show and failed:
        sys.exit(f"study_claims: {', '.join(failed)} failed")


# The queue


def train(options: argparse.Namespace) -> list[str]:
    """Train what is missing; returns the names of runs that failed."""
    planned = [job for part in options.parts or PARTS for job in jobs(PARTS[part], options)]
    failed = work(partial(unfinished, planned, options.to), archive, options)
    return failed + (archive_stopped(planned, options) if options.stop else [])


def jobs(part: Sequence[System], options: argparse.Namespace) -> list[Job]:
    """All runs of a part, the most important first."""
    found = []
    for system in part:
        data = options.data or system.data
        path = store(data, options, resolution=RESOLUTION.get(data))
        config = configuration(system, data, read(path), pick_device(options.device))
        found += [job(system, replace(config, seed=seed), path, options) for seed in system.seeds[: options.seeds]]
    return found


def job(system: System, config: Config, path: Path, options: argparse.Namespace) -> Job:
    name = system.files(config.seed)
    if options.epochs is not None and options.epochs < config.optimization.epochs:
        config = replace(config, optimization=replace(config.optimization, epochs=options.epochs))
        name = stopped(name)
    return Job(name, config, path, options.device, tempered=True)


def configuration(system: System, data: str, dataset: Dataset, device: torch.device) -> Config:
    """The settings of a system with seed 0."""
    measured = {"measure_all": True, "measure_every": MEASURE_EVERY.get(data, 10)}
    changes = {**NETWORKS[system.network], **RAW, **measured, **system.changes, "resolution": RESOLUTION.get(data)}
    return replace(configure(dataset, system.method, "paper", device, **changes), data=whole_path(data))


# The table


def table(parts: Sequence[str], archives: Path) -> str:
    """Test scores as trained, of whole runs and of stopped ones."""
    metrics, body = (ACCURACY, NLL, ECE), []
    for system in (system for part in parts for system in PARTS[part]):
        files = system.files("{}")
        found = {name: Pairing("", name).runs(archives) for name in (files, stopped(files))}
        for name, runs in found.items():
            if runs or (name == files and not any(found.values())):
                epochs = sorted({run.config["optimization"]["epochs"] for run in runs})
                scores = [mean([of(metric)(run) for run in runs], metric) if runs else "" for metric in metrics]
                count = f"{len(runs)} of {len(system.seeds)}"
                body.append([f"`{name.format('*')}`", count, ", ".join(map(str, epochs)), *scores])
    titles = ["Runs", "Archived", "Epochs", *(metric.heading for metric in metrics)]
    return f"{markdown(titles, body)}\n\nTest data, as trained, ± half-width of the 95 % Student-t interval over seeds."


if __name__ == "__main__":
    main()
