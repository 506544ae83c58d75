"""A table for each kind of data: SL, RIC, and common alternatives; scripts/write_results.py
writes it to docs/results.md.

Numbers of ricnet come from results/. Those of other image models are published ones, on other machines.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare_estimators import JUDGED_ON as TABLES
from compare_estimators import LARGER
from ricnet.report.comparison import ACCURACY, ECE, NLL, TRAINING_SECONDS, Metric
from ricnet.report.runs import RunRecord
from ricnet.report.statistics import mean_interval
from ricnet.report.tables import Cell, Grid, markdown_table
from study_texts import JUDGED_ON
from write_evidence import Pairing, of

SCORES = (ACCURACY, NLL, ECE)
PARTS = ("accuracy", "log_loss", "ece")
"""Their names in results/estimators.json."""
SYSTEMS = {
    "SL": "supervised-seed{}",
    "SL + temperature": "supervised-seed{}-temperature",
    "RIC, on-policy": "ric-marginal-seed{}",
    "RIC, on-policy, calibrated": "ric-marginal-seed{}-fitted",
}
"""Names of archived runs; calibrated: with the temperature and halting rule that validation data chose."""
PUBLISHED = {
    "Photographs": {"xresnet50, fastai's leaderboard, 80 to 200 epochs (published)": ("87.2 to 88.3", "–")},
    "Small images": {
        "airbench94, one A100 (published)": ("94.0", "2.6"),
        "airbench96, one A100 (published)": ("96.0", "27"),
    },
}
"""Accuracy and seconds."""
OF_TABLES = {
    **{name: name for name in ("logistic regression", "MLPClassifier", "gradient boosting")},
    **{"SL": "SL, as trained", "SL, calibrated": "SL"},
    **{"RIC, on-policy": "RIC, as trained", "RIC, on-policy, calibrated": "RIC"},
}
"""Names in results/estimators.json."""


def by_kind(results: Path) -> str:
    blocks = {
        "Photographs": _images("imagewoof-resnet34-fast", results),
        "Small images": _images("cifar10-resnet34-fast", results),
        "Tables": _tables(_read(results / "estimators.json")["scores"], TABLES),
        "Larger tables": _tables(_read(results / "estimators.json")["scores"], LARGER),
        "Texts": _texts(_read(results / "text_models.json")["runs"]),
    }
    rows = [
        [kind if not place else "", *row]
        for kind, own in blocks.items()
        for place, row in enumerate([*own, *_published(kind)])
    ]
    titles = ["Data", "Model", "Seeds or folds", *(metric.heading for metric in SCORES), "Seconds"]
    return markdown_table(Grid(titles, [[Cell(text) for text in row] for row in rows], frozenset({0, 1})))


def _published(kind: str) -> list[list[str]]:
    return [[title, "–", accuracy, "–", "–", seconds] for title, (accuracy, seconds) in PUBLISHED.get(kind, {}).items()]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _images(folder: str, results: Path) -> list[list[str]]:
    """Seconds are those of the trained run; other readouts of its weights have none."""
    body = []
    for title, name in SYSTEMS.items():
        runs = Pairing(folder, name).runs(results)
        scores = [_over_seeds(metric, runs) for metric in SCORES]
        body.append([title, str(len(runs)), *scores, "–" if runs[0].derived_from else _seconds(runs)])
    return body


def _seconds(runs: Sequence[RunRecord]) -> str:
    return TRAINING_SECONDS.write(mean_interval([of(TRAINING_SECONDS)(run) for run in runs]).mean)


def _over_seeds(metric: Metric, runs: Sequence[RunRecord]) -> str:
    found = mean_interval([of(metric)(run) for run in runs])
    return metric.write(found.mean, found.half_width)


def _tables(scores: dict[str, dict[str, dict[str, list[float]]]], tables: Sequence[str]) -> list[list[str]]:
    """Means over the tables, for the models that all of them have."""

    def mean(name: str, part: str) -> float:
        return float(np.mean([np.mean(scores[name][table][part]) for table in tables]))

    found = {title: name for title, name in OF_TABLES.items() if scores[name].keys() >= {*tables}}
    folds = " or ".join(
        sorted({str(len(scores[name][table]["seconds"])) for name in found.values() for table in tables})
    )
    return [_row(title, f"{folds} folds", lambda part, name=name: mean(name, part)) for title, name in found.items()]


def _texts(runs: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[list[str]]:
    """Means over the corpora for evaluation; `log_loss` is the NLL."""
    corpora = [runs[name] for name in JUDGED_ON if name in runs]
    names = {"log_loss": "nll"}

    def mean(model: str, part: str) -> float:
        per_corpus = [[run[names.get(part, part)] for run in corpus[model].values()] for corpus in corpora]
        return float(np.mean([np.mean(values) for values in per_corpus]))

    seeds = min(len(by_seed) for corpus in corpora for by_seed in corpus.values())
    return [_row(model, str(seeds), lambda part, model=model: mean(model, part)) for model in corpora[0]]


def _row(title: str, seeds: str, mean: Callable[[str], float]) -> list[str]:
    accuracy, nll, ece = (metric.write(mean(part)) for metric, part in zip(SCORES, PARTS, strict=True))
    return [title, seeds, accuracy, nll, ece, f"{mean('seconds'):.1f}"]
