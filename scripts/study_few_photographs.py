"""RIC and SL on sixty photographs of each of five breeds, from scratch on a CPU: the recipe of `fast` for few images.

    python scripts/study_few_photographs.py --data-dir DIR [--seeds 5]

The recipe was chosen on the five other breeds of ImageWoof (docs/archive/experiments.md); marginal credit and the size
of stored photographs were chosen on all ten. A seed draws the photographs, of which a tenth are for
validation, and the initial weights. Every system is trained as `ric train photos/` trains it and
judged by all test photographs of the five breeds. Results are kept in results/few_photographs.json and not measured
again; scripts/write_questions.py writes them to docs/questions/little-data.md.
"""

import argparse
import json
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ricnet.data import Dataset, Split, load
from ricnet.data.dataset import split_off
from ricnet.training.api import train_in_memory
from ricnet.training.recipes import configure, default_oversize
from study_default import CPU, SYSTEMS
from study_texts import Run, made_with, scored

RESULTS = Path(__file__).resolve().parents[1] / "results" / "few_photographs.json"
BREEDS = ("English foxhound", "Border terrier", "Australian terrier", "Golden retriever", "Dingo")
"""Breeds not used to choose the recipe."""
PHOTOGRAPHS, VALIDATION_SHARE, RESOLUTION = 60, 0.1, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": {}}
    whole = load("imagewoof", data_dir=options.data_dir, resolution=RESOLUTION, **default_oversize("fast", {}))
    for seed, (name, (method, changes)) in product(range(options.seeds), SYSTEMS.items()):
        runs = kept["runs"].setdefault(name, {})
        if str(seed) not in runs:
            runs[str(seed)] = measure(drawn(whole, seed), method, changes, seed)
            kept["made_with"] = made_with()
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(name, seed, runs[str(seed)], flush=True)


def drawn(whole: Dataset, seed: int) -> Dataset:
    """PHOTOGRAPHS of each of BREEDS to learn from, and all their test photographs."""
    places = {whole.class_names.index(breed): new for new, breed in enumerate(BREEDS)}
    order = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(seed))
    chosen = torch.cat([order[whole.train.labels[order] == old][:PHOTOGRAPHS] for old in places])
    learned = renumbered(whole.train.take(chosen), places)
    test = renumbered(whole.test.take(torch.isin(whole.test.labels, torch.tensor([*places])).nonzero()[:, 0]), places)
    rest, taken = split_off(learned.labels, VALIDATION_SHARE, seed)
    return replace(whole, train=learned.take(rest), val=learned.take(taken), test=test, class_names=BREEDS)


def renumbered(split: Split, places: dict[int, int]) -> Split:
    return replace(split, labels=torch.tensor([places[label] for label in split.labels.tolist()]))


def measure(dataset: Dataset, method: str, changes: dict[str, Any], seed: int) -> Run:
    """Test scores with the temperature and halting rule that the validation photographs choose, and CPU seconds."""
    config = configure(dataset, method, "fast", CPU, seed=seed, **changes)
    began = time.process_time()
    classifier, _ = train_in_memory(config, dataset, CPU, console=Console(quiet=True))
    seconds = time.process_time() - began
    path = classifier.refine(dataset.test.inputs, halt=True)
    return scored(path.final.double(), dataset.test.labels) | {"seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
