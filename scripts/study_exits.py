"""When to leave a network with exits: rules compared at equal compute, on runs that `ric train --exits` made.

    python scripts/study_exits.py RUN... --out FOLDER          one JSON file per run

Each exit has its own temperature, and each rule and budget one threshold. Both are fitted on validation data: the
threshold spends as much compute as possible within the budget. The test data is evaluated once with them. The oracle
knows the test labels. Rules: the value, the highest probability, the entropy, patience (this many equal answers in a
row), one exit for all.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import first_stop
from ricnet.data import Dataset, Split
from ricnet.data import load as load_data
from ricnet.evaluation.choices import fit_temperature
from ricnet.evaluation.metrics import expected_calibration_error
from ricnet.models.classifier import Classifier
from ricnet.models.config import to_json
from ricnet.models.loading import load

BUDGETS = (0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
THRESHOLDS = 500


class Seen:
    """All exits of all examples of a split."""

    def __init__(self, classifier: Classifier, split: Split) -> None:
        device = next(classifier.model.parameters()).device
        parts = [
            classifier.refine(split.inputs[i : i + 2048].to(device), halt=False) for i in range(0, len(split), 2048)
        ]
        self.costs = torch.tensor(parts[0].costs, dtype=torch.float64)
        self.log_beliefs = torch.cat([path.log_beliefs for path in parts], 1).double().cpu()
        values = [path.values for path in parts if path.values is not None]
        self.values = torch.cat(values, 1).double().cpu() if values else None
        self.labels = split.labels

    def temper(self, temperatures: list[float]) -> None:
        self.log_beliefs = (self.log_beliefs / torch.tensor(temperatures)[:, None, None]).log_softmax(-1)

    def measured(self, halt: Int64[Tensor, "n"]) -> dict[str, float]:
        final = self.log_beliefs[halt - 1, torch.arange(len(halt))]
        confidence, answer = final.max(-1)
        correct = answer == self.labels
        return {
            "accuracy": float(correct.double().mean()),
            "nll": -float(log_scores(final, self.labels).mean()),
            "ece": expected_calibration_error(confidence.exp(), correct),
            "cost": float(self.costs[halt - 1].mean()),
        }


def by_value(seen: Seen) -> Float[Tensor, "exits n"]:
    """V(s_{t+1}), which is computed after step t."""
    assert seen.values is not None
    return torch.cat([seen.values[1:], torch.zeros_like(seen.values[:1])])


def by_confidence(seen: Seen) -> Float[Tensor, "exits n"]:
    return -seen.log_beliefs.amax(-1).exp()


def by_entropy(seen: Seen) -> Float[Tensor, "exits n"]:
    return torch.special.entr(seen.log_beliefs.exp()).sum(-1)


def by_patience(seen: Seen) -> Float[Tensor, "exits n"]:
    answers = seen.log_beliefs.argmax(-1)
    streak = torch.ones_like(answers)
    for t in range(1, len(answers)):
        streak[t] = torch.where(answers[t] == answers[t - 1], streak[t - 1] + 1, 1)
    return -streak.double()


def by_count(seen: Seen) -> Float[Tensor, "exits n"]:
    return -torch.arange(1.0, len(seen.costs) + 1)[:, None].expand(seen.log_beliefs.shape[:2]).double()


RULES: dict[str, Callable[[Seen], Tensor]] = {
    **{"value": by_value, "confidence": by_confidence, "entropy": by_entropy},
    **{"patience": by_patience, "one exit": by_count},
}
"""Score for continuing; an example leaves at or below the threshold."""


def threshold_for(urge: Float[Tensor, "exits n"], costs: Float[Tensor, "exits"], budget: float) -> float:
    asked = urge[:-1].flatten()
    shares = torch.linspace(0, 1, THRESHOLDS, dtype=asked.dtype)
    candidates = [-math.inf, *torch.quantile(asked[:: max(1, len(asked) // 100_000)], shares).unique().tolist()]
    spent = [(float(costs[first_stop(urge > one) - 1].mean()), one) for one in candidates]
    within = [pair for pair in spent if pair[0] <= budget + 1e-9]
    return max(within)[1] if within else math.inf


def oracle(seen: Seen, budget: float) -> Int64[Tensor, "n"]:
    """Exits chosen with known labels: the lowest NLL for the compute, at one price for all examples."""
    nll = -log_scores(seen.log_beliefs, seen.labels)
    low, high = 0.0, 1e4
    for _ in range(60):
        price = (low + high) / 2
        halt = (nll + price * seen.costs[:, None]).argmin(0) + 1
        low, high = (price, high) if float(seen.costs[halt - 1].mean()) > budget else (low, price)
    return (nll + high * seen.costs[:, None]).argmin(0) + 1


def compare(run: Path, device: str, data_dir: str | None) -> dict[str, Any]:
    classifier = load(run, device)
    dataset = load_data(classifier.config.data, data_dir=data_dir, val_fraction=classifier.config.val_fraction)
    return compare_rules(run.name, classifier, dataset)


def compare_rules(name: str, classifier: Classifier, dataset: Dataset) -> dict[str, Any]:
    val, test = Seen(classifier, dataset.val), Seen(classifier, dataset.test)
    temperatures = [fit_temperature(beliefs, val.labels).temperature for beliefs in val.log_beliefs]
    raw = [test.measured(torch.full_like(test.labels, n)) for n in range(1, len(val.costs) + 1)]
    val.temper(temperatures)
    test.temper(temperatures)
    exits = [test.measured(torch.full_like(test.labels, n)) for n in range(1, len(val.costs) + 1)]
    held_out = [val.measured(torch.full_like(val.labels, n)) for n in range(1, len(val.costs) + 1)]
    rows: list[dict[str, Any]] = []
    for title, rule in RULES.items():
        if title == "value" and val.values is None:
            continue
        for budget in BUDGETS:
            threshold = threshold_for(rule(val), val.costs, budget)
            stops = {"val": first_stop(rule(val) > threshold), "test": first_stop(rule(test) > threshold)}
            rows.append(
                {"rule": title, "budget": budget, "threshold": threshold}
                | {split: seen.measured(stops[split]) for split, seen in (("val", val), ("test", test))}
            )
    rows += [{"rule": "oracle", "budget": b, "test": test.measured(oracle(test, b))} for b in BUDGETS]
    return {
        "run": name,
        "data": classifier.config.data,
        "seed": classifier.config.seed,
        "config": to_json(classifier.config),
        "temperatures": temperatures,
        "costs": val.costs.tolist(),
        "exits": {"raw": raw, "tempered": exits, "val": held_out},
        "rules": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for run in options.runs:
        (options.out / f"{run.name}.json").write_text(json.dumps(compare(run, options.device, options.data_dir)))


if __name__ == "__main__":
    main()
