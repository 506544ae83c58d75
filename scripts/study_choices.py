"""Do choices made on validation data help? Train small runs, store the answers of each epoch, and evaluate the rules.

    python scripts/study_choices.py train FOLDER --data DATA [--target COLUMN] [--method ric] [--exits stage] [--seed 0]
    python scripts/study_choices.py judge FOLDER

`train` trains by the preset `fast`, all epochs, and writes one .pt file: the beliefs of every validation and test
example after every epoch, at the method's own halt, and all steps (or, for large data, the weights) of the epochs that
some rule would keep. `judge` writes results/choices.json and the tables between the marks in docs/questions/choices.md:
which epoch to keep, and what temperature and halting rule chosen by `evaluation/choices.py` change.
"""

import argparse
import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Trajectory
from ricnet.data import Dataset
from ricnet.data import load as load_data
from ricnet.evaluation.choices import (
    calibrated_scores,
    choose_exit,
    choose_exit_temperatures,
    choose_halt,
    choose_temperature,
    is_as_good,
)
from ricnet.evaluation.evaluate import Outcome, Reading, observe
from ricnet.models.classifier import settle_horizon
from ricnet.models.config import to_json
from ricnet.report.statistics import mean_interval
from ricnet.training.callbacks import Callback
from ricnet.training.network import isolated_rng
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

SMALL = 1500
"""Test examples below which all steps are kept instead of the weights."""


class Recorder(Callback):
    """Keeps the answers and the weights of every epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []

    def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
        method, average = trainer.method, trainer.average
        entry: dict[str, Any] = {"weights": {k: v.detach().clone() for k, v in average.state_dict().items()}}
        for name in ("val", "test"):
            split = getattr(trainer.dataset, name)
            entry[name] = observe(method, average, split).log_beliefs.clamp(min=-60).half()
            if len(trainer.dataset.test) < SMALL:  # all steps take less room than the weights
                entry["weights"] = {}
                with torch.no_grad():
                    path = method.refine(average.eval(), split.inputs)
                average.train()
                entry[f"{name}_path"] = path.log_beliefs.clamp(min=-60).half(), path.values, path.halt_step, path.costs
        self.epochs.append(entry)


def train(
    data: str, target: str | None, method: str, exits: str, seed: int, device: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    dataset: Dataset = load_data(data, target=target)
    place = torch.device(device)
    asked = {"seed": seed, "select": "last", "patience": None, **changes}
    asked |= {} if exits == "none" else {"exits": exits}
    config = settle_horizon(configure(dataset, method, "fast", place, **asked), dataset.input_shape)
    began = time.monotonic()
    recorder = Recorder()
    with isolated_rng(config, place, None):
        Trainer(config, dataset, None, place, callbacks=[recorder]).train()
    return {
        "data": data,
        "method": method,
        "exits": exits,
        "seed": seed,
        "config": to_json(config),
        "labels": {name: getattr(dataset, name).labels for name in ("val", "test")},
        "epochs": recorder.epochs,
        "seconds": time.monotonic() - began,
    }


def thin(run: dict[str, Any], keep: set[int]) -> dict[str, Any]:
    """Keep only the halted beliefs of the epochs that are not in `keep`."""
    halted = ("val", "test")
    epochs = [{k: v for k, v in entry.items() if k in halted or i in keep} for i, entry in enumerate(run["epochs"])]
    return {**run, "epochs": epochs}


# Judging what was recorded

RULES = ("nll", "accuracy", "last", "calibrated")
RESULTS, TEXT = Path("results/choices.json"), Path("docs/questions/choices.md")
MARKED = re.compile(r"(<!-- choices -->\n).*?(<!-- /choices -->)", re.DOTALL)


def picks(run: Mapping[str, Any]) -> dict[str, int]:
    """The epoch that each rule keeps, counted from 0."""
    epochs, labels = run["epochs"], run["labels"]["val"]
    beliefs = [entry["val"].float().log_softmax(-1) for entry in epochs]
    nll = [-float(log_scores(each, labels).mean()) for each in beliefs]
    accuracy = [float((each.argmax(-1) == labels).double().mean()) for each in beliefs]
    scores = [calibrated_scores(each, labels) for each in beliefs]
    best = max(range(len(epochs)), key=lambda i: float(scores[i].mean()))
    return {
        "nll": min(range(len(epochs)), key=nll.__getitem__),
        "accuracy": max(range(len(epochs)), key=lambda i: (accuracy[i], -nll[i])),
        "last": len(epochs) - 1,
        "calibrated": max(i for i in range(best, len(epochs)) if is_as_good(scores[i], scores[best])),
    }


def judge_epoch(run: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Test accuracy and NLL of each rule's epoch, as trained and with the temperature that validation data chooses."""
    found = {}
    for rule, epoch in picks(run).items():
        val, test = (run["epochs"][epoch][part].float().log_softmax(-1) for part in ("val", "test"))
        temperature = choose_temperature(val, run["labels"]["val"]).temperature
        labels = run["labels"]["test"]
        found[rule] = {
            "epoch": epoch + 1,
            "accuracy": float((test.argmax(-1) == labels).double().mean()),
            "nll": -float(log_scores(test, labels).mean()),
            "nll_calibrated": -float(log_scores((test / temperature).log_softmax(-1), labels).mean()),
        }
    return found


def judge_choices(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last epoch as trained (V < 0, temperature 1) and by the automatic choices, on test data."""
    entry, labels = run["epochs"][-1], run["labels"]
    if "val_path" not in entry:
        return None
    val, test = (_path(entry[f"{part}_path"]) for part in ("val", "test"))
    if val.costs:
        temperature = choose_exit_temperatures(list(val.log_beliefs), labels["val"]).temperature
        rule = choose_exit(Outcome.of(Reading(temperature).read(val), labels["val"]))
    else:
        rule = choose_halt(Outcome.of(val, labels["val"]))
        halted = Outcome.of(Reading(1.0, rule.halt_threshold, rule.max_steps).read(val), labels["val"], rule.max_steps)
        temperature = choose_temperature(halted.log_beliefs, labels["val"]).temperature
    before = Outcome.of(test, labels["test"])
    after = Outcome.of(Reading(temperature, rule.halt_threshold, rule.max_steps).read(test), labels["test"])
    return {
        "default_halt": not rule.kept,
        "temperature": temperature,
        **{f"{name}_before": value for name, value in _quality(before).items()},
        **{f"{name}_after": value for name, value in _quality(after).items()},
    }


def _path(stored: Sequence[Any]) -> Trajectory:
    log_beliefs, values, halt_step, costs = stored
    return Trajectory(log_beliefs.float().log_softmax(-1), halt_step, values, costs=tuple(costs))


def _quality(outcome: Outcome) -> dict[str, float]:
    beliefs, labels = outcome.log_beliefs.double(), outcome.labels
    cost = {} if outcome.cost is None else {"cost": float(outcome.cost.mean())}
    right: Tensor = beliefs.argmax(-1) == labels
    return {"nll": -float(log_scores(beliefs, labels).mean()), "accuracy": float(right.double().mean()), **cost}


def judge(folder: Path) -> dict[str, Any]:
    epochs, choices = defaultdict(list), defaultdict(list)
    for path in sorted(folder.glob("*.pt")):
        run = torch.load(path)
        name = f"{Path(run['data']).stem}, {run['method']}" + ("" if run["exits"] == "none" else ", exits")
        epochs[name].append(judge_epoch(run))
        if run["method"] == "ric" and (found := judge_choices(run)):
            choices[name].append(found)
    return {"torch": torch.__version__, "epochs": epochs, "choices": choices}


def tables(entry: Mapping[str, Any]) -> str:
    lines = ["| data, method | seeds | " + " | ".join(RULES) + " |", "| :--- | ---: |" + " ---: |" * len(RULES)]
    for name, runs in entry["epochs"].items():
        cells = [
            f"{100 * np.mean([run[rule]['accuracy'] for run in runs]):.1f} % / "
            f"{np.mean([run[rule]['nll'] for run in runs]):.3f} / "
            f"{np.mean([run[rule]['nll_calibrated'] for run in runs]):.3f} "
            f"({np.mean([run[rule]['epoch'] for run in runs]):.0f})"
            for rule in RULES
        ]
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    means = [
        np.mean([np.mean([r[rule]["nll_calibrated"] for r in runs]) for runs in entry["epochs"].values()])
        for rule in RULES
    ]
    lines += [f"| mean NLL after the automatic temperature | | {' | '.join(f'{mean:.4f}' for mean in means)} |", ""]
    lines += ["| data | seeds | as trained | automatic | difference in NLL | default halt kept | temperature 1 kept |"]
    lines += ["| :--- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, runs in entry["choices"].items():
        parts = [
            " / ".join(
                [f"{100 * np.mean([run[f'accuracy_{when}'] for run in runs]):.1f} %"]
                + [f"{np.mean([run[f'nll_{when}'] for run in runs]):.3f}"]
                + (
                    [f"{np.mean([run[f'cost_{when}'] for run in runs]):.2f} of compute"]
                    if f"cost_{when}" in runs[0]
                    else []
                )
            )
            for when in ("before", "after")
        ]
        gains = [run["nll_after"] - run["nll_before"] for run in runs]
        half = mean_interval(gains).half_width
        error = "" if half is None else f" ± {half:.4f}"
        kept = sum(run["default_halt"] for run in runs), sum(run["temperature"] == 1 for run in runs)
        lines.append(
            f"| {name} | {len(runs)} | {parts[0]} | {parts[1]} | {np.mean(gains):+.4f}{error} | "
            f"{kept[0]} of {len(runs)} | {kept[1]} of {len(runs)} |"
        )
    pooled = np.mean([np.mean([r["nll_after"] - r["nll_before"] for r in runs]) for runs in entry["choices"].values()])
    return "\n".join([*lines, "", f"Mean difference over data sets: {pooled:+.4f} NLL.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--target")
    parser.add_argument("--method", default="ric")
    parser.add_argument("--exits", default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    args = parser.parse_args()
    if args.step == "judge":
        entry = judge(args.folder)
        RESULTS.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
        text = TEXT.read_text(encoding="utf-8")
        TEXT.write_text(MARKED.sub(lambda match: match[1] + tables(entry) + match[2], text), encoding="utf-8")
        print(tables(entry))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    changes = {name: (float(v) if "." in v else int(v)) for name, v in (each.split("=") for each in args.set)}
    run = train(args.data, args.target, args.method, args.exits, args.seed, args.device, changes)
    keep = set(picks(run).values())
    name = f"{Path(args.data).stem}-{args.method}-{args.exits}-seed{args.seed}.pt"
    torch.save(thin(run, keep), args.folder / name)
    print(name, f"{run['seconds']:.0f} s", f"{len(run['epochs'])} epochs, kept {sorted(keep)}", flush=True)


if __name__ == "__main__":
    main()
