"""Parity, the task of ACT (Graves 2016) and PonderNet (Banino et al. 2021), where one step cannot compute the answer.

    python scripts/study_parity.py --to results/parity.json [--entries 16] [--updates 8000] [--jobs 2]
        [--systems "RIC, on-policy" …]

Inputs are vectors in {−1, 0, 1}; the class is whether the number of 1s is odd. Training vectors have 1 to 3/4 of their
entries non-zero, each number equally often; test vectors also have more. Every update draws new vectors, so that
nothing can be memorised. The GRU reads the input through one linear layer. Network, optimizer, number of updates and
vectors are the same for all systems; they differ in the loss and in the halting rule. SL is the same GRU with one step.

Runs that are in the file already are not repeated, so that the same command continues after a stop. Each run has
accuracy and mean steps by number of non-zero entries, and accuracy after each step up to twice the steps of training.
"""

import argparse
import copy
import json
import math
import platform
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.methods import ACT, Anytime, Method, PonderNet
from ricnet.nets.backbone import Backbone
from ricnet.training.recipes import Facts, preset
from ricnet.version import __version__

STEPS, SIZE, BATCH, RATE, CLIP = 10, 128, 64, 2e-3, 1.0
"""Steps of training, size of embedding and thought, vectors an update, learning rate (cosine to 0), gradient clip."""
TESTED = 1000
"""Vectors for each number of non-zero entries."""
THREADS = 1
"""Of each run."""
KNOWN = Facts(rows=50_000, classes=2, side=32)
"""Data for which the preset `fast` chooses the settings of RIC: many rows, two classes."""
SYSTEMS: dict[str, Method[Any]] = {
    "RIC, Algorithm 1": replace(preset("fast", "ric", KNOWN).method, horizon=STEPS),
    "RIC, on-policy": replace(preset("fast", "ric-on-policy", KNOWN).method, horizon=STEPS),
    "ACT": ACT(horizon=STEPS, ponder_cost=0.001),
    "PonderNet": PonderNet(horizon=STEPS),
    "Anytime": Anytime(horizon=STEPS),
    "SL": Anytime(horizon=1),
}
"""The ponder cost of ACT is that of its paper's experiment; with RIC's −ln γ = 0.223 it would take one or two steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=16)
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    runs = kept(options)
    done = {(run["system"], run["seed"]) for run in runs}
    with ProcessPoolExecutor(options.jobs) as pool:
        asked = [
            (system, seed) for seed in range(options.seeds) for system in options.systems if (system, seed) not in done
        ]
        futures = [pool.submit(study, system, seed, options.entries, options.updates) for system, seed in asked]
        for future in as_completed(futures):
            runs.append(future.result())
            print(summary(runs[-1]), flush=True)
            runs.sort(key=lambda run: (list(SYSTEMS).index(run["system"]), run["seed"]))
            write(options, runs)


def kept(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of an earlier call with the same task."""
    if not options.to.exists():
        return []
    entry = json.loads(options.to.read_text(encoding="utf-8"))
    if (entry["entries"], entry["updates"]) != (options.entries, options.updates):
        sys.exit(f"study_parity: {options.to} has runs with other --entries or --updates; give another --to.")
    return list(entry["runs"])


def write(options: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Write the file after each run, so that finished runs are kept."""
    entry = {
        "command": shlex.join(["python", *sys.argv]),
        "versions": {"ricnet": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {"name": platform.machine(), "threads_per_run": THREADS},
        "entries": options.entries,
        "trained_up_to": most_trained(options.entries),
        "updates": options.updates,
        "settings": {"steps": STEPS, "size": SIZE, "batch": BATCH, "lr": RATE, "clip": CLIP, "tested": TESTED},
        "systems": {name: {"method": method.name, **asdict(method)} for name, method in SYSTEMS.items()},
        "runs": runs,
    }
    options.to.write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def summary(run: dict[str, Any]) -> str:
    return f"{run['system']}, seed {run['seed']}: {run['inside']} inside, {run['beyond']} beyond, {run['seconds']} s"


def most_trained(entries: int) -> int:
    """Maximum non-zero entries of a training vector."""
    return 3 * entries // 4


def study(system: str, seed: int, entries: int, updates: int) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    began, method = time.process_time(), SYSTEMS[system]
    model, course = train(method, entries, updates, seed)
    seconds = round(time.process_time() - began, 1)
    return {"system": system, "seed": seed, "seconds": seconds, "course": course} | measure(method, model, entries)


def draw(
    counts: Int64[Tensor, "batch"], entries: int, generator: torch.Generator
) -> tuple[Float[Tensor, "batch entries"], Int64[Tensor, "batch"]]:
    """Vectors with this many non-zero entries, and whether the number of 1s is odd."""
    rank = torch.rand(len(counts), entries, generator=generator).argsort(1).argsort(1)
    signs = 2 * torch.randint(2, rank.shape, generator=generator) - 1
    vectors = torch.where(rank < counts[:, None], signs, 0)
    return vectors.float(), (vectors == 1).sum(1) % 2


def train(method: Method[Any], entries: int, updates: int, seed: int) -> tuple[nn.Module, list[float]]:
    """The network, and its training accuracy in each tenth of the updates."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = method.build(Backbone(nn.Linear(entries, SIZE), (entries,)), KNOWN.classes)
    period = method.snapshot_period(updates) or 1
    snapshot = copy.deepcopy(model).requires_grad_(False) if period > 1 else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], RATE, weight_decay=0.0)
    right = torch.zeros(10)
    for update in range(updates):
        if period > 1 and update % period == 0:
            snapshot.load_state_dict(model.state_dict())
        optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * update / updates)) / 2
        counts = torch.randint(1, most_trained(entries) + 1, (BATCH,), generator=generator)
        loss, metrics = method.loss(model, snapshot, *draw(counts, entries, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        right[10 * update // updates] += metrics["accuracy"].detach()
    return model, [round(float(each) * 10 / updates, 4) for each in right]


@torch.no_grad()
def measure(method: Method[Any], model: nn.Module, entries: int) -> dict[str, Any]:
    """`inside` are numbers of non-zero entries as in training, `beyond` more."""
    model.eval()
    counts = torch.arange(1, entries + 1).repeat(TESTED)
    vectors, labels = draw(counts, entries, torch.Generator().manual_seed(10_000))
    path = method.refine(model, vectors)
    longer = method.refine(model, vectors, max_steps=2 * STEPS)
    right = (path.final.argmax(-1) == labels).double()
    scores = log_scores(path.final[None], labels)[0]
    by_step = (longer.log_beliefs.argmax(-1) == labels).double()
    inside = counts <= most_trained(entries)
    found: dict[str, Any] = {}
    for name, rows in (("inside", inside), ("beyond", ~inside)):
        found[name] = round(float(right[rows].mean()), 4)
        found |= {
            f"{name}_nll": round(-float(scores[rows].mean()), 4),
            f"{name}_steps": round(float(path.halt_step[rows].double().mean()), 3),
            f"{name}_by_step": [round(float(each), 4) for each in by_step[:, rows].mean(1)],
        }
    each = {count: counts == count for count in range(1, entries + 1)}
    found["accuracy_by_count"] = {str(n): round(float(right[rows].mean()), 4) for n, rows in each.items()}
    found["steps_by_count"] = {
        str(n): round(float(path.halt_step[rows].double().mean()), 3) for n, rows in each.items()
    }
    return found


if __name__ == "__main__":
    main()
