"""Baselines on the same rows as the network: the base rate of the classes, and models of scikit-learn.

Tables: logistic regression and gradient boosting on the numbers that the network reads (standardised, categories
one-hot). Texts: logistic regression on tf-idf. They are trained on the training rows with the run's weights. The
penalty or the number of trees is chosen on validation rows, like the epoch of the network. Scores are of the test rows.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.data import Dataset, Split
from ricnet.evaluation import metrics

MAX_WORK = 2e7
"""Maximum of training rows × columns × classes; beyond it a sample of the rows is used. At the maximum, gradient
boosting takes about a minute on one core, logistic regression less."""
MIN_ROWS = 1_000
"""Minimum rows of such a sample; with fewer, no baseline is fitted."""
LETTERS_PER_WORD = 6
"""Letters of a word and the space after it, to estimate how many columns of tf-idf a text fills."""
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse strengths C."""
TREES, MORE_TREES = 200, 20
"""Maximum trees per class, and trees added between two measurements on the validation rows."""
SEED = 0
SMALLEST = float(np.finfo(np.float64).eps)
"""Least probability, as in scikit-learn's log-loss."""

Answer = tuple[Float[Tensor, "n classes"], dict[str, float | int]]
"""Log-probabilities of the test rows, and the settings chosen on the validation rows."""


# The base rate


def base_rate(train: Split, classes: int) -> Float[Tensor, "classes"]:
    """Log of each class's share of the training rows, by weight; a class without rows counts as half a row."""
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
    `nll_gain`: how much lower the NLL of the beliefs is, and its standard error. If rows have weights, also the
    weighted gain: a network trained on balanced classes may have a high unweighted NLL."""
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
    """A weighted mean and its standard error, which is None for a single row."""
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
    """The weighted NLL of validation rows, by which an epoch, a penalty or a number of trees is chosen.

    `log_shares` (of the training rows) are given if the weights balance the classes. Then the weighted NLL is mostly
    that of the few rows of rare classes, and noisy. So the beliefs, which assume equal shares of the classes, are
    converted to the shares of the training rows, and the balancing is taken out of the weights.
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

    inputs: Any
    """A matrix of numbers, dense or sparse, or texts."""
    labels: Int64[np.ndarray, "n"]
    weights: Float[np.ndarray, "n"] | None

    @classmethod
    def of(cls, split: Split) -> "Rows":
        inputs = split.inputs.numpy() if split.texts is None else list(split.texts)
        return cls(inputs, split.labels.numpy(), None if split.weights is None else split.weights.numpy())


@dataclass(frozen=True)
class Problem:
    train: Rows
    val: Rows
    test: Rows
    log_shares: Float[Tensor, "classes"]
    """Log of each class's share of the training rows, unweighted."""
    balanced: bool
    """Whether weights balance the classes."""

    def mapped(self, transform: Callable[[Any], Any]) -> "Problem":
        splits = (self.train, self.val, self.test)
        train, val, test = (replace(split, inputs=transform(split.inputs)) for split in splits)
        return replace(self, train=train, val=val, test=test)

    def log_beliefs(self, model: Any, found: Float[np.ndarray, "n known"]) -> Float[Tensor, "n classes"]:
        """Log-probabilities of all classes, including those without training rows."""
        whole = np.full((len(found), len(self.log_shares)), SMALLEST)
        whole[:, model.classes_] = found.clip(min=SMALLEST)
        return torch.from_numpy(np.log(whole / whole.sum(1, keepdims=True)))

    def validation_nll(self, log_beliefs: Float[Tensor, "n classes"]) -> float:
        """The NLL of validation rows, as in `selection_nll`."""
        labels, weights = torch.from_numpy(self.val.labels), self.val.weights
        shares = self.log_shares if self.balanced else None
        return selection_nll(log_beliefs, labels, None if weights is None else torch.from_numpy(weights), shares)


Fit = Callable[[Problem], Answer]


def fit_baselines(
    dataset: Dataset, log_beliefs: Float[Tensor, "n classes"], balanced: bool = False, final_fit: bool = False
) -> tuple[dict[str, Any], str | None]:
    """The entry `baselines` of evaluation.json, and a note if they were trained on fewer rows or not at all.
    `log_beliefs` are the network's on the test rows; the `advantage` of a baseline is how much lower its NLL is, with
    the standard error of the paired difference. `balanced`: the weights of the rows balance the classes. After a final
    fit the validation rows, which choose the baselines' settings, are left out of their training rows."""
    dataset = as_given(dataset)
    if final_fit:  # `with_all_rows` has put the validation rows last
        others = torch.arange(len(dataset.train) - len(dataset.val))
        dataset = replace(dataset, train=dataset.train.take(others))
    models, columns = _models(dataset)
    if not models or not len(dataset.test) or len(dataset.train.labels.unique()) < 2:
        return {}, None
    rows = int(min(len(dataset.train), MAX_WORK // (columns * len(dataset.class_names))))
    if rows < min(len(dataset.train), MIN_ROWS):
        size = f"{len(dataset.train):,} {dataset.unit} of {columns:,} columns and {len(dataset.class_names)} classes"
        return {}, f"No baselines were fitted: {size} would take longer than a minute."
    shares = base_rate(replace(dataset.train, weights=None), len(dataset.class_names))
    train = dataset.train
    if rows < len(train):
        train = train.take(torch.from_numpy(np.random.RandomState(SEED).permutation(len(train))[:rows]))
    problem = Problem(Rows.of(train), Rows.of(dataset.val), Rows.of(dataset.test), shares, balanced)
    entries = {name: _entry(fit, problem, log_beliefs) for name, fit in models.items()}
    notes = (
        ["The baselines were trained without the validation rows, which choose their settings."] if final_fit else []
    )
    if rows < len(dataset.train):
        share = f"{rows:,} of {len(dataset.train):,} {dataset.unit}"
        notes.append(f"The baselines were trained on {share}, so that each takes about a minute.")
    return entries, " ".join(notes) or None


def as_given(dataset: Dataset) -> Dataset:
    """The dataset with the original inputs, if a frozen encoder has replaced them by features."""
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    given: dict[str, Any] = {
        name: replace(split, inputs=split.shown, shown=None)
        for name, split in splits.items()
        if split.shown is not None
    }
    return replace(dataset, **given)


def _models(dataset: Dataset) -> tuple[Mapping[str, Fit], int]:
    """The baselines for this kind of data, and the number of columns they read; none for images."""
    texts = dataset.train.texts
    if texts is not None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        words = sum(map(len, texts)) / LETTERS_PER_WORD / len(texts)
        tf_idf = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+")
        return {"TF-IDF, logistic regression": partial(_fit_linear, transformer=tf_idf)}, math.ceil(words) + 1
    if dataset.is_image or dataset.is_text or len(dataset.input_shape) != 1:
        return {}, 0
    if not all(split.inputs.isfinite().all() for split in (dataset.train, dataset.val, dataset.test)):
        return {}, 0
    from sklearn.preprocessing import StandardScaler

    linear = partial(_fit_linear, transformer=StandardScaler() if dataset.columns is None else None)
    return {"Logistic regression": linear, "Gradient boosting": _fit_boosting}, dataset.input_shape[0]


def _entry(fit: Fit, problem: Problem, log_beliefs: Float[Tensor, "n classes"]) -> dict[str, Any]:
    import sklearn
    from threadpoolctl import threadpool_limits

    start, labels = time.monotonic(), torch.from_numpy(problem.test.labels)
    with warnings.catch_warnings(), threadpool_limits(torch.get_num_threads()):
        warnings.simplefilter("ignore")  # for example about convergence
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


def _fit_linear(problem: Problem, transformer: Any) -> Answer:
    """Logistic regression with the penalty of lowest validation NLL, on inputs transformed as scikit-learn does."""
    from sklearn.linear_model import LogisticRegression

    if transformer is not None:
        problem = problem.mapped(transformer.fit(problem.train.inputs).transform)
    model, train = LogisticRegression(max_iter=300, warm_start=True), problem.train
    found = {}
    for strength in PENALTIES:
        model.set_params(C=strength).fit(train.inputs, train.labels, sample_weight=train.weights)
        found[strength] = [
            problem.log_beliefs(model, model.predict_proba(part.inputs)) for part in (problem.val, problem.test)
        ]
    best = min(found, key=lambda strength: problem.validation_nll(found[strength][0]))
    return found[best][1], {"C": best}


def _fit_boosting(problem: Problem) -> Answer:
    """Gradient boosting with the number of trees of lowest validation NLL. It stops growing when the last MORE_TREES
    have not lowered the NLL."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(early_stopping=False, warm_start=True, random_state=SEED)
    train, best = problem.train, 0
    for trees in range(MORE_TREES, TREES + 1, MORE_TREES):
        model.set_params(max_iter=trees).fit(train.inputs, train.labels, sample_weight=train.weights)
        stages = model.staged_predict_proba(problem.val.inputs)
        best = int(np.argmin([problem.validation_nll(problem.log_beliefs(model, stage)) for stage in stages])) + 1
        if best <= trees - MORE_TREES:
            break
    answers = next(islice(model.staged_predict_proba(problem.test.inputs), best - 1, None))
    return problem.log_beliefs(model, answers), {"trees": best}


def better_baseline(baselines: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Name of the baseline with the lowest NLL among those whose advantage exceeds its standard error."""
    known = [name for name, entry in baselines.items() if entry["advantage_error"] is not None]
    better = [name for name in known if baselines[name]["advantage"] > baselines[name]["advantage_error"]]
    return min(better, key=lambda name: baselines[name]["nll"], default=None)
