"""Calibration examples of a model: stored results, other halting rules, sets, exits and abstention."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ricnet
from made_runs import without_manifest
from problems import MadeOnce
from ricnet.core.trajectory import Trajectory
from ricnet.data import Split
from ricnet.data import load as load_data
from ricnet.data.dataset import Dataset, GivenSplits, set_aside
from ricnet.errors import RicnetError
from ricnet.evaluation.choices import OperatingPoint
from ricnet.evaluation.conformal import conformal_quantile
from ricnet.methods import Supervised
from ricnet.models.classifier import Classifier
from ricnet.models.guarantees import (
    Calibration,
    calibrate,
    calibration_of,
    control_abstention,
    control_exits,
    read_calibration,
    require_calibration,
    rule_in_words,
    set_rule,
)
from ricnet.models.run import RunFolder


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data("digits", calibration_fraction=0.3)


@pytest.fixture(scope="module")
def run(made_once: MadeOnce) -> Path:
    tiny = {"epochs": 3, "horizon": 4, "calibration_fraction": 0.3, "device": "cpu"}
    return made_once("calibrated", lambda folder: ricnet.train("digits", out=folder / "digits", **tiny)) / "digits"


@pytest.fixture(scope="module")
def model(run: Path) -> Classifier:
    return ricnet.load(run)


def test_rows_are_kept_aside_from_training_rows_only(digits: Dataset) -> None:
    whole = load_data("digits")
    assert torch.equal(digits.test.inputs, whole.test.inputs)
    assert torch.equal(digits.val.labels, whole.val.labels)
    assert digits.calibration is not None
    assert len(digits.train) + len(digits.calibration) == len(whole.train)
    assert len(digits.calibration) == round(0.3 * len(whole.train))
    both = torch.cat([digits.train.inputs, digits.calibration.inputs]).flatten(1)
    assert torch.equal(both.sum(0), whole.train.inputs.flatten(1).sum(0))
    assert whole.calibration is None


def test_the_first_row_of_a_class_stays() -> None:
    rows = Split(torch.arange(10), torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 0, 0]))
    rest, kept = set_aside(rows, 0.8)
    assert {0, 4} <= set(rest.inputs.tolist())
    assert sorted(rest.inputs.tolist() + kept.inputs.tolist()) == list(range(10))


def test_statistics_are_not_learned_from_rows_kept_aside() -> None:
    """`fill` sees them as test rows."""
    rows = Split(torch.arange(40), torch.arange(40) % 2)
    seen: dict[str, int] = {}

    def fill(numbered: Dataset) -> Dataset:
        seen.update(train=len(numbered.train), test=len(numbered.test))
        return numbered

    found = GivenSplits(rows, ("a", "b"), fill=fill).dataset("x", 0.1, test_fraction=0.25, calibration_fraction=0.2)
    assert found.calibration is not None
    assert seen == {"train": len(found.train), "test": len(found.test) + len(found.calibration)}
    everyone = [*found.train.inputs, *found.val.inputs, *found.test.inputs, *found.calibration.inputs]
    assert sorted(map(int, everyone)) == list(range(40))


def test_training_keeps_calibration_examples(run: Path, model: Classifier, digits: Dataset) -> None:
    found = read_calibration(run)
    assert found is not None
    assert digits.calibration is not None
    assert found.labels.tolist() == digits.calibration.labels.tolist()
    path = model.refine(digits.calibration.inputs, model.config.method.horizon, halt=False)
    beliefs = path.log_beliefs.double().softmax(-1).numpy()
    rows = np.arange(len(found))
    np.testing.assert_allclose(found.probability, beliefs[:, rows, found.labels], atol=1e-6)
    np.testing.assert_array_equal(found.answer, beliefs.argmax(-1))
    np.testing.assert_allclose(found.brier, ((beliefs - np.eye(10)[found.labels]) ** 2).sum(-1), atol=1e-6)
    halted = model.refine(digits.calibration.inputs)
    np.testing.assert_array_equal(found.stops(model.method), halted.halt_step.numpy())
    np.testing.assert_array_equal(found.stops(model.method, 2), halted.halt_step.clamp(max=2).numpy())


def test_another_threshold_halts_as_the_model_does(model: Classifier, digits: Dataset) -> None:
    found = require_calibration(model, "this")
    assert digits.calibration is not None
    for threshold in (-0.5, 0.01, 0.3):
        other = replace(model, method=model.method.stopping_by(threshold, 4))
        np.testing.assert_array_equal(
            found.stops(other.method), other.refine(digits.calibration.inputs).halt_step.numpy()
        )


def test_sets_have_the_coverage_and_hold_for_one_rule(model: Classifier, digits: Dataset) -> None:
    rule = set_rule(model, 0.9)
    found = require_calibration(model, "this")
    scores = 1 - found.at(found.probability, found.stops(model.method))
    assert rule.quantiles == (conformal_quantile(scores, 0.9),)
    assert rule.halting == rule_in_words(model)
    sets = model.predict_set(digits.test.inputs, 0.9)
    hits = [model.class_names[label] in chosen for label, chosen in zip(digits.test.labels, sets, strict=True)]
    assert np.mean(hits) > 0.85
    assert all(sets)
    answers = model.predict(digits.test.inputs)
    assert all(chosen[0] == answer for chosen, answer in zip(sets, answers, strict=True))
    one_step = set_rule(model, 0.9, max_steps=1)
    assert one_step.quantiles == rule.step_quantiles[0]
    for score in ("aps", "raps"):
        assert np.mean([len(chosen) for chosen in model.predict_set(digits.test.inputs[:50], 0.9, score)]) >= 1


def test_a_model_without_a_folder_is_calibrated_in_memory(model: Classifier, digits: Dataset) -> None:
    assert digits.calibration is not None
    bare = replace(model, folder=None)
    with pytest.raises(RicnetError, match=r"coverage=0.9 needs calibration examples.*calibration_fraction=0.1"):
        bare.predict_set(digits.test.inputs, 0.9)
    names = [model.class_names[label] for label in digits.calibration.labels]
    ready = bare.calibrated(digits.calibration.inputs, names)
    assert ready.predict_set(digits.test.inputs, 0.9) == model.predict_set(digits.test.inputs, 0.9)
    with pytest.raises(RicnetError, match="'eleven' is not a class of the model"):
        bare.calibrated(digits.test.inputs[:1], ["eleven"])
    with pytest.raises(RicnetError, match="2 inputs but 1 labels"):
        bare.calibrated(digits.test.inputs[:2], ["3"])
    with pytest.raises(RicnetError, match="no labelled examples"):
        calibration_of(model, digits.test.take(torch.arange(0)))


def test_examples_of_another_model_are_refused(model: Classifier) -> None:
    with pytest.raises(RicnetError, match="have classes that the model lacks"):
        set_rule(replace(model, class_names=model.class_names[:9]), 0.9)


def test_another_readout_is_refused(model: Classifier) -> None:
    other = replace(model, method=replace(model.method, readout="mu"))
    with pytest.raises(RicnetError, match=r"holds for the --readout of the run only"):
        set_rule(other, 0.9)


def test_exits_of_limited_loss(model: Classifier) -> None:
    frugal, exits = control_exits(model, 0.05, 0.9)
    assert exits.chosen is not None
    assert exits.chosen == [each for each in exits.tested if each.accepted][-1]
    assert frugal.method.halt_threshold == exits.chosen.threshold
    found = require_calibration(model, "this")
    stops = found.stops(frugal.method)
    assert exits.mean_steps == stops.mean()
    lost = (found.answer[-1] == found.labels) & (found.at(found.answer, stops) != found.labels)
    assert exits.chosen.risk == lost.mean() <= 0.05
    with pytest.raises(RicnetError, match=r"--max-loss 0\.001 with --probability 0\.95 needs at least 2,995"):
        control_exits(model, 0.001)


def test_thresholds_for_budgets_are_tested_from_expensive_to_cheap(model: Classifier) -> None:
    points = [OperatingPoint(threshold, cost, 0.9, 0.5) for threshold, cost in ((0.3, 0.2), (-0.1, 1.0), (0.03, 0.5))]
    _, exits = control_exits(replace(model, budgets=tuple(points)), 0.05, 0.9)
    assert [each.threshold for each in exits.tested] == [-0.1, 0.03, 0.3]


def test_a_model_halts_at_exactly_the_threshold() -> None:
    path = Trajectory(torch.tensor([[[0.0, -40.0]], [[0.0, -40.0]]]), torch.tensor([1]), costs=(0.5, 1.0))
    found = Calibration.of(path, path.halt_step, torch.tensor([0]))
    assert found.stops(Supervised(confidence_threshold=1.0)).tolist() == [1]
    assert found.stops(Supervised()).tolist() == [2]


def test_answers_of_limited_error(model: Classifier) -> None:
    chosen = control_abstention(model, 0.1, 0.9)
    found = require_calibration(model, "this")
    stops = found.stops(model.method)
    answered = found.at(found.confidence, stops) >= chosen.threshold
    wrong = found.at(found.answer, stops) != found.labels
    assert (chosen.n, chosen.risk) == (answered.sum(), wrong[answered].mean())
    with pytest.raises(RicnetError, match="needs at least"):
        control_abstention(model, 0.0001)


def test_damage_is_noticed(run: Path, digits: Dataset, tmp_path: Path) -> None:
    run = shutil.copytree(run, tmp_path / "digits")
    model, path = ricnet.load(run), RunFolder(run).guarantees
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(RicnetError, match="was changed or damaged"):
        set_rule(model, 0.9)
    RunFolder(run).manifest.unlink()
    for name, other in (("labels", np.zeros(2)), ("rank", np.zeros((4, 2))), ("probability", np.full((4, 2), np.nan))):
        arrays = dict(np.load(io.BytesIO(whole)))
        np.savez(path, **arrays | {name: np.resize(other, arrays[name].shape)})
        with pytest.raises(RicnetError, match=f"is damaged .{name}"):
            read_calibration(run)
    assert digits.calibration is not None
    assert len(calibrate(model, digits.calibration.take(torch.arange(30)))) == 30  # lists it in the manifest again
    with pytest.raises(RicnetError, match=r"coverage 0\.99 needs at least 99 calibration examples and there are 30"):
        set_rule(model, 0.99)


def test_exported_rules_are_those_of_the_model(model: Classifier) -> None:
    from ricnet.models.onnx import metadata

    rules = json.loads(metadata(model, 4)["prediction_sets"])
    own = set_rule(model, 0.95, max_steps=4).to_json()
    assert rules["0.95"] == json.loads(json.dumps(own))
    assert "prediction_sets" not in metadata(replace(model, folder=None), 4)
    with pytest.raises(RicnetError, match="--max-steps 5 is more than the 4 steps of the calibration data"):
        set_rule(model, 0.9, max_steps=5)


def test_the_report_shows_guarantees_beside_measurements(run: Path, tmp_path: Path) -> None:
    from ricnet.report.page import render
    from ricnet.report.runs import group_seeds, read_run

    entry = json.loads(RunFolder(run).promises.read_text())
    assert [one["coverage"] for one in entry["sets"]] == [0.9, 0.95, 0.99]
    for one in entry["exits"]:
        assert 0 <= one["measured"] <= 1
        assert one["bound"] > 0
    assert entry["exits"][0]["mean_steps"] >= entry["exits"][-1]["mean_steps"]
    html = render(group_seeds([read_run(run)]), [])
    assert "What is guaranteed" in html
    assert "Answers lost, 95 % bound".replace(" %", "\N{NO-BREAK SPACE}%") in html
    assert "measured, not guaranteed" in html
    damaged = without_manifest(shutil.copytree(run, tmp_path / "digits"))
    RunFolder(damaged).promises.write_text("{}")
    with pytest.raises(RicnetError, match="is damaged"):
        render(group_seeds([read_run(damaged)]), [])


def test_a_shared_model_keeps_its_guarantees(model: Classifier, digits: Dataset, tmp_path: Path) -> None:
    shared = ricnet.load(model.save_pretrained(tmp_path / "shared"))
    assert shared.predict_set(digits.test.inputs[:20], 0.9) == model.predict_set(digits.test.inputs[:20], 0.9)
