"""Is RIC ahead of SL where there are few photographs? 10, 25, 50 and 100 % of ImageWoof's training photographs.

    python scripts/study_little_data.py --data-dir DIR --jobs 4 --minutes 4 --deadline 9   # until nothing is left
    python scripts/study_little_data.py --show

The shares are nested and stratified (`--train-fraction`); validation and test photographs are always the same. The
network is a ResNet-18 of half width at 128 pixels, nothing is calibrated and the halting rule is V < 0. SL is also read
with a temperature fitted on validation data.

- algorithm-1, sl: `--preset paper`. Every run makes the updates of 600 epochs of all photographs, and Algorithm 1 takes
  a snapshot every 155 updates, which are five passes through all of them.
- on-policy: the same settings with a snapshot at every update: one roll-out, joint credit, c up to 10.
- sl-fast: SL by `--preset fast`, which chooses its own epochs, batches and rates for the number of photographs.

The queue begins with 10 % and ends with 100 %. The runs of 2000 epochs in results/imagewoof-half-resnet18-paper do not
help at 100 %: all of them select an epoch after the 600th, and of the best epoch before it neither the weights nor the
test results are archived. Validation after each epoch costs more at a small share: at 10 % a run has 6,200 epochs of
three updates. Results are kept in results/little-data; scripts/write_questions.py writes them to
docs/questions/little-data.md.
"""

import argparse
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ricnet.data import whole_path
from ricnet.report.comparison import ACCURACY, ECE, NLL, Metric
from ricnet.report.runs import RunRecord, read_run
from ricnet.training.api import pick_device
from ricnet.training.recipes import configure
from run_queue import Job, add_options, archive, read, store, unfinished, updates_per_epoch, work
from write_evidence import of
from write_evidence import table as markdown
from write_questions import READING, gap, mean

ARCHIVES = Path(__file__).resolve().parents[1] / "results" / "little-data"
SHARES, SEEDS = (0.1, 0.25, 0.5, 1.0), (0, 1, 2)
NETWORK = {"encoder": "resnet18", "width": 0.5}
RAW = {"calibration": "none", "halt_rule": "value"}
EPOCHS, PASSES = 600, 5
"""Epochs, and passes per snapshot, if all photographs are used."""
SYSTEMS = {
    "paper": {"algorithm-1": "ric", "on-policy": "ric-on-policy", "sl": "supervised"},
    "fast": {"sl-fast": "supervised"},
}
"""Methods by preset, the most important first."""
TITLES = {
    "algorithm-1": "RIC, Algorithm 1",
    "algorithm-1-stopped": "RIC, Algorithm 1, stopped at 71 % of the updates",
    "on-policy": "RIC, on-policy",
    "sl": "SL",
    "sl-temperature": "SL + temperature",
    "sl-fast": "SL, `fast`",
    "sl-fast-temperature": "SL, `fast`, + temperature",
}
COMPARED = [
    ("algorithm-1", "sl"),
    ("algorithm-1", "sl-temperature"),
    ("algorithm-1-stopped", "sl"),
    ("algorithm-1-stopped", "sl-temperature"),
    ("on-policy", "sl"),
    ("on-policy", "sl-temperature"),
    ("algorithm-1", "on-policy"),
    ("algorithm-1", "sl-fast"),
    ("algorithm-1", "sl-fast-temperature"),
]
METRICS = (ACCURACY, NLL, ECE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ARCHIVES)
    parser.add_argument("--data", default="imagewoof", help="other data for a trial; give --to too")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of all photographs, for a trial")
    parser.add_argument("--resolution", type=int, help="by default 128 for ImageWoof, else that of the data")
    options = parser.parse_args()
    if options.data == "imagewoof" and options.resolution is None:
        options.resolution = 128
    if not options.show:
        if (options.data != "imagewoof" or options.epochs != EPOCHS) and options.to == ARCHIVES:
            parser.error("--data and --epochs are for trials, whose results do not belong to the study; add --to DIR")
        data = store(options.data, options, resolution=options.resolution)
        work(partial(unfinished, jobs(data, options), options.to), archive, options)
    print(table(options.to))


# The queue


def jobs(data: Path, options: argparse.Namespace) -> list[Job]:
    """All runs of the study, the most important first."""
    device, whole = pick_device(options.device), read(data)
    batch = configure(whole, "supervised", "paper", device).optimization.batch_size
    per_epoch = updates_per_epoch(len(whole.train), batch)
    found = []
    for share in SHARES:
        dataset = read(data, share)
        epochs = math.ceil(options.epochs * per_epoch / updates_per_epoch(len(dataset.train), batch))
        for preset, systems in SYSTEMS.items():
            for seed, (system, method) in product(SEEDS, systems.items()):
                changes: dict[str, Any] = {**NETWORK, **RAW, "seed": seed, "resolution": options.resolution}
                changes |= {"epochs": epochs} if preset == "paper" else {}
                changes |= {"updates_per_snapshot": PASSES * per_epoch} if method == "ric" else {}
                config = configure(dataset, method, preset, device, **changes)
                config = replace(config, data=whole_path(options.data), train_fraction=share)
                found.append(Job(name(system, share, seed), config, data, options.device, method == "supervised"))
    return found


def name(system: str, share: float, seed: int) -> str:
    return f"{system}-{100 * share:g}-seed{seed}"


# The tables


def table(archives: Path) -> str:
    """Scores of each system at each share, then differences paired by seed."""
    found = {
        (share, system): runs for share, system in product(SHARES, TITLES) if (runs := by_seed(archives, system, share))
    }
    if not found:
        return "No run is archived yet."
    levels = [
        [f"{100 * share:g}", TITLES[system], str(len(runs)), *(mean(scores(runs, each), each) for each in METRICS)]
        for (share, system), runs in found.items()
    ]
    gaps = []
    for share, (first, second) in product(SHARES, COMPARED):
        ours, theirs = (found.get((share, system), {}) for system in (first, second))
        if seeds := sorted(ours.keys() & theirs.keys()):
            cells = [gap(scores(ours, each, seeds), scores(theirs, each, seeds), each) for each in METRICS]
            gaps.append([f"{100 * share:g}", f"{TITLES[first]} less {TITLES[second]}", str(len(seeds)), *cells])
    titles = ["Photographs (%)", "System", "Seeds", *(each.heading for each in METRICS)]
    machines = [run.hardware for runs in found.values() for run in runs.values()]
    made_with = sorted({f"{each['name']}, PyTorch {each['torch']}" for each in machines})
    tables = "\n\n".join(markdown(titles, body) for body in (levels, gaps) if body)
    return f"{tables}\n\nTest data. {READING} {'; '.join(made_with)}."


def by_seed(archives: Path, system: str, share: float) -> dict[int, RunRecord]:
    trained, temperature, _ = system.partition("-temperature")
    paths = {seed: archives / f"{name(trained, share, seed)}{temperature}.json" for seed in SEEDS}
    return {seed: read_run(path) for seed, path in paths.items() if path.is_file()}


def scores(runs: dict[int, RunRecord], metric: Metric, seeds: Iterable[int] | None = None) -> list[float]:
    return [of(metric)(runs[seed]) for seed in (runs if seeds is None else seeds)]


if __name__ == "__main__":
    main()
