"""Compare the estimators with scikit-learn's own on three small data sets, and write the table of docs/estimators.md.

python scripts/compare_estimators.py

Each is fitted on the same 25 splits, 5-fold cross-validation five times over, with its default settings. What has been
measured is kept in results/estimators.json and not measured again: delete the file, or an entry, to repeat it. All of
it takes about half an hour on one core.
"""

import json
import math
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ricnet

ROOT = Path(__file__).parents[1]
RESULTS, TEXT = ROOT / "results" / "estimators.json", ROOT / "docs" / "estimators.md"
MARKED = re.compile(r"(<!-- estimators -->\n).*?(<!-- /estimators -->)", re.DOTALL)
FOLDS, REPEATS = 5, 5
OURS = "RICClassifier"
DATA = {"wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}

ESTIMATORS: dict[str, Callable[[int], BaseEstimator]] = {
    "LogisticRegression": lambda _: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "MLPClassifier": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(max_iter=1000, random_state=seed)),
    "SupervisedClassifier": lambda seed: ricnet.SupervisedClassifier(random_state=seed, device="cpu"),
    "RICClassifier": lambda seed: ricnet.RICClassifier(random_state=seed, device="cpu"),
    "AnytimeClassifier": lambda seed: ricnet.AnytimeClassifier(random_state=seed, device="cpu"),
    "ACTClassifier": lambda seed: ricnet.ACTClassifier(random_state=seed, device="cpu"),
    "PonderNetClassifier": lambda seed: ricnet.PonderNetClassifier(random_state=seed, device="cpu"),
}

Scores = dict[str, list[float]]
"""Accuracy, log-loss and seconds of each split."""


def main() -> None:
    torch.set_num_threads(1)
    entry = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"scores": {}}
    for name, make in ESTIMATORS.items():
        for data in DATA:
            if data not in entry["scores"].setdefault(name, {}):
                entry["scores"][name][data] = scores = measure(make, data)
                entry["made_with"] = versions()
                RESULTS.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
                print(name, data, *(f"{part} {np.mean(values):.4f}" for part, values in scores.items()), flush=True)
    table = "\n".join([*rows(entry["scores"]), "", note(entry["made_with"]), ""])
    text = TEXT.read_text(encoding="utf-8")
    TEXT.write_text(MARKED.sub(lambda match: match[1] + table + match[2], text), encoding="utf-8")


def measure(make: Callable[[int], BaseEstimator], data: str) -> Scores:
    x, y = DATA[data](return_X_y=True)
    scores: Scores = {"accuracy": [], "log_loss": [], "seconds": []}
    splits = RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=0).split(x, y)
    for seed, (train, test) in enumerate(splits):
        began = time.process_time()
        fitted = make(seed).fit(x[train], y[train])
        scores["seconds"].append(round(time.process_time() - began, 2))
        beliefs = fitted.predict_proba(x[test])
        scores["accuracy"].append(float((beliefs.argmax(1) == y[test]).mean()))
        scores["log_loss"].append(float(log_loss(y[test], beliefs)))
    return scores


def interval(values: list[float]) -> float:
    """Half the 95 % interval of the mean, by the corrected resampled t (Nadeau and Bengio 2003).

    Training sets overlap, so that splits are no independent samples: the variance of the mean is not s²/n but
    s²·(1/n + n_test/n_train), here s²·(1/25 + 1/4).
    """
    variance = np.var(values, ddof=1) * (1 / len(values) + 1 / (FOLDS - 1))
    return float(stats.t.ppf(0.975, len(values) - 1) * math.sqrt(variance))


def rows(scores: dict[str, dict[str, Scores]]) -> list[str]:
    complete = [name for name in ESTIMATORS if len(scores.get(name, {})) == len(DATA)]
    lines = [*_head("Estimator", "Seconds a fit")]
    for name in complete:
        seconds = ", ".join(f"{np.mean(scores[name][data]['seconds']):.1f}" for data in DATA)
        lines.append(_line(name, [*_cells(scores[name], ""), seconds]))
    others = [name for name in complete if name != OURS]
    if OURS in complete and others:
        lines += ["", *_head(f"{OURS} less …, fold by fold")]
        lines += [_line(name, _cells(_less(scores[OURS], scores[name]), "+")) for name in others]
    return lines


def _head(first: str, *last: str) -> list[str]:
    titles = [first, *(f"{data}, {part}" for data in DATA for part in ("accuracy (%)", "log-loss")), *last]
    return [_line(titles[0], titles[1:]), "| :--- |" + " ---: |" * (len(titles) - 1)]


def _line(name: str, cells: list[str]) -> str:
    return "| " + " | ".join([name, *cells]) + " |"


def _cells(scores: dict[str, Scores], sign: str) -> list[str]:
    cells = []
    for data in DATA:
        accuracy, surprise = scores[data]["accuracy"], scores[data]["log_loss"]
        cells.append(f"{100 * np.mean(accuracy):{sign}.1f} ± {100 * interval(accuracy):.1f}")
        cells.append(f"{np.mean(surprise):{sign}.3f} ± {interval(surprise):.3f}")
    return cells


def _less(ours: dict[str, Scores], theirs: dict[str, Scores]) -> dict[str, Scores]:
    """On the same splits, of which some are harder for all: differences vary less than what they are differences of."""
    return {
        data: {part: list(np.subtract(ours[data][part], theirs[data][part])) for part in ("accuracy", "log_loss")}
        for data in DATA
    }


def note(made_with: dict[str, Any]) -> str:
    return (
        f"Means over {FOLDS} × {REPEATS} folds and their 95 % intervals, by the corrected resampled t (Nadeau and "
        "Bengio 2003). All have their default settings, but for `max_iter=1000` of scikit-learn's two, which stand "
        "behind a `StandardScaler`. Seconds of CPU on one thread, for each data set. "
        f"{', '.join(made_with.values())}."
    )


def versions() -> dict[str, str]:
    return {
        "ricnet": f"ricnet {ricnet.__version__}",
        "torch": f"PyTorch {torch.__version__}",
        "sklearn": f"scikit-learn {sklearn.__version__}",
        "python": f"Python {platform.python_version()}",
    }


if __name__ == "__main__":
    main()
