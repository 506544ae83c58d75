"""Which of the three RIC algorithms should be the default for a kind of data? Validation data decides.

    python scripts/study_default.py digits photos/ my.csv --seeds 3 [--exits stage] [--data-dir DIR] [--show]

Each algorithm is trained by the preset `fast`, Algorithm 1 also with the paper's rounds of five passes, and judged by
the NLL of validation rows after temperature scaling on the same rows. An algorithm that takes more
than twice the CPU seconds of the fastest is excluded. The lowest NLL wins; algorithms whose paired difference from it
has a 95 % interval that includes 0 tie with it, and a tie goes to Algorithm 1, then to on-policy. Test rows are not
read. Results are kept in results/default_method.json and not measured again; `--show` prints the table.
"""

import argparse
import json
import platform
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy import stats

from ricnet.data import Dataset, load
from ricnet.training.api import train_in_memory
from ricnet.training.recipes import configure
from ricnet.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "default_method.json"
CPU = torch.device("cpu")
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Algorithm 1, rounds of 5 passes": ("ric", {"passes_per_snapshot": 5}),
    "Algorithm 1, rounds of 2 updates": ("ric", {}),
    "on-policy": ("ric-on-policy", {}),
    "closed form": ("ric-closed-form", {}),
}
"""In the order in which ties are decided."""
SYSTEMS = ALGORITHMS | {"SL": ("supervised", {})}
MOST_TIME = 2.0

Run = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="as for ric train; my.csv#label names the target of a table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--exits", default="none")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--show", action="store_true", help="print the table of all results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": {}}
    for data, seed, name in product(options.data, range(options.seeds), SYSTEMS):
        method, changes = SYSTEMS[name]
        title = Path(data).name + (f", exits {options.exits}" if options.exits != "none" else "")
        runs = kept["runs"].setdefault(title, {}).setdefault(name, {})
        if str(seed) in runs or (options.exits != "none" and "passes_per_snapshot" in changes):
            continue
        dataset = load(data, data_dir=options.data_dir)
        runs[str(seed)] = measure(dataset, method, {**changes, "exits": options.exits}, seed)
        kept["made_with"] = {
            "versions": f"ricnet {__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}",
            "hardware": f"{platform.machine()}, one thread",
        }
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(title, name, seed, runs[str(seed)], flush=True)
    if options.show:
        print(table(kept["runs"]))


def measure(dataset: Dataset, method: str, changes: dict[str, Any], seed: int) -> Run:
    """NLL and accuracy of validation rows after a temperature, and CPU seconds of training."""
    chosen = {"calibration": "temperature", "halt_rule": "value", "seed": seed}
    config = configure(dataset, method, "fast", CPU, **chosen, **changes)
    began = time.process_time()
    model, epochs = train_in_memory(config, dataset, CPU, console=Console(quiet=True))
    seconds = time.process_time() - began
    beliefs, labels = model.predict_proba(dataset.val.inputs.numpy()), dataset.val.labels.numpy()
    return {
        "nll": float(-np.log(beliefs[np.arange(len(labels)), labels]).mean()),
        "accuracy": float((beliefs.argmax(1) == labels).mean()),
        "seconds": round(seconds, 1),
        "epochs": epochs,
    }


def winner(runs: dict[str, dict[str, Run]]) -> str:
    """The default by the rule above. With one seed there are no intervals, and the lowest NLL wins."""
    own = {name: list(by_seed.values()) for name, by_seed in runs.items() if name in ALGORITHMS and by_seed}
    mean = {
        name: {part: np.mean([run[part] for run in each]) for part in ("nll", "seconds")} for name, each in own.items()
    }
    fastest = min(entry["seconds"] for entry in mean.values())
    fast = [name for name in ALGORITHMS if name in mean and mean[name]["seconds"] <= MOST_TIME * fastest]
    best = min(fast, key=lambda name: mean[name]["nll"])
    return next(name for name in fast if name == best or ties(own[name], own[best]))


def ties(one: list[Run], best: list[Run]) -> bool:
    less = np.subtract([run["nll"] for run in one], [run["nll"] for run in best])
    return len(less) > 1 and abs(less.mean()) <= half_width(less)


def half_width(values: Any) -> float:
    """Of the 95 % Student-t interval over seeds."""
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def table(results: dict[str, dict[str, dict[str, Run]]]) -> str:
    """One row per kind of data; a cell has NLL, accuracy and CPU seconds, and the winner is bold."""
    lines = ["| Data | Seeds | " + " | ".join(SYSTEMS) + " |", "| :--- | ---: |" + " ---: |" * len(SYSTEMS)]
    for data, runs in results.items():
        chosen, seeds = winner(runs), max(map(len, runs.values()))
        cells = []
        for name in SYSTEMS:
            each = list(runs.get(name, {}).values())
            nll, accuracy, seconds = (
                np.mean([run[part] for run in each]) if each else 0.0 for part in ("nll", "accuracy", "seconds")
            )
            text = f"{nll:.3f} / {100 * accuracy:.1f} / {seconds:.0f}" if each else "–"
            cells.append(f"**{text}**" if name == chosen else text)
        lines.append(f"| {data} | {seeds} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
