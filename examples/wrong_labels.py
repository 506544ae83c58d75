"""Where RIC helps: tables in which every fifth label is wrong. `make demo` runs this.

    python examples/wrong_labels.py

Three made-up tables of three classes. All systems are trained on the same rows and tested on 10,000 new rows with as
many wrong labels, as in practice; the column `truth` is the accuracy by the correct labels. The networks have their
default settings: they are small and calibrated on validation rows. docs/when.md has the whole study, with other sizes
and shares of wrong labels.
"""

import argparse
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import ricnet
from ricnet import RICClassifier, SupervisedClassifier

CLASSES, TEST_ROWS, BINS = 3, 10_000, 15
RIC, SL = "RIC, on-policy", "SL"
Scores = dict[str, list[dict[str, float]]]
"""For each system a list of scores, one entry per table."""


def make_table(rows: int, wrong: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, labels of which some are wrong, correct labels."""
    x, truth = make_classification(
        rows + TEST_ROWS, n_features=20, n_informative=10, n_redundant=4, n_classes=CLASSES, random_state=seed
    )
    rng = np.random.default_rng(seed)
    other = (truth + rng.integers(1, CLASSES, len(truth))) % CLASSES
    return x, np.where(rng.random(len(truth)) < wrong, other, truth), truth


def systems(seed: int, epochs: int | None) -> dict[str, Any]:
    return {
        RIC: RICClassifier(random_state=seed, epochs=epochs),
        SL: SupervisedClassifier(random_state=seed, epochs=epochs),
        "gradient boosting": HistGradientBoostingClassifier(early_stopping=True, random_state=seed),
        "logistic regression": LogisticRegression(max_iter=1_000),
    }


def judge(beliefs: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    confidence, answers = beliefs.max(1), beliefs.argmax(1)
    gap = (answers == labels) - confidence  # ECE: the mean gap of each bin, weighted by its rows
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    ece = np.abs(np.bincount(bins, gap, BINS)).sum() / len(labels)
    return {
        "log-loss": log_loss(labels, beliefs, labels=range(CLASSES)),
        "ECE": float(ece),
        "truth": float((answers == truth).mean()),
    }


def conclusion(scores: Scores) -> list[str]:
    means = {system: {key: mean(e[key] for e in entries) for key in entries[0]} for system, entries in scores.items()}
    ours, theirs = means[RIC], means[SL]
    sentences = []
    for rival in (system for system in scores if system != RIC):
        pairs = list(zip(scores[RIC], scores[rival], strict=True))
        wins = sum(mine["log-loss"] < other["log-loss"] for mine, other in pairs)
        gain = means[rival]["log-loss"] - ours["log-loss"]
        sentences.append(
            f"{RIC} has a lower log-loss than {rival} on {wins} of {len(pairs)} tables, "
            f"{abs(gain):.3f} {'less' if gain > 0 else 'more'} on average."
        )
    word = "better" if ours["ECE"] < theirs["ECE"] else "no better"
    return [
        *sentences,
        f"It is {word} calibrated than SL: ECE {ours['ECE']:.3f} against {theirs['ECE']:.3f}.",
        f"Accuracy on the true labels: {ours['truth']:.1%}, SL {theirs['truth']:.1%}.",
        f"Training time per table: {ours['seconds']:.0f} s, SL {theirs['seconds']:.0f} s.",
    ]


def print_thoughts(model: Any, inputs: Any, names: Sequence[str]) -> None:
    """Beliefs in the three most likely classes step by step, and V, the gain expected from the next step, for the input
    with the fewest steps and the one with the most."""
    path = model.refine(inputs, halt=False)
    steps = path.halt_step.tolist()
    for row in dict.fromkeys((steps.index(min(steps)), steps.index(max(steps)))):
        beliefs, values = path.log_beliefs[:, row].exp(), path.values[:, row].tolist()
        best = beliefs[steps[row] - 1].topk(3).indices.tolist()
        print("\n  step " + "".join(f"{names[k]:>12}" for k in best) + f"{'V':>12}")
        for step in sorted({1, 2, 3, 4, 5, 10, steps[row]} & set(range(steps[row] + 1))):
            value = f"{values[step]:+.3f}" if step < len(values) else ""
            end = "" if step < steps[row] else "   the last step" if step == len(beliefs) else "   stops"
            print(f"  {step:>4} " + "".join(f"{beliefs[step - 1, k]:>12.3f}" for k in best) + f"{value:>12}{end}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_500)
    parser.add_argument("--wrong", type=float, default=0.2, help="share of labels that are wrong")
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="of the networks; by default chosen by the number of rows")
    args = parser.parse_args()
    print(f"{args.tables} tables of {args.rows:,} training rows; {args.wrong:.0%} of the labels are wrong.\n")
    print(f"{'table':<6} {'system':<20} {'log-loss':>8} {'ECE':>6} {'truth':>6} {'seconds':>8}")
    scores: Scores = {}
    for table in range(args.tables):
        x, labels, truth = make_table(args.rows, args.wrong, seed=10 + table)
        fitted = systems(table, args.epochs)
        for name, model in fitted.items():
            start = time.perf_counter()
            model.fit(x[: args.rows], labels[: args.rows])
            seconds = time.perf_counter() - start
            score = judge(model.predict_proba(x[args.rows :]), labels[args.rows :], truth[args.rows :])
            scores.setdefault(name, []).append(score | {"seconds": seconds})
            cells = f"{score['log-loss']:>8.3f} {score['ECE']:>6.3f} {score['truth']:>6.1%} {seconds:>8.1f}"
            print(f"{table + 1:<6} {name:<20} {cells}", flush=True)
    print("\nThe steps of two answers, for test rows of the last table. RIC stops once V is below its threshold:")
    print_thoughts(fitted[RIC], x[args.rows : args.rows + 1_000], [f"class {k}" for k in range(CLASSES)])
    print("\nThe same for images, by the model that comes with ricnet (pretrained:cifar10):")
    images = ricnet.load("pretrained:cifar10")
    print_thoughts(images, images.read(images.folder / "examples.npz"), images.class_names)
    print("\n" + "\n".join(conclusion(scores)))


if __name__ == "__main__":
    main()
