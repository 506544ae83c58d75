"""Runs with exits: thresholds fitted on validation data, and other budgets of the trained model."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from made_runs import rewrite, without_manifest
from problems import MadeOnce, read
from refusals import refusal
from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.evaluation import choices
from ricnet.evaluation.choices import chosen_words
from ricnet.evaluation.evaluate import Reading, read_predictions
from ricnet.methods import RIC
from ricnet.models.classifier import Classifier, build_model
from ricnet.models.config import Config
from ricnet.models.hub import save_pretrained
from ricnet.models.loading import load
from ricnet.models.run import RunFolder
from ricnet.report.comparison import results
from ricnet.report.runs import group_seeds, read_run
from ricnet.report.tables import results_grid
from ricnet.studies.runner import derive
from ricnet.training.api import run, train_in_memory
from ricnet.training.recipes import configure

CPU = torch.device("cpu")


def with_exits(dataset: Dataset, method: str = "ric", **changes: object) -> Config:
    how = {"epochs": 4, "batch_size": 32, "exits": "stage", "steps_per_exit": 2, "calibration": "temperature"}
    return configure(dataset, method, "fast", **{**how, **changes})


@pytest.fixture(scope="module")
def folder(dataset: Dataset, made_once: MadeOnce) -> RunFolder:
    """Two exits of two steps each."""
    made = made_once("two exits", lambda folder: run(with_exits(dataset), dataset, RunFolder(folder / "run"), CPU))
    return RunFolder(made / "run")


@pytest.fixture(scope="module", autouse=True)
def _few_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "enough_to_choose", lambda correct: True)
        patch.setattr(choices.Gain, "is_shown", lambda gain, alternatives: True)
        yield


@pytest.fixture(scope="module")
def model(folder: RunFolder) -> Classifier:
    return load(folder.path)


def test_halted_inference_under_a_budget_answers_as_all_steps_read_with_its_threshold(
    dataset: Dataset, model: Classifier
) -> None:
    assert len(model.budgets) > 2
    for point in model.budgets:
        frugal = model.with_budget(point.mean_cost)
        halted = frugal.refine(dataset.val.inputs)
        every = Reading(model.temperature, point.halt_threshold).read(
            model.method.refine(model.model, dataset.val.inputs, 4)
        )
        assert halted.halt_step.tolist() == every.halt_step.tolist()
        torch.testing.assert_close(halted.final, every.final)
        assert halted.cost is not None
        assert float(halted.cost.double().mean()) == pytest.approx(point.mean_cost, abs=1e-6)
        right = halted.final.argmax(-1) == dataset.val.labels
        assert float(right.double().mean()) == pytest.approx(point.accuracy)


def test_a_belief_that_is_held_keeps_the_temperature_of_its_own_step(dataset: Dataset, model: Classifier) -> None:
    path = (
        replace(model, temperature=(1.0, 2.0, 3.0, 4.0))
        .with_budget(model.budgets[0].mean_cost)
        .refine(dataset.val.inputs)
    )
    assert path.halt_step.max() == 1
    torch.testing.assert_close(path.at(4), path.final)


def test_stored_thresholds_are_loaded_and_measured(folder: RunFolder, model: Classifier) -> None:
    rule, fit = json.loads(folder.halting.read_text()), json.loads(folder.calibration.read_text())
    assert len(fit["temperature"]) == 4
    assert model.temperature == tuple(fit["temperature"])
    assert (model.method.halt_threshold, model.method.horizon) == (rule["halt_threshold"], rule["max_steps"])
    evaluation = json.loads(folder.evaluation.read_text())
    assert evaluation["val"]["mean_cost"] == pytest.approx(rule["mean_cost"])
    costs = [row["cost"] for row in evaluation["test"]["per_step"]]
    assert costs == pytest.approx(list(model.model.costs))
    assert costs[-1] == 1
    kept = read_predictions(folder.path)
    assert kept.cost is not None
    assert float(kept.cost.mean()) == pytest.approx(evaluation["test"]["mean_cost"])
    assert chosen_words(evaluation)[1].startswith("halting: ")
    assert "Share of compute" in results_grid(results(group_seeds([read_run(folder.path)]))).titles


def test_a_run_may_be_derived_or_trained_for_a_budget(dataset: Dataset, folder: RunFolder, tmp_path: Path) -> None:
    trained = load(folder.path)
    frugal = RunFolder(tmp_path / "frugal")
    derive(folder, replace(trained.config, budget=0.9), dataset, frugal, CPU)
    evaluation = json.loads(frugal.evaluation.read_text())
    assert evaluation["val"]["mean_cost"] <= 0.9
    assert load(frugal.path).method == trained.with_budget(0.9).method
    assert evaluation["fitted"]["halting"]["budget"] == 0.9


def test_a_shared_model_keeps_its_budgets(dataset: Dataset, model: Classifier, tmp_path: Path) -> None:
    for name, one in {"as it was": model, "frugal": model.with_budget(0.9)}.items():
        shared = load(save_pretrained(one, tmp_path / name))
        assert shared.budgets == model.budgets
        assert shared.method == one.method
        assert shared.temperature == model.temperature


def test_a_price_of_compute_is_a_rule_of_its_own_and_budgets_are_kept_beside_it(dataset: Dataset) -> None:
    config = with_exits(dataset, compute_price=0.1, epochs=1)
    assert not config.chooses_halt
    classifier, _ = train_in_memory(config, dataset, CPU)
    assert classifier.method.halt_threshold == 0
    assert classifier.with_budget(1.0).refine(dataset.val.inputs).cost.tolist() == [1.0] * len(dataset.val)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"exits": "none", "steps_per_exit": 1}, ("budget", "exits")),
        ({"method": "pondernet"}, ("budget", "pondernet")),
        ({"halt_threshold": 0.1}, ("budget", "halt_threshold")),
        ({"method": "supervised", "confidence_threshold": 0.8}, ("budget", "confidence_threshold")),
        ({"method": "supervised", "confidence_threshold": 0.0}, ("budget", "confidence_threshold")),
        ({"budget": 1.5}, ("budget", "1.5")),
    ],
)
def test_a_budget_that_cannot_be_is_refused_before_training(
    dataset: Dataset, changes: dict[str, object], names: tuple[str, ...]
) -> None:
    with refusal(*names):
        with_exits(dataset, **{"budget": 0.5, **changes})


def test_a_budget_below_the_first_exit_is_refused_before_training(dataset: Dataset) -> None:
    with refusal("budget", 0.01):
        build_model(with_exits(dataset, budget=0.01), dataset.input_shape, len(dataset.class_names))


def test_a_budget_is_refused_without_exits_or_value(dataset: Dataset) -> None:
    plain, _ = train_in_memory(configure(dataset, "ric", "fast", epochs=1, horizon=2), dataset, CPU)
    with pytest.raises(RicnetError, match=r"^budget=0.4 .* exits='stage'"):  # in Python no flags are named
        plain.with_budget(0.4)
    act, _ = train_in_memory(with_exits(dataset, "act", epochs=1, steps_per_exit=1), dataset, CPU)
    assert act.refine(dataset.val.inputs).cost is not None
    with refusal("act", "value"):
        act.with_budget(0.4)


@pytest.fixture(scope="module")
def sure(dataset: Dataset, made_once: MadeOnce) -> RunFolder:
    """SL, which has no value."""
    config = with_exits(dataset, "supervised", steps_per_exit=1, budget=0.9)
    made = made_once("SL with exits", lambda folder: run(config, dataset, RunFolder(folder / "run"), CPU))
    return RunFolder(made / "run")


def test_supervised_learning_keeps_a_budget_by_how_sure_its_tempered_beliefs_are(
    dataset: Dataset, sure: RunFolder
) -> None:
    model, inputs = load(sure.path), dataset.val.inputs
    first, last = model.model.costs
    assert 1 not in model.temperature
    confidence = model.refine(inputs, halt=False).at(1).exp().amax(-1)
    entered: list[int] = []
    model.model.backbone.stages[1].register_forward_hook(lambda _, seen, __: entered.append(len(seen[0])))
    assert len(model.budgets) > 2
    for point in model.budgets:
        stays = 1 - confidence >= point.halt_threshold
        entered.clear()
        path = model.with_budget(point.mean_cost).refine(inputs)
        assert path.halt_step.tolist() == [1 + bool(stay) for stay in stays]
        assert sum(entered) == int(stays.sum())
        assert float(stays.double().mean() * (last - first) + first) == pytest.approx(point.mean_cost)
        assert float((path.final.argmax(-1) == dataset.val.labels).double().mean()) == pytest.approx(point.accuracy)


def test_supervised_learning_that_was_trained_for_a_budget_is_measured_loaded_and_shared_so(
    sure: RunFolder, tmp_path: Path
) -> None:
    model, evaluation = load(sure.path), json.loads(sure.evaluation.read_text())
    rule = evaluation["fitted"]["halting"]
    assert (rule["by_confidence"], rule["budget"]) == (True, 0.9)
    assert evaluation["val"]["mean_cost"] == pytest.approx(rule["mean_cost"])
    assert rule["mean_cost"] <= 0.9
    assert evaluation["raw"]["val"]["mean_cost"] == 1
    assert model.method == model.with_budget(0.9).method
    assert model.method.confidence_threshold == pytest.approx(1 - rule["halt_threshold"])
    assert "% confidence" in chosen_words(evaluation)[1]
    frugal = model.with_budget(model.budgets[0].mean_cost)
    shared = load(save_pretrained(frugal, tmp_path / "frugal"))
    assert (shared.method, shared.budgets, shared.temperature) == (frugal.method, frugal.budgets, frugal.temperature)
    assert model.with_budget(1.0).method.confidence_threshold is None


def test_a_given_confidence_is_compared_with_tempered_beliefs(dataset: Dataset, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = with_exits(dataset, "supervised", steps_per_exit=1, confidence_threshold=0.6)
    run(config, dataset, folder, CPU)
    model, inputs = load(folder.path), dataset.test.inputs
    path, raw = model.refine(inputs), config.method.refine(model.model, inputs)
    assert path.halt_step.tolist() == [2 - bool(sure) for sure in path.at(1).exp().amax(-1) >= 0.6]
    assert path.cost is not None
    assert raw.cost is not None
    assert not torch.equal(path.cost, raw.cost)
    measured = json.loads(folder.evaluation.read_text())
    assert float(path.cost.mean()) == pytest.approx(measured["test"]["mean_cost"])
    assert float(raw.cost.mean()) == pytest.approx(measured["raw"]["test"]["mean_cost"])


def test_a_method_defines_how_it_applies_a_threshold(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RIC, "stopping_by", lambda self, threshold, _: replace(self, gamma=-1 / (threshold - 1)))
    threshold = model.budgets[-1].halt_threshold
    assert threshold < 0
    assert model.with_budget(1.0).method == replace(model.method, gamma=1 / (1 - threshold))


@pytest.fixture
def copied(folder: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(without_manifest(shutil.copytree(folder.path, tmp_path / "run")))


@pytest.mark.parametrize("wrong", [[1], [{"halt_threshold": 0.1}], "a number as text", 7], ids=str)
def test_budgets_that_cannot_be_read_are_refused(copied: RunFolder, wrong: object) -> None:
    entry = read(copied.halting)
    budgets = [{**entry["budgets"][0], "nll": "low"}] if wrong == "a number as text" else wrong
    copied.halting.write_text(json.dumps(entry | {"budgets": budgets}))
    with refusal("halting.json", "budgets"):
        load(copied.path)


def test_a_run_of_a_version_that_kept_no_budgets_is_refused(copied: RunFolder) -> None:
    rewrite(copied.halting, lambda entry: entry.pop("budgets"))
    with refusal("budget", "train it again"):
        load(copied.path).with_budget(0.5)
