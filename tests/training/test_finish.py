"""Results of a finished run: calibration on validation data, scores with and without it, derived models."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from made_runs import without_manifest
from problems import CPU, PARTS, MadeOnce, configured, read, read_lines
from refusals import cases, refusal
from ricnet.apps.commands.decisions import adjust
from ricnet.apps.server.limits import Limits
from ricnet.apps.server.responses import describe
from ricnet.data import Dataset
from ricnet.evaluation import choices
from ricnet.evaluation.choices import chosen_words
from ricnet.evaluation.evaluate import read_predictions
from ricnet.methods import METHODS
from ricnet.models.config import stripped
from ricnet.models.hub import save_pretrained
from ricnet.models.loading import load
from ricnet.models.onnx import network_to_trace
from ricnet.models.run import RunFolder
from ricnet.studies.runner import derive
from ricnet.training.api import run, train_in_memory
from ricnet.training.recipes import TYPICAL, preset

RAW = {"calibration": "none", "halt_rule": "value"}
"""Nothing is fitted on validation data."""


@pytest.fixture(scope="module", autouse=True)
def _few_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "enough_to_choose", lambda correct: True)
        patch.setattr(choices.Gain, "is_shown", lambda gain, alternatives: True)
        yield


@pytest.fixture(scope="module")
def plain(dataset: Dataset, made_once: MadeOnce) -> Callable[[str], RunFolder]:
    """A run of a method with nothing fitted after training; tests read it and leave it alone."""

    def train(folder: Path, method: str) -> None:
        steps = {"horizon": 5} if method.startswith("ric") else {}
        run(configured(dataset, method, **steps, **RAW), dataset, RunFolder(folder / "run"), CPU)

    return cache(lambda method: RunFolder(made_once(f"raw {method}", lambda folder: train(folder, method)) / "run"))


@pytest.fixture(scope="module")
def fitted(dataset: Dataset, made_once: MadeOnce) -> RunFolder:
    """The same training of RIC, with all that is fitted by default."""
    config = configured(dataset, horizon=5)
    made = made_once("fitted", lambda folder: run(config, dataset, RunFolder(folder / "run"), CPU))
    return RunFolder(made / "run")


def test_a_temperature_is_fitted_on_validation_data_saved_and_applied(
    plain: Callable[[str], RunFolder], dataset: Dataset, tmp_path: Path
) -> None:
    raw, scaled = plain("supervised"), RunFolder(tmp_path)
    run(configured(dataset, "supervised", calibration="temperature"), dataset, scaled, CPU)
    fit, before, after = read(scaled.calibration), read(raw.evaluation), read(scaled.evaluation)
    assert (fit["split"], fit["n"]) == ("val", len(dataset.val))
    assert before["val"]["nll"] == pytest.approx(fit["nll_before"], abs=1e-6)
    assert after["val"]["nll"] == pytest.approx(fit["nll_after"], abs=1e-6)
    assert after["test"]["accuracy"] == before["test"]["accuracy"]
    classifier = load(scaled.path)
    assert classifier.temperature == fit["temperature"] != 1
    answer = classifier.refine(dataset.test.inputs)
    np.testing.assert_allclose(answer.final.numpy(), read_predictions(scaled.path).log_beliefs, atol=1e-5)
    expected = (load(raw.path).refine(dataset.test.inputs).final / fit["temperature"]).log_softmax(-1)
    torch.testing.assert_close(answer.final, expected)
    scaled.calibration.write_text('{"temperature": -1}')
    with refusal(scaled.calibration):
        load(scaled.path)
    scaled.calibration.unlink()
    with refusal(scaled.calibration):
        load(scaled.path)


def test_a_derived_run_has_the_same_weights_and_other_answers(
    plain: Callable[[str], RunFolder], dataset: Dataset, tmp_path: Path
) -> None:
    source, folder = plain("ric-on-policy"), RunFolder(tmp_path / "derived")
    config = load(source.path).config
    with refusal("other settings"):
        derive(source, replace(config, method=replace(config.method, gamma=0.5)), dataset, folder, CPU)
    assert not folder.path.exists()
    assert stripped(replace(config, method=replace(config.method, readout="mu", halt_threshold=0.5))) == config
    method = replace(config.method, readout="implied")
    derive(source, replace(config, method=method, calibration="temperature"), dataset, folder, CPU)
    assert folder.model.read_bytes() == source.model.read_bytes()
    assert folder.metrics.read_bytes() == source.metrics.read_bytes()
    assert read(folder.config)["derived_from"] == "run"
    ours, theirs = read(folder.evaluation), read(source.evaluation)
    assert ours["selected_epoch"] == theirs["selected_epoch"]
    assert ours["test"]["nll"] != theirs["test"]["nll"]
    assert ours["test"]["mean_steps"] == theirs["test"]["mean_steps"]
    chosen = RunFolder(tmp_path / "chosen")
    derive(source, replace(config, halt_rule="auto"), dataset, chosen, CPU)  # it chooses for itself
    assert chosen.halting.is_file()


def test_curves_of_train_and_test_are_measured_on_request_now_and_then_and_at_the_end(
    plain: Callable[[str], RunFolder], dataset: Dataset, tmp_path: Path
) -> None:
    every, now_and_then = RunFolder(tmp_path / "every"), RunFolder(tmp_path / "now and then")
    run(configured(dataset, "supervised", measure_all=True, **RAW), dataset, every, CPU)
    assert every.model.read_bytes() == plain("supervised").model.read_bytes()
    lines, evaluation = read_lines(every.path), read(every.evaluation)
    assert all(line["train_eval"].keys() == line["test"].keys() == line["val"].keys() for line in lines)
    assert "test" not in read_lines(plain("supervised").path)[0]
    chosen = lines[evaluation["selected_epoch"] - 1]
    assert chosen["test"]["nll"] == pytest.approx(evaluation["test"]["nll"], abs=1e-6)
    run(configured(dataset, "supervised", epochs=5, measure_all=True, measure_every=2), dataset, now_and_then, CPU)
    assert [line["epoch"] for line in read_lines(now_and_then.path) if "test" in line] == [2, 4, 5]


def test_an_input_that_overflows_the_network_is_named_and_the_model_kept(dataset: Dataset, tmp_path: Path) -> None:
    wild = replace(dataset.test, inputs=dataset.test.inputs.clone())
    wild.inputs[7] = 3e38
    with refusal("1 of 60 test rows", "NaN", tmp_path / "model.safetensors"):
        run(configured(dataset, width=1.0, encoder="mlp", **RAW), replace(dataset, test=wild), RunFolder(tmp_path), CPU)
    assert load(tmp_path).refine(dataset.test.inputs).final.isfinite().all()
    assert not (tmp_path / "evaluation.json").exists()


def test_fast_fits_on_validation_data_and_paper_does_not() -> None:
    fast, paper = (preset(name, "ric", TYPICAL) for name in ("fast", "paper"))
    assert (fast.calibration, fast.halt_rule, fast.chooses_halt) == ("auto", "auto", True)
    assert (paper.calibration, paper.halt_rule, paper.chooses_halt) == ("none", "value", False)
    assert not preset("fast", "supervised", TYPICAL).chooses_halt
    assert not replace(fast, method=replace(fast.method, halt_threshold=0.1)).chooses_halt  # the user's own wins
    assert stripped(fast) == replace(fast, **RAW)


def test_reported_results_use_the_chosen_calibration(fitted: RunFolder) -> None:
    evaluation, rule = read(fitted.evaluation), read(fitted.halting)
    val = evaluation["val"]
    assert val["nll"] == pytest.approx(read(fitted.calibration)["nll_after"], abs=1e-6)
    assert val["mean_steps"] == pytest.approx(rule["mean_steps"])
    assert len(val["per_step"]) == 5  # later steps are measured all the same
    assert evaluation["fitted"]["halting"]["max_steps"] == rule["max_steps"]
    temperature, halt = chosen_words(evaluation)
    assert temperature.startswith("temperature")
    assert halt.startswith("halting")


def test_raw_numbers_are_those_of_a_run_with_nothing_fitted(
    fitted: RunFolder, plain: Callable[[str], RunFolder]
) -> None:
    raw, as_trained = read(fitted.evaluation), read(plain("ric-on-policy").evaluation)
    assert raw["raw"] == {split: as_trained[split] for split in PARTS}
    assert "raw" not in as_trained
    assert as_trained["fitted"] == {}
    assert fitted.model.read_bytes() == plain("ric-on-policy").model.read_bytes()
    assert not plain("ric-on-policy").halting.exists()
    assert not plain("ric-on-policy").calibration.exists()


def test_a_fitted_run_answers_as_it_was_measured(fitted: RunFolder, dataset: Dataset) -> None:
    path, kept = load(fitted.path).refine(dataset.test.inputs), read_predictions(fitted.path)
    assert path.halt_step.tolist() == kept.halt_step.tolist()
    np.testing.assert_allclose(path.final.numpy(), kept.log_beliefs, atol=1e-5)
    assert path.cell_evaluations.tolist() == kept.cell_evaluations.tolist()


@pytest.fixture
def limited(fitted: RunFolder, tmp_path: Path) -> Path:
    """A run that stops after three steps at the latest, and is tempered."""
    folder = RunFolder(without_manifest(shutil.copytree(fitted.path, tmp_path / "run")))
    folder.halting.write_text(json.dumps(read(folder.halting) | {"halt_threshold": -0.25, "max_steps": 3}))
    folder.calibration.write_text(json.dumps({"temperature": 1.5}))
    return folder.path


def test_a_loaded_model_stops_as_was_chosen(limited: Path, dataset: Dataset) -> None:
    model, inputs = load(limited), dataset.test.inputs
    assert (model.method.halt_threshold, model.method.horizon, model.temperature) == (-0.25, 3, 1.5)
    path, raw = model.refine(inputs), model.config.method.refine(model.model, inputs)
    assert path.steps == 3
    halts = [next((n for n in (1, 2) if raw.values[n, i] < -0.25), 3) for i in range(len(inputs))]
    assert path.halt_step.tolist() == halts
    expected = (raw.log_beliefs[path.halt_step - 1, torch.arange(len(inputs))] / 1.5).log_softmax(-1)
    torch.testing.assert_close(path.final, expected)
    assert model.refine(inputs, max_steps=20).steps == 20  # who asks for more gets more
    assert adjust(model, 0.0, None).method == model.config.method  # the paper's rule again, with all its steps


def test_server_file_and_shared_folder_stop_as_was_chosen(limited: Path, tmp_path: Path) -> None:
    model = load(limited)
    about = describe(model, "run", Limits())
    assert (about["horizon"], about["halt_threshold"]) == (3, -0.25)
    shared = load(save_pretrained(model, tmp_path / "shared"))
    assert (shared.config.method, shared.method, shared.temperature) == (model.config.method, model.method, 1.5)
    once_more = load(save_pretrained(replace(model, method=model.config.method), tmp_path / "raw"))
    assert once_more.method == model.config.method
    network, _ = network_to_trace(model, None, None)
    assert (network.steps, network.method.halt_threshold, network.temperature) == (3, -0.25, 1.5)


@pytest.mark.parametrize(
    "content",
    cases(
        {
            "a text as threshold": '{"halt_threshold": "low", "max_steps": 3}',
            "no steps": '{"halt_threshold": 0.1, "max_steps": 0}',
            "missing": None,
        }
    ),
)
def test_a_halting_rule_that_cannot_be_read_is_refused(limited: Path, content: str | None) -> None:
    path = RunFolder(limited).halting
    path.unlink()
    if content is not None:
        path.write_text(content)
    with refusal(path):
        load(limited)


def test_an_unfinished_run_is_uncalibrated(limited: Path) -> None:
    folder = RunFolder(limited)
    folder.halting.unlink()
    folder.calibration.unlink()
    folder.evaluation.unlink()
    model = load(limited)
    assert (model.method, model.temperature) == (model.config.method, 1.0)


def test_in_memory_too(dataset: Dataset) -> None:
    config, val = configured(dataset, epochs=20, width=0.5, calibration="temperature"), dataset.val
    model, rows = train_in_memory(config, dataset, CPU)[0], torch.arange(len(val))
    path = model.refine(val.inputs)
    every = (config.method.refine(model.model, val.inputs).log_beliefs / model.temperature).log_softmax(-1)
    assert model.temperature != 1
    torch.testing.assert_close(path.final, every[path.halt_step - 1, rows])


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_can_be_fitted_whether_or_not_it_stops_by_a_value(
    method: str, dataset: Dataset, finished: Callable[[str], RunFolder]
) -> None:
    assert configured(dataset, method).chooses_halt == method.startswith("ric")
    assert load(finished(method).path).predict_proba(dataset.test.inputs.numpy()).shape[1] == len(dataset.class_names)
