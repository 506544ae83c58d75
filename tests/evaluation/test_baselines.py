"""Numbers of the baselines against scikit-learn's functions or a second implementation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor

from ricnet.data import Dataset, Split
from ricnet.data.columns import Columns
from ricnet.data.dataset import balanced, with_all_rows
from ricnet.evaluation import baselines
from ricnet.evaluation.baselines import (
    against_base_rate,
    as_given,
    base_rate,
    better_baseline,
    fit_baselines,
    mean_and_error,
    selection_nll,
)


def rows(count: int, seed: int, classes: int = 3) -> Split:
    """Overlapping clouds in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    return Split(2 * torch.eye(4)[labels] + torch.randn(count, 4, generator=generator), labels)


@pytest.fixture
def table() -> Dataset:
    return Dataset("clouds", rows(150, 0), rows(60, 1), rows(90, 2), ("a", "b", "c"))


def even(dataset: Dataset) -> Tensor:
    classes = len(dataset.class_names)
    return torch.full((len(dataset.test), classes), -math.log(classes))


def linear_answers(train: Split, test: Split, strength: float) -> Tensor:
    """Softmax regression by L-BFGS, with scikit-learn's penalty on the weights."""
    mean, std = train.inputs.mean(0).double(), train.inputs.double().std(0, correction=0)
    layer = torch.nn.Linear(4, 3).double()
    steps = torch.optim.LBFGS(layer.parameters(), max_iter=500, tolerance_change=1e-12)

    def loss() -> Tensor:
        steps.zero_grad()
        logits = layer((train.inputs.double() - mean) / std)
        total = strength * torch.nn.functional.cross_entropy(logits, train.labels, reduction="sum")
        total = total + layer.weight.square().sum() / 2
        total.backward()
        return total

    steps.step(loss)
    return layer((test.inputs.double() - mean) / std).log_softmax(-1).detach()


def test_a_table_has_two_baselines_fitted_on_its_training_rows(table: Dataset) -> None:
    found, note = fit_baselines(table, even(table))
    assert (list(found), note) == (["Logistic regression", "Gradient boosting"], None)
    linear = found["Logistic regression"]
    answers = linear_answers(table.train, table.test, linear["chosen"]["C"])
    labels = table.test.labels.numpy()
    assert linear["nll"] == pytest.approx(log_loss(labels, answers.exp().numpy()), abs=1e-3)
    assert linear["accuracy"] == pytest.approx(accuracy_score(labels, answers.argmax(-1).numpy()), abs=0.02)
    val = [
        log_loss(table.val.labels.numpy(), linear_answers(table.train, table.val, strength).exp().numpy())
        for strength in baselines.PENALTIES
    ]
    assert linear["chosen"]["C"] == baselines.PENALTIES[int(np.argmin(val))]
    for entry in found.values():
        assert (entry["n"], entry["rows"]) == (90, 150)
        assert entry["library"].startswith("scikit-learn ")
        assert entry["nll"] == pytest.approx(math.log(3) - entry["advantage"], abs=1e-6)
        assert entry["accuracy"] > 0.7


def test_after_a_final_fit_validation_rows_choose_but_are_not_trained_on(table: Dataset) -> None:
    plain, _ = fit_baselines(table, even(table))
    found, note = fit_baselines(with_all_rows(table), even(table), final_fit=True)
    assert "without the validation rows" in str(note)
    same = ("nll", "chosen", "rows")
    assert [[entry[name] for name in same] for entry in found.values()] == [
        [entry[name] for name in same] for entry in plain.values()
    ]


def test_weights_of_rows_are_those_of_the_run(table: Dataset) -> None:
    """Only rows of the first class have weight, so it is always the answer."""
    heavy = torch.where(table.train.labels == 0, 1.0, 1e-6)
    found, _ = fit_baselines(replace(table, train=replace(table.train, weights=heavy)), even(table))
    assert found["Logistic regression"]["accuracy"] == pytest.approx(1 / 3, abs=0.02)
    assert found["Logistic regression"]["balanced_accuracy"] == pytest.approx(1 / 3, abs=0.02)


def test_texts_have_tf_idf_and_images_nothing(table: Dataset) -> None:
    words = ["an apple and a pear", "two dogs and a cat", "the sea, the wind"]

    def texts(split: Split) -> Split:
        said = [f"{words[label]} {number}" for number, label in enumerate(split.labels.tolist())]
        return replace(split, inputs=split.inputs.int(), texts=said)

    prose = replace(table, train=texts(table.train), val=texts(table.val), test=texts(table.test))
    found, _ = fit_baselines(prose, even(prose))
    assert list(found) == ["TF-IDF, logistic regression"]
    assert found["TF-IDF, logistic regression"]["accuracy"] == 1
    images = replace(table, train=replace(table.train, inputs=torch.zeros(150, 1, 2, 2, dtype=torch.uint8)))
    assert fit_baselines(images, even(table)) == ({}, None)
    tokens = replace(table, train=replace(table.train, inputs=table.train.inputs.int()))
    assert fit_baselines(tokens, even(table)) == ({}, None)


def test_baselines_read_the_original_inputs_of_a_frozen_encoder(table: Dataset) -> None:
    features = replace(table.train, inputs=torch.zeros(150, 7), shown=table.train.inputs)
    assert torch.equal(as_given(replace(table, train=features)).train.inputs, table.train.inputs)
    photographs = replace(table.train, shown=torch.zeros(150, 3, 8, 8, dtype=torch.uint8))
    assert fit_baselines(replace(table, train=photographs), even(table)) == ({}, None)


def test_baselines_use_a_sample_of_many_rows_with_a_note(table: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_WORK", 100 * 4 * 3)
    monkeypatch.setattr(baselines, "MIN_ROWS", 100)
    found, note = fit_baselines(table, even(table))
    assert found["Gradient boosting"]["rows"] == 100
    assert "100 of 150 rows" in str(note)
    monkeypatch.setattr(baselines, "MIN_ROWS", 101)
    found, note = fit_baselines(table, even(table))
    assert (found, "No baselines were fitted: 150 rows of 4 columns" in str(note)) == ({}, True)


def test_a_class_that_training_lacks_is_nearly_impossible(table: Dataset) -> None:
    known = table.train.take(torch.nonzero(table.train.labels < 2).flatten())
    found, _ = fit_baselines(replace(table, train=known), even(table))
    assert 10 < found["Logistic regression"]["nll"] < 13  # a third of the rows at −log(2e-16) = 36
    alone = table.train.take(torch.nonzero(table.train.labels < 1).flatten())
    assert fit_baselines(replace(table, train=alone), even(table)) == ({}, None)


def test_columns_of_a_table_are_not_standardised_again(table: Dataset) -> None:
    """Numbers of a table are standardised already, and one-hot columns must not be."""
    plain = replace(table, columns=Columns("class", ()))
    stretched = replace(table, train=replace(table.train, inputs=table.train.inputs * 1e-3))
    stretched = replace(stretched, val=replace(table.val, inputs=table.val.inputs * 1e-3))
    stretched = replace(stretched, test=replace(table.test, inputs=table.test.inputs * 1e-3))
    array, _ = fit_baselines(stretched, even(table))
    given, _ = fit_baselines(replace(stretched, columns=plain.columns), even(table))
    assert array["Logistic regression"]["nll"] < given["Logistic regression"]["nll"] - 0.2


def test_the_base_rate_is_that_of_the_training_rows() -> None:
    train = Split(torch.zeros(10, 1), torch.tensor([0] * 8 + [1] * 2))
    labels, beliefs = torch.tensor([0, 0, 1, 1]), torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]])
    found = against_base_rate(beliefs.log(), labels, train)
    nll = log_loss(labels, [[0.8, 0.2]] * 4)
    assert (found["base_rate"], found["base_rate_nll"]) == (0.5, pytest.approx(nll))
    gains = np.log([0.9 / 0.8, 0.6 / 0.8, 0.7 / 0.2, 0.2 / 0.2])
    assert found["nll_gain"] == pytest.approx(gains.mean())
    assert found["nll_gain_error"] == pytest.approx(gains.std(ddof=1) / 2)
    even = against_base_rate(beliefs.log(), labels, balanced(train), balanced(Split(labels, labels)).weights)
    assert even.pop("nll_gain_weighted") == pytest.approx(np.log([1.8, 1.2, 1.4, 0.4]).mean(), abs=1e-6)
    assert even.pop("nll_gain_weighted_error") > 0
    assert even == found
    shares = base_rate(Split(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)), 2).exp()
    assert shares.tolist() == pytest.approx([3 / 3.5, 0.5 / 3.5])  # a class without rows counts half a row


def test_with_balanced_classes_a_few_rare_rows_do_not_choose() -> None:
    """Beliefs assume equal shares; the NLL of those for the training shares (Bayes' rule) decides."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.97, 0.02, 0.01], dtype=torch.float64)
    labels = torch.multinomial(shares, 300, replacement=True, generator=generator)
    likelihood = torch.rand(300, 3, generator=generator, dtype=torch.float64)
    even, posterior = (likelihood * prior for prior in (torch.ones(3), shares))
    split = balanced(Split(labels, labels))
    found = selection_nll((even / even.sum(1, keepdim=True)).log(), labels, split.weights, shares.log())
    truth = log_loss(labels, posterior / posterior.sum(1, keepdim=True))
    assert found == pytest.approx(truth, abs=1e-6)
    own = torch.linspace(0.5, 1.5, 300)  # the rows' own weights still count
    split = balanced(Split(labels, labels, own))
    found = selection_nll((even / even.sum(1, keepdim=True)).log(), labels, split.weights, shares.log())
    truth = log_loss(labels, posterior / posterior.sum(1, keepdim=True), sample_weight=own)
    assert found == pytest.approx(truth, abs=1e-6)
    assert selection_nll(even.log(), labels, None) == pytest.approx(-float(even.log()[range(300), labels].mean()))


def test_a_weighted_mean_has_the_error_of_a_weighted_mean() -> None:
    values, weights = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    mean, error = mean_and_error(values)
    assert (mean, error) == (pytest.approx(float(values.mean())), pytest.approx(float(values.std()) / math.sqrt(50)))
    mean, error = mean_and_error(values, weights)
    assert mean == pytest.approx(np.average(values, weights=weights))
    draws = torch.randn(4_000, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spread = float(((draws * weights).sum(1) / weights.sum()).std())
    errors = [mean_and_error(draw, weights)[1] for draw in draws[:400]]
    assert np.mean(errors) == pytest.approx(spread, rel=0.05)
    assert mean_and_error(values[:1]) == (pytest.approx(float(values[0])), None)


def test_a_better_baseline_exceeds_its_standard_error() -> None:
    def entry(nll: float, advantage: float) -> dict[str, float]:
        return {"nll": nll, "advantage": advantage, "advantage_error": 0.1}

    assert better_baseline({}) is None
    assert better_baseline({"a": entry(0.5, 0.09), "b": entry(0.7, -0.2)}) is None
    assert better_baseline({"a": entry(0.5, 0.11), "b": entry(0.4, 0.2)}) == "b"
