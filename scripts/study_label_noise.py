"""Where RIC helps and where not: tables with wrong labels, against supervised learning and gradient boosting.

    python scripts/study_label_noise.py --rows 1000 5000 --noise 0 0.1 0.2 0.4 --seeds 5

Three classes of scikit-learn's `make_classification`; a share of all labels, test labels included, is replaced by
another class, so that the best possible prediction is uncertain, which the log-loss measures. Results are stored in
results/label_noise.json and not measured again; the table of docs/when.md and its figure are written from them. With
`--to` results are stored in another file, and no table is written.
"""

import argparse
import json
import platform
import re
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import sklearn
import torch
from rich.console import Console
from scipy import stats
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from ricnet.data import Dataset, Split
from ricnet.evaluation.metrics import expected_calibration_error
from ricnet.models.config import Config, to_json
from ricnet.report.names import system_name
from ricnet.studies.experiments import RAW, find_system
from ricnet.training.api import train_in_memory
from ricnet.training.finish import fit
from ricnet.training.recipes import Facts, configure

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, FIGURE = (ROOT / name for name in ("results/label_noise.json", "docs/when.md", "docs/images/when.png"))
MARKED = re.compile(r"(<!-- label-noise -->\n).*?(<!-- /label-noise -->)", re.DOTALL)
TEST_ROWS, CLASSES, VALIDATION = 10_000, 3, 0.15
MOST_ROWS = 5_000
CPU = torch.device("cpu")
OURS = "RIC, on-policy"
SYSTEMS = ("ric", "ric-closed-form", "supervised", "confidence-cap", "anytime-matched")
"""Systems of `ric compare`. Results are stored by `system_name`, which names the algorithm that this many rows get."""
CONTROLS = ("Anytime, confidence cap", "SL", "SL + temperature", "SL, confidence cap")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 5_000])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--to", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: Path = arguments.to.resolve()
    if results == RESULTS and max(arguments.rows) > MOST_ROWS:
        parser.error(
            f"--rows: the table has up to {MOST_ROWS:,}, of one algorithm; keep more of them elsewhere, with --to"
        )
    kept: dict[str, Any] = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    for seed, rows, noise in product(range(arguments.seeds), arguments.rows, arguments.noise):
        key = f"{rows} rows, {noise:g} wrong, seed {seed}"
        found = measure(rows, noise, seed, kept.get(key, {}))
        if found == kept.get(key):
            continue
        kept[key] = found
        results.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(key, {name: round(entry["log_loss"], 3) for name, entry in kept[key].items()}, flush=True)
    if results == RESULTS:
        write(kept)


def measure(rows: int, noise: float, seed: int, known: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Add the systems that are not yet measured."""
    x, y = make_classification(
        rows + TEST_ROWS, n_features=20, n_informative=10, n_redundant=4, n_classes=CLASSES, random_state=seed
    )
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(len(y)) < noise, (y + rng.integers(1, CLASSES, len(y))) % CLASSES, y)
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=TEST_ROWS, random_state=seed, stratify=y)
    found = dict(known)
    for name, model in (
        ("gradient boosting", HistGradientBoostingClassifier(early_stopping=True, random_state=seed)),
        ("logistic regression", LogisticRegression(max_iter=1_000)),
    ):
        if name not in found:
            start = time.process_time()
            model.fit(x_rest, y_rest)
            found[name] = scored(model.predict_proba(x_test), y_test, time.process_time() - start)
    dataset = as_dataset(x_rest, y_rest, x_test, y_test, seed)
    for system in map(find_system, SYSTEMS):
        changes = system.changes_for(Facts.of(dataset, CPU, {}))
        config = configure(dataset, system.method, system.preset or "fast", CPU, seed=seed, **RAW, **changes)
        if system_name(to_json(config)) not in found:
            found |= trained(dataset, config)
    return found


def as_dataset(x_rest: Any, y_rest: Any, x_test: Any, y_test: Any, seed: int) -> Dataset:
    parts = train_test_split(x_rest, y_rest, test_size=VALIDATION, random_state=seed, stratify=y_rest)
    train, val, test = ((parts[0], parts[2]), (parts[1], parts[3]), (x_test, y_test))
    splits = [Split(torch.tensor(x).float(), torch.tensor(y).long()) for x, y in (train, val, test)]
    return Dataset("noisy labels", *splits, class_names=tuple(map(str, range(CLASSES))))


def trained(dataset: Dataset, config: Config) -> dict[str, dict[str, float]]:
    """The network as trained, and with a temperature fitted on its validation rows."""
    name, start = system_name(to_json(config)), time.process_time()
    raw, _ = train_in_memory(config, dataset, CPU, console=Console(quiet=True))
    seconds, labels = time.process_time() - start, dataset.test.labels.numpy()
    found = {name: scored(raw.predict_proba(dataset.test.inputs.numpy()), labels, seconds)}
    if "closed" not in name and "cap" not in name:
        fitted = fit(replace(config, calibration="temperature"), raw.model, dataset.val)
        warm = replace(raw, temperature=fitted.reading.temperature)
        found[f"{name} + temperature"] = scored(warm.predict_proba(dataset.test.inputs.numpy()), labels, seconds)
    return found


def scored(beliefs: Any, labels: Any, seconds: float) -> dict[str, float]:
    right = torch.tensor(beliefs.argmax(1) == labels)
    return {
        "log_loss": float(log_loss(labels, beliefs, labels=range(CLASSES))),
        "accuracy": float(right.double().mean()),
        "ece": float(expected_calibration_error(torch.tensor(beliefs.max(1)), right)),
        "seconds": round(seconds, 2),
    }


def write(kept: dict[str, Any]) -> None:
    """Table of mean log-loss over seeds: one row per system, one column per size and share of wrong labels."""
    cells: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for key, entry in kept.items():
        rows, noise = re.match(r"(\d+) rows, ([\d.]+) wrong", key).groups()  # type: ignore[union-attr]
        cells.setdefault((int(rows), float(noise)), []).append(entry)
    systems = list(next(iter(kept.values())))
    titles = [f"{rows:,} rows, {noise:.0%} wrong" for rows, noise in sorted(cells)]
    lines = [f"| System | {' | '.join(titles)} |", f"| :--- |{' ---: |' * len(titles)}"]
    for system in systems:
        means = [interval([entry[system]["log_loss"] for entry in cells[place]]) for place in sorted(cells)]
        lines.append(f"| {system} | {' | '.join(means)} |")
    gaps = [
        interval([e[OURS]["log_loss"] - e["SL + temperature"]["log_loss"] for e in cells[place]], sign=True)
        for place in sorted(cells)
    ]
    lines.append(f"| {OURS} less SL + temperature, seed by seed | {' | '.join(gaps)} |")
    counts = sorted({len(entries) for entries in cells.values()})
    lines.append(
        f"\nLog-loss on {TEST_ROWS:,} test rows, mean ± half-width of the 95 % Student-t interval over "
        f"{' or '.join(map(str, counts))} seeds. One CPU thread ({platform.machine()}), PyTorch {torch.__version__}, "
        f"scikit-learn {sklearn.__version__}; accuracy, ECE and seconds are in results/label_noise.json."
    )
    table = "\n".join(lines)
    PAGE.write_text(MARKED.sub(lambda m: f"{m[1]}{table}\n{m[2]}", PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(cells)


def interval(values: list[float], sign: bool = False) -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else 0.0
    return f"{np.mean(values):{'+' if sign else ''}.3f}" + (f" ± {half:.3f}" if len(values) > 1 else "")


def draw(cells: dict[tuple[int, float], list[dict[str, Any]]]) -> None:
    """Draw the log-loss minus that of the best system, which removes the part due to the noise itself."""
    sizes = sorted({rows for rows, _ in cells})
    figure, axes = plt.subplots(1, len(sizes), figsize=(2 + 3.8 * len(sizes), 3.2), sharey=True, layout="constrained")
    shown = (OURS, "RIC, closed form", *CONTROLS, "gradient boosting")
    for axis, size in zip(np.atleast_1d(axes), sizes, strict=True):
        shares = sorted(noise for rows, noise in cells if rows == size)
        means = {s: [np.mean([e[s]["log_loss"] for e in cells[size, share]]) for share in shares] for s in shown}
        best = np.min(list(means.values()), axis=0)
        for system, values in means.items():
            axis.plot([100 * share for share in shares], np.array(values) - best, marker="o", label=system)
        axis.set(title=f"{size:,} rows", xlabel="wrong labels (%)")
    np.atleast_1d(axes)[0].set_ylabel("log-loss above the best")
    figure.legend(*np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(FIGURE, dpi=160)


if __name__ == "__main__":
    main()
