"""Which of the three RIC algorithms should be the default for a kind of data? Validation data decides.

    python scripts/study_default.py digits photos/ my.csv --seeds 3 [--exits stage] [--data-dir DIR]
    python scripts/study_default.py mr trec docstrings --corpora FOLDER [--encoder hf:minilm]
    python scripts/study_default.py cifar10 svhn --images 3000 --encoder timm:tf_efficientnet_lite0@lite0.safetensors

The second command reads the corpora that the recipe of texts was chosen on (scripts/study_texts.py). With an encoder
the inputs are the features of the frozen encoder. Each seed draws other texts. In the third command each seed draws
`--images` training images, a fifth of them for validation; scripts/convert_lite0.py makes the file of weights.

Each algorithm is trained by the preset `fast`, Algorithm 1 also with the paper's rounds of five passes, and judged by
the NLL of validation rows after temperature scaling on the same rows. An algorithm that takes more than twice the CPU
seconds of the fastest is excluded. The lowest NLL wins; algorithms whose paired difference from it has a 95 % interval
that includes 0 tie with it, and a tie goes to Algorithm 1, then to on-policy. Data sets of one kind (KINDS) are
averaged for each seed before they are compared. Test rows are not read. Results are kept in results/default_method.json
and not measured again; scripts/write_questions.py writes docs/questions/algorithm.md.
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ricnet.data import Dataset, load
from ricnet.io import without_folder
from ricnet.models.locate import find_encoder, find_tokenizer
from ricnet.report.statistics import mean_interval
from ricnet.training.api import train_in_memory
from ricnet.training.features import featured
from ricnet.training.recipes import configure
from ricnet.version import __version__
from study_texts import CASES, drawn

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
KINDS = {
    "tables below 5,000 rows": ("german", "contraceptive", "vehicle", "segment", "crx"),
    "tables from 5,000 rows on": ("magic", "penbased", "letter"),
    "small images, on a CPU": ("digits",),
    "exits": ("digits, exits stage",),
    "few photographs": ("photographs, 5 × 60",),
    "texts": ("mr", "trec", "docstrings"),
    "small images, frozen encoder": tuple(
        f"{data}, frozen timm:tf_efficientnet_lite0@lite0.safetensors" for data in ("cifar10", "svhn")
    ),
    "texts, frozen encoder": ("mr, frozen hf:minilm", "trec, frozen hf:minilm", "docstrings, frozen hf:minilm"),
}

Run = dict[str, float]
Runs = dict[str, dict[str, Run]]
"""By algorithm and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="as for ric train; my.csv#label names the target of a table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--exits", default="none")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--corpora", type=Path, help="folder of the corpora of scripts/study_texts.py")
    parser.add_argument("--images", type=int, help="number of training images that each seed draws")
    parser.add_argument("--encoder", help="a pretrained encoder, which is frozen")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": {}}
    for data, seed in product(options.data, range(options.seeds)):
        title = title_of(data, options)
        missing = [name for name in SYSTEMS if str(seed) not in kept["runs"].get(title, {}).get(name, {})]
        dataset = read(data, seed, options) if missing else None
        for name in missing:
            method, changes = SYSTEMS[name]
            if options.exits != "none" and "passes_per_snapshot" in changes:
                continue
            given = {"exits": options.exits} | ({"encoder": options.encoder} if options.encoder else {})
            found = measure(dataset, method, {**changes, **given}, seed)
            kept["runs"].setdefault(title, {}).setdefault(name, {})[str(seed)] = found
            versions = f"ricnet {__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}"
            made_with = f"{versions}; {platform.machine()}, one thread"
            kept["made_with"] = sorted({*kept.get("made_with", []), made_with})
            RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(title, name, seed, found, flush=True)


def title_of(data: str, options: argparse.Namespace) -> str:
    title = Path(data).name.partition(".")[0]
    if options.encoder:
        title += f", frozen {without_folder(options.encoder)}"
    return title + (f", exits {options.exits}" if options.exits != "none" else "")


def read(data: str, seed: int, options: argparse.Namespace) -> Dataset:
    """The data; of a corpus the texts that the seed draws. Features of a frozen encoder are computed here, once for all
    systems and outside of their seconds."""
    if options.images:
        dataset = few_images(load(data, data_dir=options.data_dir), options.images, seed)
    elif options.corpora is None:
        dataset = load(data, data_dir=options.data_dir)
    else:
        tokenizer = find_tokenizer(options.encoder) if options.encoder else None
        dataset = drawn(*CASES[data](options.corpora), seed, tokenizer)
    if options.encoder:
        featured(dataset, find_encoder(options.encoder), CPU)
    return dataset


def few_images(whole: Dataset, size: int, seed: int) -> Dataset:
    """Training images that the seed draws, a fifth of them for validation; no test images."""
    chosen = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(seed))[:size]
    val, train = chosen[: size // 5], chosen[size // 5 :]
    nothing = whole.test.take(torch.empty(0, dtype=torch.int64))
    return replace(whole, train=whole.train.take(train), val=whole.train.take(val), test=nothing)


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


def kinds(results: dict[str, Runs]) -> dict[str, Runs]:
    """Runs of each kind of data that all its data sets have, averaged over the data sets for each seed."""
    found = {kind: [results[data] for data in members if data in results] for kind, members in KINDS.items()}
    return {kind: _averaged(every) for kind, every in found.items() if every}


def _averaged(every: Sequence[Runs]) -> Runs:
    seeds = {name: set.intersection(*({*runs.get(name, {})} for runs in every)) for name in SYSTEMS}
    parts = ("nll", "accuracy", "seconds")
    return {
        name: {seed: {part: mean([runs[name][seed][part] for runs in every]) for part in parts} for seed in sorted(own)}
        for name, own in seeds.items()
    }


def winner(runs: Runs) -> str:
    """The default by the rule above. With one seed there are no intervals, and the lowest NLL wins."""
    own = {name: by_seed for name, by_seed in runs.items() if name in ALGORITHMS and by_seed}
    seconds = {name: mean([run["seconds"] for run in by_seed.values()]) for name, by_seed in own.items()}
    fast = [name for name in ALGORITHMS if name in own and seconds[name] <= MOST_TIME * min(seconds.values())]
    best = min(fast, key=lambda name: mean([run["nll"] for run in own[name].values()]))
    return next(name for name in fast if name == best or ties(own[name], own[best]))


def ties(one: dict[str, Run], best: dict[str, Run]) -> bool:
    less = paired(one, best)
    half = mean_interval(less).half_width  # of the 95 % Student-t interval over seeds
    return half is not None and abs(less.mean()) <= half


def paired(one: dict[str, Run], other: dict[str, Run]) -> Any:
    """Differences in NLL, for the seeds that both have."""
    return np.array([one[seed]["nll"] - other[seed]["nll"] for seed in sorted(one.keys() & other.keys())])


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def table(results: dict[str, Runs], differences: bool = False) -> str:
    """One row per kind of data; a cell has NLL, accuracy and CPU seconds, and the winner is bold. With `differences` a
    cell has the NLL less that of the winner too."""
    lines = ["| Data | Seeds | " + " | ".join(SYSTEMS) + " |", "| :--- | ---: |" + " ---: |" * len(SYSTEMS)]
    for data, runs in results.items():
        chosen, counts = winner(runs), sorted({len(by_seed) for by_seed in runs.values() if by_seed})
        cells = [_cell(runs, name, chosen, differences) for name in SYSTEMS]
        lines.append(f"| {data} | {' or '.join(map(str, counts))} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(runs: Runs, name: str, chosen: str, differences: bool) -> str:
    own = runs.get(name) or {}
    if not own:
        return "–"
    nll, accuracy, seconds = (mean([run[part] for run in own.values()]) for part in ("nll", "accuracy", "seconds"))
    text = f"{nll:.3f} / {100 * accuracy:.1f} / {seconds:.0f}"
    less = paired(own, runs[chosen])
    half = mean_interval(less).half_width
    if differences and name != chosen and half is not None:
        text += f" ({less.mean():+.3f} ± {half:.3f})".replace("-", "−")
    return f"**{text}**" if name == chosen else text


if __name__ == "__main__":
    main()
