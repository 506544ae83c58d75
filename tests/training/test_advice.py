from dataclasses import replace
from typing import Any

import pytest
import torch

from ricnet.data import Dataset
from ricnet.errors import in_flags
from ricnet.models.config import Config, Optimization
from ricnet.training.advice import SHORT, advice, hints

GOOD = {
    **{"accuracy": 0.9, "mean_confidence": 0.88, "ece_signed": -0.02, "ece_signed_error": 0.01, "n": 1000, "nll": 0.05},
    **{"nll_gain": 0.6, "nll_gain_error": 0.02},
}
BOLD = GOOD | {"accuracy": 0.64, "mean_confidence": 0.97, "ece_signed": 0.33}  # a table of 1,000 rows once was
LUCKY = GOOD | {"accuracy": 0.8, "mean_confidence": 0.9, "ece_signed": 0.1, "n": 60, "ece_signed_error": 0.052}


def of_epochs(epochs: int, **changes: Any) -> Config:
    return Config(optimization=Optimization(epochs=epochs), **changes)


COURSE = [1 / (1 + epoch) for epoch in range(20)]
FALLING = f"({(1 / 17 + 1 / 18) / 2:.3f} to {(1 / 19 + 1 / 20) / 2:.3f})"
LONG = of_epochs(10)
FITTED = of_epochs(10, calibration="temperature")
BY_NLL = replace(FITTED, optimization=replace(FITTED.optimization, select="nll"))
IMPATIENT = replace(of_epochs(30), optimization=replace(of_epochs(30).optimization, patience=5))


def said(config: Config, dataset: Dataset, nll: list[float] | None = None, **parts: Any) -> list[str]:
    evaluation = {"train": GOOD, "val": GOOD, "test": GOOD} | parts
    course = [0.5] * config.optimization.epochs if nll is None else nll
    return [in_flags(sentence) for sentence in advice(evaluation, course, config, dataset)]


@pytest.mark.parametrize(
    ("config", "nll", "splits", "facts"),
    [
        (of_epochs(4), [1.0, 0.5, 0.3, 0.299], {}, None),
        (of_epochs(1), [1.0], {}, None),
        (of_epochs(20), COURSE, {}, ("2 epochs", FALLING, "--epochs 40", "--overwrite", "--out")),
        (IMPATIENT, COURSE, {}, ("note", "20 of 30 epochs", "the last 5 brought", "--patience")),
        (LONG, None, {"val": BOLD, "test": BOLD}, ("64.0%", "97.0%", "--calibration temperature", "--select nll")),
        (FITTED, None, {"val": BOLD, "test": BOLD}, ("64.0%", "97.0%", "--select nll")),
        (BY_NLL, None, {"val": BOLD, "test": BOLD}, ("64.0%", "97.0%", "--val-fraction (now 0.1)")),
        (LONG, None, {"val": BOLD}, None),
        (LONG, None, {"val": LUCKY, "test": LUCKY}, None),
        (LONG, None, {"train": GOOD | {"accuracy": 0.979, "nll": 0.01}}, None),
        (LONG, None, {"val": GOOD | {"n": 49}}, ("49 validation rows", "--val-fraction")),
        (LONG, None, {"test": GOOD | {"n": 49}}, ("49 test rows",)),
        (LONG, None, {"val": GOOD | {"n": 7}, "test": GOOD | {"n": 9}}, ("7 validation rows", "9 test rows")),
        (LONG, None, {"test": None}, None),
        (LONG, None, {"test": GOOD | {"nll_gain": 0.03}}, ("nothing", "1,000 test", "0.030 ± 0.020", "--epochs 20")),
    ],
)
def test_advice_says_what_was_seen_and_what_to_change(
    config: Config,
    nll: list[float] | None,
    splits: dict[str, Any],
    facts: tuple[str, ...] | None,
    dataset: Dataset,
) -> None:
    given, facts = said(config, dataset, nll, **splits), facts or ()
    assert len(given) == bool(facts)
    assert [fact for fact in facts if fact not in given[0]] == []
    assert ("--calibration" in " ".join(given)) == ("--calibration temperature" in facts)


def test_rare_classes_are_no_reason_to_say_that_nothing_was_learned(dataset: Dataset) -> None:
    """1 % positives, precision 87 %, recall 56 %: the accuracy is half a point above the base rate."""
    rare = GOOD | {"accuracy": 0.9948, "base_rate": 0.99, "nll": 0.02, "nll_gain": 0.036, "nll_gain_error": 0.006}
    assert said(LONG, dataset, train=rare, val=rare, test=rare) == []
    weights = {"nll_gain_weighted": -0.17, "nll_gain_weighted_error": 0.26}
    assert said(LONG, dataset, train=rare, val=rare, test=rare | weights) == []
    weights, nothing = {"nll_gain_weighted": 0.3, "nll_gain_weighted_error": 0.1}, {"nll_gain": -0.2}
    assert said(LONG, dataset, train=rare, val=rare, test=rare | nothing | weights) == []
    [hint] = said(LONG, dataset, test=rare | nothing | weights | {"nll_gain_weighted": 0.1})
    assert "0.100 ± 0.100" in hint


def test_what_chance_explains_is_no_evidence(dataset: Dataset) -> None:
    """Few rows say nothing of whether something was learned."""
    nothing = GOOD | {"nll_gain": 0.01, "nll_gain_error": 0.2}
    assert any("learned nothing" in hint for hint in said(LONG, dataset, test=nothing))
    assert not any("learned nothing" in hint for hint in said(LONG, dataset, test=nothing | {"n": 30}))
    single = nothing | {"nll_gain_error": None, "ece_signed_error": None, "n": 1}
    assert not any(
        "nothing" in hint or "over-confident" in hint for hint in said(LONG, dataset, val=BOLD | single, test=single)
    )


def test_a_run_that_was_meant_to_be_short_is_not_told_to_be_longer(dataset: Dataset) -> None:
    bad = BOLD | {"nll_gain": 0.0}
    assert said(of_epochs(2), dataset, [1.0, 0.1], train=bad, val=bad, test=bad) == []
    assert len(said(of_epochs(SHORT), dataset, train=bad, val=bad, test=bad)) == 2


def entry(nll: float, advantage: float, error: float | None = 0.02) -> dict[str, Any]:
    return {"nll": nll, "accuracy": 0.97, "advantage": advantage, "advantage_error": error, "n": 1000}


def test_a_better_baseline_is_named_with_its_numbers(dataset: Dataset) -> None:
    for epochs in (2, 10):
        baselines = {"Logistic regression": entry(0.01, 0.04), "Gradient boosting": entry(0.02, 0.03)}
        [hint] = said(of_epochs(epochs), dataset, baselines=baselines)
        facts = ("logistic regression", "0.010", "0.050", "0.040 ± 0.020", "97.0%", "90.0%", "1,000 test rows")
        assert [fact for fact in facts if fact not in hint] == []
    within = {"Logistic regression": entry(0.031, 0.019), "Gradient boosting": entry(0.01, 0.04, None)}
    assert said(LONG, dataset, baselines=within) == []


def test_hints_come_before_notes(dataset: Dataset) -> None:
    """A terminal shows the first lines only."""
    lines = said(IMPATIENT, dataset, COURSE, baselines={"Logistic regression": entry(0.01, 0.04)})
    assert [line[:4] for line in lines] == ["hint", "note"]


def test_few_images_and_few_texts_are_not_called_rows(dataset: Dataset) -> None:
    few = {"train": GOOD, "val": GOOD | {"n": 14}, "test": GOOD | {"n": 9}}
    images = replace(dataset.train, inputs=torch.zeros(96, 3, 128, 128, dtype=torch.uint8))
    tokens = replace(dataset.train, inputs=dataset.train.inputs.int())
    for train, unit in ((images, "images"), (tokens, "texts")):
        [hint] = hints(few, [0.5] * 10, LONG, replace(dataset, train=train))
        assert f"14 validation {unit}" in hint
        assert f"9 test {unit}" in hint
