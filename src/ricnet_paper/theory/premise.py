"""Measures the premise of Proposition 2 on trained networks: are early thoughts less separable than late ones?

A linear probe with negligible regularisation is fitted to the thoughts of each step. Zero error on its training rows
proves that these thoughts are separable; errors are only evidence against it, since the fit may not have converged.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from ricnet import RicnetError, Split, load
from ricnet.errors import counted
from ricnet.methods import RIC
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.report.figures import BLUE, ORANGE, SKY, VERMILLION, draw_band, integer_ticks, letter, styled
from ricnet.report.runs import RunRecord
from ricnet.report.statistics import Interval, mean_interval
from ricnet.studies.runner import dataset_of
from ricnet.training.api import pick_device
from ricnet_paper.theory.finding import Finding

CLAIM = (
    "A linear probe errs more on the training thoughts of the first step than on those of the last, as Proposition 2 "
    "assumes."
)
MOST_ROWS = 5000
"""Maximum rows per split, evenly spaced."""
BATCH = 500
WEAK = 1e6
"""scikit-learn's C, the inverse of the regularisation strength."""
NORMS = {"classifier_norm": "‖W‖", "logit_norm": "mean logit norm"}


class Probes(NamedTuple):
    """Errors of one network by step."""

    train: Float[np.ndarray, "steps"]
    test: Float[np.ndarray, "steps"]
    own: Float[np.ndarray, "steps"]
    """Errors of the network's own W on all training rows."""
    rows: int
    size: int
    """Size of a thought."""


def examine(
    ric: Sequence[RunRecord], sl: Sequence[RunRecord], data_dir: Path | None = None, device: str = "auto"
) -> Finding:
    """`ric` and `sl` are finished runs on the same data, one per seed."""
    if not ric:
        raise RicnetError("the premise of Proposition 2 needs trained networks; give at least one run of RIC.")
    probes = [_probe_run(run, data_dir, device) for run in ric]
    gaps = {split: mean_interval([float(e[0] - e[-1]) for e in _errors(probes, split)]) for split in ("train", "test")}
    statement = (
        f"{_conditions(ric[0])}, {_count(ric)} of RIC; probes on {probes[0].rows:,} training rows with thoughts of "
        f"size {probes[0].size}. Probe error at step 1 and step {len(probes[0].train)}: {_ends(probes, 'train')} on "
        f"training rows (difference {_points(gaps['train'])}), {_ends(probes, 'test')} on test rows "
        f"({_points(gaps['test'])}). {_verdict(gaps['train'], probes)} RIC's own W errs on {_ends(probes, 'own')} of "
        f"the training rows. {_norms_at_the_end(ric, sl)}"
    )
    rows = [row for run, one in zip(ric, probes, strict=True) for row in _probe_rows(run, one)]
    rows += [row for run in (*ric, *sl) for row in _norm_rows(run)]
    figure = _draw(ric, sl, probes)
    return Finding("premise", CLAIM, is_shown(gaps["train"]), statement, rows, figure)


def is_shown(gap: Interval) -> bool:
    """Whether the 95 % interval lies above 0; for a single seed, whether the difference does."""
    return gap.mean - (gap.half_width or 0) > 0


def _probe_run(run: RunRecord, data_dir: Path | None, device: str) -> Probes:
    classifier = load(run.path, str(pick_device(device)))
    method, model = classifier.config.method, classifier.model  # with all steps of training
    if not (isinstance(method, RIC) and isinstance(model, RecurrentClassifier)):
        raise RicnetError(f"{run.path} is a run of {run.method}; the premise of Proposition 2 needs runs of RIC.")
    dataset = dataset_of(classifier.config, data_dir)
    train, test = (_at_most(split, MOST_ROWS) for split in (dataset.train, dataset.test))
    thoughts, unseen = (think(method, model, split) for split in (train, test))
    labels, unseen_labels = train.labels.numpy(), test.labels.numpy()
    errors = np.array([probe(*pair, labels, unseen_labels) for pair in zip(thoughts, unseen, strict=True)])
    own = [1 - entry["accuracy"] for entry in run.evaluation["train"]["per_step"]]
    return Probes(errors[:, 0], errors[:, 1], np.array(own), len(labels), thoughts.shape[-1])


def _at_most(split: Split, rows: int) -> Split:
    return split.take(torch.linspace(0, len(split) - 1, min(rows, len(split))).long())


@torch.no_grad()
def think(method: RIC, model: RecurrentClassifier, split: Split) -> Float[np.ndarray, "steps rows size"]:
    """τ_1 … τ_T at inference, with the mean belief as feedback, without halting."""
    inference, device = replace(method, readout="mean", feedback="mean"), next(model.parameters()).device
    parts = []
    for inputs in split.inputs.split(BATCH):
        batch = inputs.to(device)
        beliefs = inference.refine(model, batch).log_beliefs.exp()
        before = torch.cat([torch.full_like(beliefs[:1], 1 / beliefs.shape[-1]), beliefs[:-1]])
        parts.append(model.refiner.replay(model.refiner.read(model.backbone(batch)), before).cpu())
    return torch.cat(parts, 1).numpy()


def probe(
    thoughts: Float[np.ndarray, "rows size"],
    unseen: Float[np.ndarray, "others size"],
    labels: np.ndarray,
    unseen_labels: np.ndarray,
) -> tuple[float, float]:
    """Errors of a multinomial logistic regression on its training rows and on unseen rows."""
    mean, scale = thoughts.mean(0), thoughts.std(0) + 1e-6
    model = LogisticRegression(C=WEAK, max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # separable rows have no optimum
        model.fit((thoughts - mean) / scale, labels)
    errors = [1 - model.score((x - mean) / scale, y) for x, y in ((thoughts, labels), (unseen, unseen_labels))]
    return float(errors[0]), float(errors[1])


def _errors(probes: Sequence[Probes], split: str) -> list[Float[np.ndarray, "steps"]]:
    return [getattr(one, split) for one in probes]


def _ends(probes: Sequence[Probes], split: str) -> str:
    errors = np.stack(_errors(probes, split)).mean(0)
    return f"{errors[0]:.2%} and {errors[-1]:.2%}"


def _points(gap: Interval) -> str:
    """A difference of errors in percentage points."""
    spread = "" if gap.half_width is None else f" ± {100 * gap.half_width:.2f}, 95 % over seeds"
    return f"{100 * gap.mean:+.2f} points{spread}"


def _verdict(gap: Interval, probes: Sequence[Probes]) -> str:
    """The conclusion in words; zero errors are named, since printed numbers are rounded."""
    if all((one.train == 0).all() for one in probes):
        return "Not shown: training thoughts are separable at every step."
    if not is_shown(gap):
        interval = " (95 % interval over seeds)" * (gap.half_width is not None)
        return f"Not shown: on training rows the probe of the first step does not err more{interval}."
    return f"Shown on training rows{' by one seed, without an interval' * (gap.half_width is None)}."


def _conditions(run: RunRecord) -> str:
    return f"{run.data_label}, {counted(run.config['optimization']['epochs'], 'epoch')}, preset {run.config['preset']}"


def _count(runs: Sequence[RunRecord]) -> str:
    return counted(len(runs), "seed")


def _norms_at_the_end(ric: Sequence[RunRecord], sl: Sequence[RunRecord]) -> str:
    """Final ‖W‖ of both systems and its growth in the second half of training."""
    parts = []
    for name, runs in (("RIC", ric), ("SL", sl)):
        curves = [list(curve.values()) for run in runs if (curve := run.curve("classifier_norm", "train"))]
        if curves:
            end, half = (np.mean([curve[place] for curve in curves]) for place in (-1, len(curves[0]) // 2))
            parts.append(f"{name}'s ‖W‖ ended at {end:.2f}, {end / half - 1:+.0%} in the second half of training")
    return "; ".join(parts) + "." if parts else "Their metrics contain no ‖W‖."


def _probe_rows(run: RunRecord, found: Probes) -> list[dict[str, Any]]:
    facts = {"system": run.method, "seed": int(run.config["seed"]), "rows": found.rows, "size": found.size}
    names = {"train": "probe error, train", "test": "probe error, test", "own": "own error, train"}
    return [
        {"quantity": name, **facts, "step": step, "value": float(error)}
        for key, name in names.items()
        for step, error in enumerate(getattr(found, key), start=1)
    ]


def _norm_rows(run: RunRecord) -> list[dict[str, Any]]:
    return [
        {"quantity": key, "system": run.method, "seed": int(run.config["seed"]), "epoch": epoch, "value": value}
        for key in NORMS
        for epoch, value in run.curve(key, "train").items()
    ]


@styled
def _draw(ric: Sequence[RunRecord], sl: Sequence[RunRecord], probes: Sequence[Probes]) -> Figure:
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    errors, *norms = figure.subplots(1, 3)
    _draw_errors(errors, probes)
    for place, (ax, (key, label)) in enumerate(zip(norms, NORMS.items(), strict=True), start=1):
        for runs, shade, dash, name in ((ric, BLUE, "-", "RIC"), (sl, VERMILLION, "--", "SL")):
            _draw_norm(ax, [run.curve(key, "train") for run in runs], shade, dash, f"{name} ({_count(runs)})")
        ax.set(xlabel="epoch", ylim=(0, None))
        letter(ax, place, f"{label} in training")
        integer_ticks(ax, 4)
        if ax.has_data():
            ax.legend(loc="best")
        else:
            ax.text(0.5, 0.5, "not in these runs' metrics", transform=ax.transAxes, ha="center")
    note = "" if len(ric) == 1 else "; bands: 95 % over seeds"
    figure.suptitle(f"{_conditions(ric[0])}; probes on {probes[0].rows:,} training rows{note}", fontsize=7.5)
    return figure


def _draw_errors(ax: Axes, probes: Sequence[Probes]) -> None:
    steps = np.arange(1, len(probes[0].train) + 1)
    lines = (("test", "probe, test", SKY, "-"), ("own", "RIC's own W, train", ORANGE, "--"))
    for split, label, shade, dash in (("train", "probe, train", BLUE, "-"), *lines):
        draw_band(ax, steps, 100 * np.stack(_errors(probes, split)), shade, dash, label=label)
    ax.set(xlabel="step", ylabel="error, %")
    letter(ax, 0, f"probe error ({counted(len(probes), 'seed')})")
    integer_ticks(ax, 5)
    ax.set_ylim(top=1.35 * ax.get_ylim()[1])  # room for the legend
    ax.legend(loc="upper left")


def _draw_norm(ax: Axes, curves: Sequence[dict[int, float]], shade: str, dash: str, label: str) -> None:
    """Draw mean and interval at the epochs that all seeds measured."""
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if shared:
        values = np.array([[curve[epoch] for epoch in shared] for curve in curves])
        draw_band(ax, np.array(shared), values, shade, dash, label=label)
