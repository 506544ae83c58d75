"""What simpler models reach on the same rows: the base rate of the classes, and models of scikit-learn.

A table gets logistic regression and gradient boosting on the numbers that the network reads (standardised, categories
one-hot); texts get logistic regression on tf-idf. They learn from the training rows with the run's weights. The
validation rows choose the penalty or the number of trees, as they choose the epoch of the network. The test rows judge.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.data import Dataset, Split
from ricnet.evaluation import metrics

WORK = 2e7
"""Largest training rows × columns × classes; of more rows a sample is learned from. On one core this takes gradient
boosting about a minute, logistic regression less."""
FEWEST = 1_000
"""Rows of such a sample; where it would have fewer, the model is not fitted."""
LETTERS_PER_WORD = 6
"""Of a text, the space after each word included: how many columns of tf-idf it fills."""
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse strengths C, from strong to weak."""
TREES, MORE_TREES = 200, 20
"""Most trees a class, and how many are added before the validation rows are asked again."""
SEED = 0
SMALLEST = float(np.finfo(np.float64).eps)
"""A probability below it counts as this, as in scikit-learn's log-loss."""

Inputs = Any
"""A matrix of numbers, dense or sparse."""
Answer = tuple[Float[Tensor, "n classes"], dict[str, float | int]]
"""Log-probabilities of the test rows, and what the validation rows chose."""


# The base rate


def base_rate(train: Split, classes: int) -> Float[Tensor, "classes"]:
    """Log of the classes' shares of the training rows, by their weights; half a row for a class without any."""
    weights = torch.ones(len(train)) if train.weights is None else train.weights
    counts = torch.bincount(train.labels, weights.double(), minlength=classes).clamp(min=0.5)
    return (counts / counts.sum()).log()


def against_base_rate(
    log_beliefs: Float[Tensor, "n classes"],
    labels: Int64[Tensor, "n"],
    train: Split,
    weights: Float[Tensor, "n"] | None = None,
) -> dict[str, float | None]:
    """`base_rate`: accuracy of always answering the commonest training class, and the NLL of the classes' shares.
    `nll_gain`: how much lower the NLL of the beliefs is, and its standard error. Where rows have weights, the same by
    weight: those who balance classes want beliefs for equal shares, whose NLL over all rows may be high."""
    scores, classes = log_scores(log_beliefs.double(), labels), log_beliefs.shape[1]
    shares = base_rate(replace(train, weights=None), classes)
    gain, error = mean_and_error(scores - shares[labels])
    found = {
        "base_rate": float((labels == shares.argmax()).double().mean()),
        "base_rate_nll": -float(shares[labels].mean()),
        "nll_gain": gain,
        "nll_gain_error": error,
    }
    if weights is None:
        return found
    gain, error = mean_and_error(scores - base_rate(train, classes)[labels], weights)
    return found | {"nll_gain_weighted": gain, "nll_gain_weighted_error": error}


def mean_and_error(values: Float[Tensor, "n"], weights: Float[Tensor, "n"] | None = None) -> tuple[float, float | None]:
    """A weighted mean and its standard error; a single row has none."""
    shares = torch.ones_like(values) if weights is None else weights.to(values)
    shares = shares / shares.sum()
    mean = (shares * values).sum()
    if len(values) < 2:
        return float(mean), None
    spread = (shares * (values - mean)).square().sum() * len(values) / (len(values) - 1)
    return float(mean), math.sqrt(float(spread))


def selection_nll(
    log_beliefs: Float[Tensor, "n classes"],
    labels: Int64[Tensor, "n"],
    weights: Float[Tensor, "n"] | None,
    log_shares: Float[Tensor, "classes"] | None = None,
) -> float:
    """What chooses an epoch, a penalty or a number of trees on validation rows: their NLL, by weight.

    `log_shares` are given where weights balance the classes. Then most weight is on the few rows of a rare class, and
    their NLL alone would choose. So beliefs, which are for classes of equal shares, are first made those for the shares
    of the training rows, and the rows of all classes count alike again.
    """
    log_beliefs = log_beliefs.double()
    if weights is not None and log_shares is not None:
        log_beliefs = (log_beliefs + log_shares).log_softmax(-1)
        weights = weights.double() * torch.bincount(labels)[labels]
    return -mean_and_error(log_scores(log_beliefs, labels), weights)[0]


# Models of scikit-learn


@dataclass(frozen=True)
class Rows:
    """A split as scikit-learn takes it."""

    inputs: Inputs
    labels: Int64[np.ndarray, "n"]
    weights: Float[np.ndarray, "n"] | None

    @classmethod
    def of(cls, split: Split) -> "Rows":
        inputs = split.inputs.numpy() if split.texts is None else list(split.texts)
        return cls(inputs, split.labels.numpy(), None if split.weights is None else split.weights.numpy())

    def take(self, rows: Int64[np.ndarray, "m"]) -> "Rows":
        inputs = [self.inputs[row] for row in rows] if isinstance(self.inputs, list) else self.inputs[rows]
        return Rows(inputs, self.labels[rows], None if self.weights is None else self.weights[rows])


@dataclass(frozen=True)
class Problem:
    train: Rows
    val: Rows
    test: Rows
    log_shares: Float[Tensor, "classes"]
    """Of the training rows."""
    balanced: bool
    """Whether weights balance the classes."""

    def mapped(self, transform: Callable[[Inputs], Inputs]) -> "Problem":
        parts = {name: getattr(self, name) for name in ("train", "val", "test")}
        return replace(self, **{name: replace(part, inputs=transform(part.inputs)) for name, part in parts.items()})

    def log_beliefs(self, model: Any, found: Float[np.ndarray, "n known"]) -> Float[Tensor, "n classes"]:
        """Of all classes, those too that the training rows lack."""
        whole = np.full((len(found), len(self.log_shares)), SMALLEST)
        whole[:, model.classes_] = found.clip(min=SMALLEST)
        return torch.from_numpy(np.log(whole / whole.sum(1, keepdims=True)))

    def judge(self, log_beliefs: Float[Tensor, "n classes"]) -> float:
        """By the validation rows."""
        labels, weights = torch.from_numpy(self.val.labels), self.val.weights
        shares = self.log_shares if self.balanced else None
        return selection_nll(log_beliefs, labels, None if weights is None else torch.from_numpy(weights), shares)


Fit = Callable[[Problem], Answer]


def fit_baselines(
    dataset: Dataset, log_beliefs: Float[Tensor, "n classes"], balanced: bool = False
) -> tuple[dict[str, Any], str | None]:
    """The entry `baselines` of evaluation.json, by name, and a note where they did not learn from all rows.
    `log_beliefs` are those of the network on the test rows: `advantage` is how much lower the NLL of a baseline is, row
    by row, with its standard error. `balanced` says that the weights of the rows balance the classes."""
    dataset = as_given(dataset)
    models, columns = _models(dataset)
    if not models or not len(dataset.test) or len(dataset.train.labels.unique()) < 2:
        return {}, None
    rows = int(min(len(dataset.train), WORK // (columns * len(dataset.class_names))))
    if rows < min(len(dataset.train), FEWEST):
        size = f"{len(dataset.train):,} {dataset.unit} of {columns:,} columns and {len(dataset.class_names)} classes"
        return {}, f"No baselines: {size} would take them longer than a minute."
    problem = _problem(dataset, rows, balanced)
    entries = {name: _entry(fit, problem, log_beliefs) for name, fit in models.items()}
    if rows == len(dataset.train):
        return entries, None
    share = f"{rows:,} of {len(dataset.train):,} {dataset.unit}"
    return entries, f"The baselines learned from {share}, so that each takes about a minute."


def as_given(dataset: Dataset) -> Dataset:
    """With the examples themselves where a frozen encoder made features of them."""

    def given(split: Split) -> Split:
        return split if split.shown is None else replace(split, inputs=split.shown, shown=None)

    return replace(dataset, train=given(dataset.train), val=given(dataset.val), test=given(dataset.test))


def _problem(dataset: Dataset, rows: int, balanced: bool) -> Problem:
    train, val, test = (Rows.of(split) for split in (dataset.train, dataset.val, dataset.test))
    if rows < len(dataset.train):
        train = train.take(np.random.RandomState(SEED).permutation(len(dataset.train))[:rows])
    shares = base_rate(replace(dataset.train, weights=None), len(dataset.class_names))
    return Problem(train, val, test, shares, balanced)


def _models(dataset: Dataset) -> tuple[Mapping[str, Fit], int]:
    """Those for this kind of data, and how many columns they read of a row; none for images."""
    texts = dataset.train.texts
    if texts is not None:
        words = sum(map(len, texts)) / LETTERS_PER_WORD / len(texts)
        return {"TF-IDF, logistic regression": _fit_tf_idf}, math.ceil(words) + 1
    if dataset.is_image or dataset.is_text or len(dataset.input_shape) != 1:
        return {}, 0
    if not all(split.inputs.isfinite().all() for split in (dataset.train, dataset.val, dataset.test)):
        return {}, 0
    linear = _fit_linear if dataset.columns is not None else _fit_standardised
    return {"Logistic regression": linear, "Gradient boosting": _fit_boosting}, dataset.input_shape[0]


def _entry(fit: Fit, problem: Problem, log_beliefs: Float[Tensor, "n classes"]) -> dict[str, Any]:
    import sklearn
    from threadpoolctl import threadpool_limits

    start, labels = time.monotonic(), torch.from_numpy(problem.test.labels)
    with warnings.catch_warnings(), threadpool_limits(torch.get_num_threads()):
        warnings.simplefilter("ignore")  # such as that it has not converged
        answers, chosen = fit(problem)
    advantage, error = mean_and_error(log_scores(answers, labels) - log_scores(log_beliefs.double(), labels))
    return {
        **metrics.class_scores(answers, labels),
        "advantage": advantage,
        "advantage_error": error,
        "n": len(labels),
        "rows": len(problem.train.labels),
        "chosen": chosen,
        "seconds": round(time.monotonic() - start, 2),
        "library": f"scikit-learn {sklearn.__version__}",
    }


def _fit_linear(problem: Problem) -> Answer:
    """The penalty is the one with the lowest validation NLL."""
    from sklearn.linear_model import LogisticRegression

    model, train = LogisticRegression(max_iter=300, warm_start=True), problem.train
    found: list[tuple[float, float, Float[Tensor, "n classes"]]] = []
    for strength in PENALTIES:
        model.set_params(C=strength).fit(train.inputs, train.labels, sample_weight=train.weights)
        val, test = (model.predict_proba(part.inputs) for part in (problem.val, problem.test))
        found.append((problem.judge(problem.log_beliefs(model, val)), strength, problem.log_beliefs(model, test)))
    _, strength, answers = min(found, key=lambda each: each[0])
    return answers, {"C": strength}


def _fit_standardised(problem: Problem) -> Answer:
    from sklearn.preprocessing import StandardScaler

    return _fit_linear(problem.mapped(StandardScaler().fit(problem.train.inputs).transform))


def _fit_tf_idf(problem: Problem) -> Answer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit(problem.train.inputs)
    return _fit_linear(problem.mapped(counts.transform))


def _fit_boosting(problem: Problem) -> Answer:
    """As many trees as have the lowest validation NLL; when the last ones have not lowered it, no more are grown."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model, train = (
        HistGradientBoostingClassifier(early_stopping=False, warm_start=True, random_state=SEED),
        problem.train,
    )
    best = 0
    for trees in range(MORE_TREES, TREES + 1, MORE_TREES):
        model.set_params(max_iter=trees).fit(train.inputs, train.labels, sample_weight=train.weights)
        stages = model.staged_predict_proba(problem.val.inputs)
        best = int(np.argmin([problem.judge(problem.log_beliefs(model, stage)) for stage in stages])) + 1
        if best <= trees - MORE_TREES:
            break
    answers = next(islice(model.staged_predict_proba(problem.test.inputs), best - 1, None))
    return problem.log_beliefs(model, answers), {"trees": best}


# What is said of them


def better_baseline(baselines: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The one of lowest NLL among those whose advantage exceeds its standard error."""
    known = [name for name, entry in baselines.items() if entry["advantage_error"] is not None]
    better = [name for name in known if baselines[name]["advantage"] > baselines[name]["advantage_error"]]
    return min(better, key=lambda name: baselines[name]["nll"], default=None)
