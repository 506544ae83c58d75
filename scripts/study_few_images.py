"""Few images and a frozen encoder: RIC, SL, SL with a temperature and logistic regression on the same features.

python scripts/convert_lite0.py … lite0.safetensors   # see there
python scripts/study_few_images.py timm:tf_efficientnet_lite0@lite0.safetensors

So many images a class of CIFAR-10's first 6,600 to train on, drawn anew by each of five seeds; a tenth of them chooses
epoch, halt, temperature and the strength of logistic regression's penalty. All are judged on the first 5,000 test
images.
What has been measured is kept in results/few_images.json and not measured again: delete an entry to repeat it.
"""

import argparse
import json
import platform
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import ricnet
from ricnet.data import Dataset, load
from ricnet.data.dataset import split_off
from ricnet.evaluation.fitting import fit_temperature
from ricnet.evaluation.metrics import expected_calibration_error
from ricnet.io import without_folder
from ricnet.training.api import configure, train_in_memory
from ricnet.training.checkpoints import find_encoder
from ricnet.training.features import featured

ROOT = Path(__file__).parents[1]
RESULTS, TEXT = ROOT / "results" / "few_images.json", ROOT / "docs" / "tutorials" / "own-photos.md"
MARKED = re.compile(r"(<!-- few images -->\n).*?(<!-- /few images -->)", re.DOTALL)
SIZES, SEEDS, POOL, TEST = (20, 50, 500), range(5), 6_600, 5_000
PENALTIES = [10.0**power for power in range(-5, 2)]
MEASURES = {"accuracy": "accuracy (%)", "nll": "NLL", "ece": "ECE", "seconds": "seconds"}
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"runs": []}
    found["encoder"], found["hardware"] = without_folder(args.encoder), f"{platform.machine()} CPU, one thread"
    found["versions"] = {"ricnet": ricnet.__version__, "torch": torch.__version__, "python": platform.python_version()}
    torch.set_num_threads(1)
    whole = load("cifar10")
    encoder = find_encoder(args.encoder)
    for size in SIZES:
        for seed in SEEDS:
            if any((run["images"], run["seed"]) == (size, seed) for run in found["runs"]):
                continue
            data = featured(_few(whole, size, seed), encoder, CPU)
            for method, numbers in _measure(data, seed):
                found["runs"].append({"images": size, "seed": seed, "method": method, **numbers})
                print(size, seed, method, numbers, flush=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    text = TEXT.read_text(encoding="utf-8")
    TEXT.write_text(MARKED.sub(lambda match: match[1] + _table(found) + match[2], text), encoding="utf-8")


def _few(whole: Dataset, size: int, seed: int) -> Dataset:
    """So many images of each class of the pool, a tenth of them for validation."""
    pool, draw = whole.train.take(torch.arange(POOL)), np.random.RandomState(seed)
    places = [np.flatnonzero(pool.labels.numpy() == label) for label in range(len(whole.class_names))]
    chosen = pool.take(torch.from_numpy(np.concatenate([draw.permutation(own)[:size] for own in places])))
    rest, taken = split_off(chosen.labels, 0.1, seed)
    test = whole.test.take(torch.arange(TEST))
    return Dataset("few images", chosen.take(rest), chosen.take(taken), test, whole.class_names)


def _measure(data: Dataset, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    test = data.test
    for method in ("ric", "supervised"):
        plain = {"calibration": "none"} if method == "supervised" else {}
        config = configure(data, method, "fast", CPU, seed=seed, **plain)
        began = time.perf_counter()
        model, _ = train_in_memory(config, data, CPU)
        seconds = time.perf_counter() - began
        beliefs = model.refine(test.inputs).final.double()
        yield {"ric": "RIC, on-policy", "supervised": "SL"}[method], _judge(beliefs, test.labels, seconds)
        if method == "supervised":
            fitted = fit_temperature(model.refine(data.val.inputs).final, data.val.labels)
            warm = (beliefs / fitted.temperature).log_softmax(-1)
            yield "SL + temperature", _judge(warm, test.labels, seconds)
    yield "logistic regression", _logistic(data)


def _logistic(data: Dataset) -> dict[str, float]:
    """Its penalty is the one with the lowest NLL on validation data."""
    began = time.perf_counter()
    mean, std = data.train.inputs.mean(0), data.train.inputs.std(0) + 1e-6
    x, val, test = (((split.inputs - mean) / std).numpy() for split in (data.train, data.val, data.test))
    fits = [LogisticRegression(C=c, max_iter=1000).fit(x, data.train.labels.numpy()) for c in PENALTIES]
    rows = np.arange(len(val)), data.val.labels.numpy()
    best = min(fits, key=lambda fit: -fit.predict_log_proba(val)[rows].mean())
    seconds = time.perf_counter() - began
    return _judge(torch.from_numpy(best.predict_log_proba(test)), data.test.labels, seconds)


def _judge(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"], seconds: float) -> dict[str, float]:
    confidence, answer = log_beliefs.max(-1)
    right = answer == labels
    return {
        "accuracy": 100 * float(right.double().mean()),
        "nll": -float(log_beliefs[torch.arange(len(labels)), labels].mean()),
        "ece": expected_calibration_error(confidence.exp(), right),
        "seconds": seconds,
    }


def _table(found: dict[str, Any]) -> str:
    lines = ["", f"| images a class | | {' | '.join(MEASURES.values())} |", "|---:|:---|---:|---:|---:|---:|"]
    for size in SIZES:
        for method in dict.fromkeys(run["method"] for run in found["runs"]):
            runs = [run for run in found["runs"] if (run["images"], run["method"]) == (size, method)]
            if len(runs) == len(SEEDS):
                lines.append(f"| {size} | {method} | {' | '.join(_cell(runs, name) for name in MEASURES)} |")
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return "\n".join([*lines, "", f"*Mean ± deviation over five seeds; {found['hardware']}; {versions}.*", ""])


def _cell(runs: list[dict[str, float]], name: str) -> str:
    digits = {"accuracy": 1, "nll": 3, "ece": 3, "seconds": 1}[name]
    values = [run[name] for run in runs]
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 and name != "seconds" else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
