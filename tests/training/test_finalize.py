import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ricnet.apps.commands.evaluate import adjust
from ricnet.apps.hub import save_pretrained
from ricnet.apps.onnx import network_to_trace
from ricnet.apps.server.limits import Limits
from ricnet.apps.server.responses import describe
from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import read_predictions
from ricnet.methods import METHODS
from ricnet.studies.runner import derive
from ricnet.training.api import configure, run, train_in_memory
from ricnet.training.classifier import Classifier, load
from ricnet.training.config import stripped
from ricnet.training.console import chosen_words
from ricnet.training.presets import TYPICAL, preset
from ricnet.training.run import RunFolder

CPU = torch.device("cpu")


def finished_run(dataset: Dataset, folder: Path, method: str = "ric", **changes: object) -> RunFolder:
    """With nothing fitted on validation data unless asked for."""
    raw = {"calibration": "none", "halt_rule": "value"}
    config = configure(dataset, method, "fast", **{"epochs": 2, "batch_size": 32, **raw, **changes})
    run(config, dataset, RunFolder(folder), CPU)
    return RunFolder(folder)


def test_a_temperature_is_fitted_on_validation_data_saved_and_applied(dataset: Dataset, tmp_path: Path) -> None:
    plain = finished_run(dataset, tmp_path / "plain", "supervised")
    scaled = finished_run(dataset, tmp_path / "scaled", "supervised", calibration="temperature")
    fit = json.loads(scaled.calibration.read_text())
    assert fit["split"] == "val"
    assert fit["n"] == len(dataset.val)
    before, after = (json.loads(folder.evaluation.read_text()) for folder in (plain, scaled))
    assert before["val"]["nll"] == pytest.approx(fit["nll_before"], abs=1e-6)
    assert after["val"]["nll"] == pytest.approx(fit["nll_after"], abs=1e-6)
    assert after["test"]["accuracy"] == before["test"]["accuracy"]

    classifier = load(scaled.path)
    assert classifier.temperature == fit["temperature"] != 1
    answer = classifier.refine(dataset.test.inputs)
    np.testing.assert_allclose(answer.final.numpy(), read_predictions(scaled.path).log_beliefs, atol=1e-5)
    expected = (load(plain.path).refine(dataset.test.inputs).final / fit["temperature"]).log_softmax(-1)
    torch.testing.assert_close(answer.final, expected)


def test_a_calibrated_run_without_its_temperature_says_so(dataset: Dataset, tmp_path: Path) -> None:
    folder = finished_run(dataset, tmp_path / "run", "supervised", calibration="temperature")
    folder.calibration.write_text('{"temperature": -1}')
    with pytest.raises(RicnetError, match=r"calibration\.json holds no temperature"):
        load(folder.path)
    folder.calibration.unlink()
    with pytest.raises(RicnetError, match=r"calibration\.json cannot be read"):
        load(folder.path)


def test_a_derived_run_has_the_same_weights_and_other_answers(dataset: Dataset, tmp_path: Path) -> None:
    source = finished_run(dataset, tmp_path / "run")
    config = load(source.path).config
    config = replace(config, method=replace(config.method, readout="implied"), calibration="temperature")
    folder = RunFolder(tmp_path / "derived")
    derive(source, config, dataset, folder, CPU)
    assert folder.model.read_bytes() == source.model.read_bytes()
    assert folder.metrics.read_bytes() == source.metrics.read_bytes()
    assert json.loads(folder.config.read_text())["derived_from"] == "run"
    ours, theirs = (json.loads(f.evaluation.read_text()) for f in (folder, source))
    assert ours["selected_epoch"] == theirs["selected_epoch"]
    assert ours["test"]["nll"] != theirs["test"]["nll"]
    assert ours["test"]["mean_steps"] == theirs["test"]["mean_steps"]


def test_only_what_acts_after_training_may_differ(dataset: Dataset, tmp_path: Path) -> None:
    source = finished_run(dataset, tmp_path / "run")
    config = load(source.path).config
    other = replace(config, method=replace(config.method, gamma=0.5))
    with pytest.raises(RicnetError, match="trained with other settings"):
        derive(source, other, dataset, RunFolder(tmp_path / "derived"), CPU)
    assert not (tmp_path / "derived").exists()
    assert stripped(replace(config, method=replace(config.method, readout="mu", halt_threshold=0.5))) == config


def test_curves_of_train_and_test_are_measured_on_request(dataset: Dataset, tmp_path: Path) -> None:
    folder = finished_run(dataset, tmp_path / "run", "supervised", measure_all=True)
    plain = finished_run(dataset, tmp_path / "plain", "supervised")
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert all(line["train_eval"].keys() == line["test"].keys() == line["val"].keys() for line in lines)
    assert "test" not in json.loads(plain.metrics.read_text().splitlines()[0])
    assert folder.model.read_bytes() == plain.model.read_bytes()
    evaluation = json.loads(folder.evaluation.read_text())
    chosen = lines[evaluation["selected_epoch"] - 1]
    assert chosen["test"]["nll"] == pytest.approx(evaluation["test"]["nll"], abs=1e-6)


def test_long_runs_measure_everything_now_and_then_and_at_the_end(dataset: Dataset, tmp_path: Path) -> None:
    folder = finished_run(dataset, tmp_path, "supervised", epochs=5, measure_all=True, measure_every=2)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines if "test" in line] == [2, 4, 5]


def test_an_input_that_overflows_the_network_is_named_and_the_model_kept(dataset: Dataset, tmp_path: Path) -> None:
    wild = replace(dataset.test, inputs=dataset.test.inputs.clone())
    wild.inputs[7] = 3e38
    with pytest.raises(RicnetError, match=r"the answer to 1 of 60 test rows is NaN.*model is in .*model\.safetensors"):
        finished_run(replace(dataset, test=wild), tmp_path, horizon=3)
    assert load(tmp_path).refine(dataset.test.inputs).final.isfinite().all()
    assert not (tmp_path / "evaluation.json").exists()


def trained(dataset: Dataset, folder: Path, method: str = "ric", **changes: object) -> RunFolder:
    run(configure(dataset, method, "fast", epochs=2, batch_size=32, **changes), dataset, RunFolder(folder), CPU)
    return RunFolder(folder)


@pytest.fixture(scope="module")
def fitted(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """With all that is fitted by default; tests read it and leave it alone."""
    return trained(dataset, tmp_path_factory.mktemp("fitted") / "run")


@pytest.fixture(scope="module")
def plain(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same training, with nothing fitted after it."""
    return trained(dataset, tmp_path_factory.mktemp("plain") / "run", calibration="none", halt_rule="value")


def test_fast_fits_on_validation_data_and_paper_does_not() -> None:
    fast, paper = (preset(name, "ric", TYPICAL) for name in ("fast", "paper"))
    assert (fast.calibration, fast.halt_rule, fast.chooses_halt) == ("auto", "auto", True)
    assert (paper.calibration, paper.halt_rule, paper.chooses_halt) == ("none", "value", False)
    assert not preset("fast", "supervised", TYPICAL).chooses_halt
    assert not replace(fast, method=replace(fast.method, halt_threshold=0.1)).chooses_halt  # the user's own wins
    assert stripped(fast) == replace(fast, calibration="none", halt_rule="value")


def test_the_halt_is_no_worse_than_the_best_step_on_validation_data(fitted: RunFolder) -> None:
    evaluation = json.loads(fitted.evaluation.read_text())
    rule = json.loads(fitted.halting.read_text())
    val = evaluation["val"]
    assert val["nll"] <= min(step["nll"] for step in val["per_step"]) + 5.1e-5
    assert val["nll"] == pytest.approx(rule["nll"], abs=1e-6)
    assert val["mean_steps"] == pytest.approx(rule["mean_steps"])
    assert len(val["per_step"]) == 5  # later steps are measured all the same
    assert evaluation["fitted"]["halting"]["max_steps"] == rule["max_steps"]
    temperature, halt = chosen_words(evaluation)
    assert temperature.startswith("temperature ")
    assert halt.startswith("stops ")
    assert f"{rule['nll']:.4f}" in halt


def test_raw_numbers_are_those_of_a_run_with_nothing_fitted(fitted: RunFolder, plain: RunFolder) -> None:
    raw, as_trained = (json.loads(each.evaluation.read_text()) for each in (fitted, plain))
    assert raw["raw"] == {split: as_trained[split] for split in ("train", "val", "test")}
    assert "raw" not in as_trained
    assert as_trained["fitted"] == {}
    assert fitted.model.read_bytes() == plain.model.read_bytes()
    assert not plain.halting.exists()
    assert not plain.calibration.exists()


@pytest.fixture
def limited(fitted: RunFolder, tmp_path: Path) -> Path:
    """A run that stops after three steps at the latest, and is tempered."""
    folder = RunFolder(shutil.copytree(fitted.path, tmp_path / "run"))
    rule = json.loads(folder.halting.read_text()) | {"halt_threshold": -0.25, "max_steps": 3}
    folder.halting.write_text(json.dumps(rule))
    folder.calibration.write_text(json.dumps({"temperature": 1.5}))
    return folder.path


def test_a_loaded_model_stops_as_was_chosen(limited: Path, dataset: Dataset) -> None:
    model = load(limited)
    assert (model.method.halt_threshold, model.method.horizon, model.temperature) == (-0.25, 3, 1.5)
    path, inputs = model.refine(dataset.test.inputs), dataset.test.inputs
    assert path.steps == 3
    raw = model.config.method.refine(model.model, inputs)
    halts = [next((n for n in (1, 2) if raw.values[n, i] < -0.25), 3) for i in range(len(inputs))]  # type: ignore[index]
    assert path.halt_step.tolist() == halts
    expected = (raw.log_beliefs[path.halt_step - 1, torch.arange(len(inputs))] / 1.5).log_softmax(-1)
    torch.testing.assert_close(path.final, expected)
    assert model.refine(inputs, max_steps=20).steps == 20  # who asks for more gets more
    assert adjust(model, 0.0, None).method == model.config.method  # the paper's rule again, with all its steps


def test_a_fitted_run_answers_as_it_was_measured(fitted: RunFolder, dataset: Dataset) -> None:
    path, kept = load(fitted.path).refine(dataset.test.inputs), read_predictions(fitted.path)
    assert path.halt_step.tolist() == kept.halt_step.tolist()
    np.testing.assert_allclose(path.final.numpy(), kept.log_beliefs, atol=1e-5)
    assert path.cell_evaluations.tolist() == kept.cell_evaluations.tolist()


def test_server_file_and_shared_folder_stop_as_was_chosen(limited: Path, tmp_path: Path, dataset: Dataset) -> None:
    model = load(limited)
    about = describe(model, "run", Limits())
    assert (about["horizon"], about["halt_threshold"]) == (3, -0.25)
    shared = load(save_pretrained(model, tmp_path / "shared"))
    assert (shared.config.method, shared.method, shared.temperature) == (model.config.method, model.method, 1.5)
    once_more = load(save_pretrained(replace(model, method=model.config.method), tmp_path / "raw"))
    assert once_more.method == model.config.method
    network, _ = network_to_trace(model, None, None)
    assert (network.steps, network.method.halt_threshold, network.temperature) == (3, -0.25, 1.5)


def test_an_unfinished_run_answers_as_trained_and_a_damaged_one_says_so(limited: Path) -> None:
    rule = RunFolder(limited).halting
    rule.write_text('{"halt_threshold": "low", "max_steps": 3}')
    with pytest.raises(RicnetError, match=r"halting\.json holds no rule"):
        load(limited)
    rule.write_text('{"halt_threshold": 0.1, "max_steps": 0}')
    with pytest.raises(RicnetError, match=r"halting\.json holds a rule that cannot be"):
        load(limited)
    rule.unlink()
    with pytest.raises(RicnetError, match=r"halting\.json cannot be read"):
        load(limited)
    RunFolder(limited).calibration.unlink()
    RunFolder(limited).evaluation.unlink()
    model = load(limited)
    assert (model.method, model.temperature) == (model.config.method, 1.0)


def test_in_memory_too(dataset: Dataset) -> None:
    config = configure(dataset, "ric", "fast", epochs=1, batch_size=32, calibration="temperature")
    model: Classifier = train_in_memory(config, dataset, CPU)[0]
    path = model.refine(dataset.val.inputs)
    score = -path.final[torch.arange(len(dataset.val)), dataset.val.labels].double().mean()
    every = (config.method.refine(model.model, dataset.val.inputs).log_beliefs / model.temperature).log_softmax(-1)
    steps = -every[:, torch.arange(len(dataset.val)), dataset.val.labels].double().mean(1)
    assert model.temperature != 1
    assert float(score) <= float(steps.min()) + 1e-6


def test_a_derived_run_chooses_for_itself(plain: RunFolder, dataset: Dataset, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "chosen")
    derive(plain, replace(load(plain.path).config, halt_rule="auto"), dataset, folder, CPU)
    assert folder.halting.is_file()
    assert folder.model.read_bytes() == plain.model.read_bytes()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_can_be_fitted_whether_or_not_it_stops_by_a_value(
    method: str, dataset: Dataset, tmp_path: Path
) -> None:
    config = configure(dataset, method, "fast", epochs=1, batch_size=32)
    assert config.chooses_halt == (method == "ric")
    run(config, dataset, RunFolder(tmp_path), torch.device("cpu"))
    assert load(tmp_path).predict_proba(dataset.test.inputs.numpy()).shape[1] == len(dataset.class_names)
