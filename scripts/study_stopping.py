"""Compare critics that decide when to leave a network with exits, offline and at equal compute, on one trained run.

    python scripts/study_stopping.py RUN --out FILE.json [--data-dir DIR] [--cache FILE.pt]

The network is not changed; only the exit of each example differs:

value           the critic that learned beside the network, one threshold a budget
value per cost  the same, for each unit of work that is left: one price a budget
refitted        a critic fitted to validation rows: what going on to the end brings, one threshold a budget
optimal         one fitted there for every price λ of work, by backward induction from Q_T = 0:
                Q_t = E[s_{t+1} − s_t − λ(c_{t+1} − c_t) + max(0, Q_{t+1})]; at the highest price that spends the
                budget it leaves where Q_t is at most a threshold, which is about 0, so that the budget is kept
confidence      leaves at the first belief that is sure enough
oracle          knows the labels it is tested on

Temperatures, one an exit, and thresholds come from validation rows; fitted critics are two, each fitted to one half of
these rows and asked about the other for the threshold, and their mean is asked about test rows. What is said of NLL is
the difference from `value`, with a 95 % bootstrap interval over test rows.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import first_stop
from ricnet.data import load as load_data
from ricnet.evaluation.choices import fit_temperature
from ricnet.models.loading import load
from study_exits import oracle, threshold_for

BUDGETS = (0.25, 0.3, 0.4, 0.5)
PRICES = torch.logspace(-2, 1, 13, dtype=torch.float64)
"""λ: nats that the work of the whole network costs."""
HIDDEN, EPOCHS, BATCH, RESAMPLES = 64, 30, 512, 1000


class Seen:
    """All exits of all examples of a split."""

    def __init__(self, log_beliefs: Tensor, values: Tensor, labels: Tensor, costs: Tensor) -> None:
        self.log_beliefs, self.values, self.labels, self.costs = log_beliefs.double(), values.double(), labels, costs
        """`values[t]` is the critic's value after step t + 1; 0 after the last."""

    def temper(self, temperatures: list[float]) -> None:
        self.log_beliefs = (self.log_beliefs / torch.tensor(temperatures)[:, None, None]).log_softmax(-1)
        self.scores = log_scores(self.log_beliefs, self.labels)

    def features(self) -> Float[Tensor, "exits n features"]:
        ordered = self.log_beliefs.sort(-1, descending=True).values.clamp(min=-12)
        entropy = torch.special.entr(self.log_beliefs.exp()).sum(-1, keepdim=True)
        return torch.cat([ordered, entropy, self.values.unsqueeze(-1)], -1).float()


def look(run: Path, data_dir: str | None) -> dict[str, Any]:
    classifier = load(run, "cuda" if torch.cuda.is_available() else "cpu")
    config, found = classifier.config, {}
    dataset = load_data(config.data, data_dir=data_dir, val_fraction=config.val_fraction)
    for name, split in (("val", dataset.val), ("test", dataset.test)):
        paths = [classifier.refine(part, halt=False) for part in split.inputs.split(500)]
        values = torch.cat([path.values for path in paths if path.values is not None], 1).cpu()
        after = torch.cat([values[1:], torch.zeros_like(values[:1])])
        log_beliefs = torch.cat([path.log_beliefs for path in paths], 1).cpu()
        found[name] = {"log_beliefs": log_beliefs, "value": after, "labels": split.labels}
    return found | {"costs": classifier.refine(dataset.test.inputs[:1], halt=False).costs}


def regress(x: Float[Tensor, "n features"], y: Float[Tensor, "n"], seed: int) -> Callable[[Tensor], Tensor]:
    """Fit E[y | x] with a small network, and predict other rows."""
    torch.manual_seed(seed)
    mean, std = x.mean(0), x.std(0) + 1e-6
    net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    batches = math.ceil(len(x) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * batches)
    scaled, target = (x - mean) / std, y.float()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            (net(scaled[rows]).squeeze(-1) - target[rows]).square().mean().backward()
            optimizer.step()
            schedule.step()
    return torch.no_grad()(lambda asked: net((asked - mean) / std).squeeze(-1).double())


def refit(seen: Seen, rows: Int64[Tensor, "m"], others: list[Seen], seed: int) -> list[Tensor]:
    """Predicted gain of computing the rest of the network, by exit, for each row of others."""
    answers = [torch.zeros_like(other.scores) for other in others]
    for t in range(len(seen.costs) - 1):
        critic = regress(seen.features()[t, rows], (seen.scores[-1] - seen.scores[t])[rows], seed)
        for answer, other in zip(answers, others, strict=True):
            answer[t] = critic(other.features()[t])
    return answers


def induct(seen: Seen, rows: Int64[Tensor, "m"], others: list[Seen], seed: int) -> list[Tensor]:
    """Q by price, exit and row of others: one critic an exit, conditioned on the price."""
    prices = PRICES.log().float()
    answers = [other.scores.new_zeros(len(PRICES), *other.scores.shape) for other in others]
    ahead = torch.zeros(len(PRICES), len(rows), dtype=torch.float64)
    for t in reversed(range(len(seen.costs) - 1)):
        step = (seen.scores[t + 1] - seen.scores[t])[rows] - PRICES[:, None] * (seen.costs[t + 1] - seen.costs[t])
        critic = regress(priced(seen.features()[t, rows], prices), (step + ahead.clamp(min=0)).flatten(), seed)
        ahead = critic(priced(seen.features()[t, rows], prices)).view(len(PRICES), -1)
        for answer, other in zip(answers, others, strict=True):
            answer[:, t] = critic(priced(other.features()[t], prices)).view(len(PRICES), -1)
    return answers


def priced(x: Float[Tensor, "n features"], prices: Float[Tensor, "prices"]) -> Float[Tensor, "all more"]:
    """Every row at every price, row by row within a price."""
    return torch.cat([x.repeat(len(prices), 1), prices.repeat_interleave(len(x)).unsqueeze(1)], 1)


def crossed(fit: Callable[..., list[Tensor]], val: Seen, test: Seen) -> tuple[Tensor, Tensor]:
    """Predictions of critics for validation rows that they were not fitted to, and their mean for test rows."""
    halves = torch.randperm(len(val.labels), generator=torch.Generator().manual_seed(0)).chunk(2)
    (first, one), (second, two) = (fit(val, rows, [val, test], seed) for seed, rows in enumerate(halves))
    first[..., halves[0]] = second[..., halves[0]]
    return first, (one + two) / 2


def stops(urges: tuple[Tensor, Tensor], val: Seen, budget: float) -> Int64[Tensor, "n"]:
    """Exits of test rows, by the threshold fitted to the budget on validation rows."""
    return first_stop(urges[1] > threshold_for(urges[0], val.costs, budget))


def priced_stops(urges: tuple[Tensor, Tensor], val: Seen, budget: float) -> Int64[Tensor, "n"]:
    """Exits of test rows at the highest price that spends the budget."""
    spent = [float(val.costs[first_stop(each > 0) - 1].mean()) for each in urges[0]]
    place = max((place for place, cost in enumerate(spent) if cost >= budget), default=0)
    return stops((urges[0][place], urges[1][place]), val, budget)


def compare(found: dict[str, Any]) -> dict[str, Any]:
    costs = torch.tensor(found["costs"], dtype=torch.float64)
    val, test = (
        Seen(found[name]["log_beliefs"], found[name]["value"], found[name]["labels"], costs) for name in ("val", "test")
    )
    temperatures = [fit_temperature(beliefs, val.labels).temperature for beliefs in val.log_beliefs]
    for seen in (val, test):
        assert all(isinstance(one, float) for one in temperatures)
        seen.temper(temperatures)  # type: ignore[arg-type]
    left = (1 - costs).clamp(min=1e-9)[:, None]
    rules: dict[str, tuple[Tensor, Tensor]] = {
        "value": (val.values, test.values),
        "value per cost": (val.values / left, test.values / left),
        "refitted": crossed(refit, val, test),
        "confidence": (-val.log_beliefs.amax(-1), -test.log_beliefs.amax(-1)),
    }
    optimal = crossed(induct, val, test)
    rows: list[dict[str, Any]] = []
    for budget in BUDGETS:
        halts = {name: stops(urges, val, budget) for name, urges in rules.items()}
        halts |= {"optimal": priced_stops(optimal, val, budget), "oracle": oracle(test, budget)}
        own = {name: -test.scores[halt - 1, torch.arange(len(halt))] for name, halt in halts.items()}
        for name, halt in halts.items():
            low, high = bootstrap(own[name] - own["value"])
            answers = test.log_beliefs[halt - 1, torch.arange(len(halt))].argmax(-1)
            rows.append(
                {
                    "rule": name,
                    "budget": budget,
                    "cost": float(costs[halt - 1].mean()),
                    "accuracy": float((answers == test.labels).double().mean()),
                    "nll": float(own[name].mean()),
                    "nll_less_value": float((own[name] - own["value"]).mean()),
                    "interval": [low, high],
                }
            )
    return {"temperatures": temperatures, "costs": costs.tolist(), "prices": PRICES.tolist(), "rules": rows}


def bootstrap(differences: Float[Tensor, "n"]) -> tuple[float, float]:
    generator, n = torch.Generator().manual_seed(0), len(differences)
    means = torch.stack([differences[torch.randint(n, (n,), generator=generator)].mean() for _ in range(RESAMPLES)])
    return float(means.quantile(0.025)), float(means.quantile(0.975))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--cache", type=Path, help="file for the outputs of the network")
    options = parser.parse_args()
    if options.cache is not None and options.cache.is_file():
        found = torch.load(options.cache, weights_only=True)
    else:
        found = look(options.run, options.data_dir)
        if options.cache is not None:
            torch.save(found, options.cache)
    result = {"run": options.run.name, **compare(found)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in result["rules"]:
        low, high = row["interval"]
        print(
            f"{row['budget']:4} {row['rule']:14} cost {row['cost']:.3f} accuracy {100 * row['accuracy']:.2f} "
            f"NLL {row['nll']:.4f}, less value {row['nll_less_value']:+.4f} ({low:+.4f} to {high:+.4f})"
        )


if __name__ == "__main__":
    main()
