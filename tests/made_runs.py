"""Artificial run folders with chosen beliefs, evaluated by ricnet.evaluation."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation.evaluate import Outcome, report, save_predictions
from ricnet.evaluation.examples import KINDS, pick_rows
from ricnet.methods import modern_method
from ricnet.report.page import render
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, read_runs

CLASSES, STEPS, N, EPOCHS, BEST = 10, 20, 300, 40, 31


def draw_no_pages(patch: pytest.MonkeyPatch, *commands: str) -> None:
    """Write no page after tiny trainings, because it would take most of the time."""
    for command in commands or ("train", "compare"):
        patch.setattr(f"ricnet.apps.commands.{command}.write_page", lambda runs, out: out)


def beliefs(labels: Tensor, steps: int, skill: float, sharpness: float, rng: np.random.Generator) -> Tensor:
    """Evidence for the truth grows by the step and noise stays. The last step is calibrated where `sharpness` is 1,
    which changes no answer."""
    growth = 1 - np.exp(-9 * np.arange(1, steps + 1) / steps)
    truth, noise = np.eye(CLASSES)[labels], rng.normal(size=(len(labels), CLASSES))
    evidence = skill * growth[:, None, None] * truth + noise
    return torch.log_softmax(torch.tensor(sharpness * skill * evidence), dim=-1).float()


def gain(log_beliefs: Tensor, labels: Tensor) -> Tensor:
    """A value computed from the labels: the remaining gain of log a_y, less a cost."""
    scores = log_scores(log_beliefs, labels)
    before = torch.cat([torch.full_like(scores[:1], -np.log(CLASSES)), scores[:-1]])
    return scores[-1] - before - 0.01


def write_run(
    folder: Path,
    method: str = "ric",
    seed: int = 0,
    n: int = N,
    skill: float = 3.0,
    sharpness: float = 1.0,
    draw: int = 0,
    class_names: list[str] | None = None,
    tabular: bool = False,
    worse: bool = False,
    **settings: Any,
) -> Path:
    """`draw` chooses the test examples; `worse` makes the steps of RIC in the opposite order: each forgets some of what
    the first one knew, and the value promises a gain to the end."""
    rng = np.random.default_rng([seed, *map(ord, method)])
    labels = torch.tensor(np.random.default_rng(draw).integers(CLASSES, size=n))
    log_beliefs = beliefs(labels, 1 if method == "supervised" else STEPS, skill, sharpness, rng)
    values = gain(log_beliefs, labels) if method == "ric" else None
    if worse:
        log_beliefs, values = log_beliefs.flip(0), torch.ones(log_beliefs.shape[:2])
    halt = torch.full((n,), len(log_beliefs)) if values is None else halting_step(values)
    path = Trajectory(log_beliefs, halt, values)
    outcome = Outcome.of(path, labels)
    split = report(outcome)
    config = {
        **{"data": "digits", "preset": "fast", "seed": seed, "encoder": "conv", "epochs": EPOCHS},
        **{"batch_size": 128, "lr": 0.003, "weight_decay": 0.05, "method": {"name": method, "gamma": 0.8}},
    }
    names = class_names or [str(k) for k in range(CLASSES)]
    header = {
        "ricnet": "0.1.0",
        "config": config | settings,
        "data": {"input_shape": [1, 8, 8], "class_names": names, "rows": {"train": 1212, "val": 135, "test": n}},
        "hardware": {"device": "cpu", "name": "a CPU", "torch": "2.13.0", "python": "3.11.7", "threads": 2},
    }
    evaluation = {"train": split, "val": split, "test": split, "selected_epoch": BEST, "seconds": 61.0}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(header))
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in learning_curve(split, rng)))
    save_predictions({"val": outcome, "test": outcome}, folder / "predictions.npz")
    kinds = pick_rows(outcome)
    rows = [row for kind in KINDS for row in kinds[kind]]
    inputs = rng.normal(size=(len(rows), 16)) if tabular else rng.integers(256, size=(len(rows), 1, 8, 8))
    arrays = {
        "x": inputs.astype(np.float32 if tabular else np.uint8),
        "y": labels[rows],
        "kind": [code for code, kind in enumerate(KINDS) for _ in kinds[kind]],
        "log_beliefs": log_beliefs[:, rows],
        "halt_step": halt[rows],
    }
    np.savez(folder / "examples.npz", **arrays, **({} if values is None else {"values": values[:, rows]}))
    return folder


def learning_curve(final: dict[str, float], rng: np.random.Generator) -> list[dict[str, Any]]:
    entries = []
    for epoch in range(1, EPOCHS + 1):
        rest = abs(np.exp(-5 * epoch / EPOCHS) * (1 + 0.15 * rng.normal()))
        val = {"accuracy": final["accuracy"] * (1 - 0.6 * rest), "ece": final["ece"] + 0.3 * rest}
        val["nll"] = final["nll"] + 2 * rest
        entries.append({"epoch": epoch, "update": 9 * epoch, "seconds": 0.5 * epoch, "lr": 1e-3, "val": val})
    return entries


def collapse(folder: Path) -> Path:
    """Let training accuracy fall by 25 points in epoch 30, the value loss jump, and validation NLL rise."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        fallen = line["epoch"] == 30
        line["train"] = {"accuracy": 0.65 if fallen else 0.9, "value_loss": 6.0 if fallen else 1.0}
        line["val"]["nll"] += fallen
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_system(root: Path, method: str, seeds: int = 3, folder: str | None = None, **settings: Any) -> list[Path]:
    return [write_run(root / f"{folder or method}-{seed}", method, seed, **settings) for seed in range(seeds)]


def groups_of(*folders: Path) -> list[RunGroup]:
    return group_seeds(read_runs(folders))


def section_html(groups: Sequence[RunGroup], key: str) -> str:
    """A section of the page without figures, which take long to draw; empty if the page does not have it."""
    found = re.search(rf'<section id="{key}">.*?</section>', render(groups, []), re.DOTALL)
    return found[0] if found else ""


def without_manifest(folder: Path) -> Path:
    """Remove the manifest, whose checksums would detect changed files."""
    (folder / "manifest.json").unlink()
    return folder


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def add_costs(run: Path) -> Path:
    """As if each step were an exit with a twentieth of the compute."""

    def change(evaluation: dict[str, Any]) -> None:
        test = evaluation["test"]
        halts = {entry["step"]: entry["correct"] + entry["wrong"] for entry in test["halting"]}
        test["mean_cost"] = sum(step * count for step, count in halts.items()) / STEPS / test["n"]
        test |= {"mean_cost_correct": 0.21, "mean_cost_wrong": 0.43}
        for entry in test["per_step"]:
            entry["cost"] = entry["step"] / STEPS

    rewrite(run / "evaluation.json", change)
    return run


def rewrite_arrays(path: Path, **changes: Any) -> None:
    """Change a file of arrays in place; None removes an array."""
    with np.load(path) as stored:
        arrays = {**stored, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def bare_run(name: str, seed: int = 0, data: str = "cifar10", method: str = "ric", **settings: Any) -> RunRecord:
    """Settings and an accuracy, no files."""
    own = {
        key: settings.pop(key)
        for key in ("gamma", "readout", "objective", "uniform_mix", "updates_per_snapshot", "exact_gain")
        if key in settings
    }
    optimization = {"epochs": settings.pop("epochs", 10), "optimizer": settings.pop("optimizer", "adamw")}
    config = {
        "data": data,
        "seed": seed,
        "preset": "fast",
        "method": modern_method({"name": method, "gamma": 0.8, **own}),
        **settings,
    }
    config |= {"optimization": optimization, "network": {"encoder": "resnet34", "width": 1.0}}
    evaluation = {"test": {"n": 100, "accuracy": 0.9}}
    return RunRecord(Path(name), "", "0", config, {"input_shape": [3, 32, 32]}, {}, [], evaluation, None)
