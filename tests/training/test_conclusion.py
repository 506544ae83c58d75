import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.evaluation.predictions import read_predictions
from ricnet.training.api import configure, run
from ricnet.training.classifier import load
from ricnet.training.finalize import derive, stripped
from ricnet.training.run import RunFolder

CPU = torch.device("cpu")


def trained(dataset: Dataset, folder: Path, method: str = "ric", **changes: object) -> RunFolder:
    """With nothing fitted on validation data unless asked for."""
    raw = {"calibration": "none", "halt_rule": "value"}
    config = configure(dataset, method, "fast", **{"epochs": 2, "batch_size": 32, **raw, **changes})
    run(config, dataset, RunFolder(folder), CPU)
    return RunFolder(folder)


def test_a_temperature_is_fitted_on_validation_data_saved_and_applied(dataset: Dataset, tmp_path: Path) -> None:
    plain = trained(dataset, tmp_path / "plain", "supervised")
    scaled = trained(dataset, tmp_path / "scaled", "supervised", calibration="temperature")
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
    folder = trained(dataset, tmp_path / "run", "supervised", calibration="temperature")
    folder.calibration.write_text('{"temperature": -1}')
    with pytest.raises(RicnetError, match=r"calibration\.json holds no temperature"):
        load(folder.path)
    folder.calibration.unlink()
    with pytest.raises(RicnetError, match=r"calibration\.json cannot be read"):
        load(folder.path)


def test_a_derived_run_has_the_same_weights_and_other_answers(dataset: Dataset, tmp_path: Path) -> None:
    source = trained(dataset, tmp_path / "run")
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
    source = trained(dataset, tmp_path / "run")
    config = load(source.path).config
    other = replace(config, method=replace(config.method, gamma=0.5))
    with pytest.raises(RicnetError, match="trained with other settings"):
        derive(source, other, dataset, RunFolder(tmp_path / "derived"), CPU)
    assert not (tmp_path / "derived").exists()
    assert stripped(replace(config, method=replace(config.method, readout="mu", halt_threshold=0.5))) == config


def test_curves_of_train_and_test_are_measured_on_request(dataset: Dataset, tmp_path: Path) -> None:
    folder = trained(dataset, tmp_path / "run", "supervised", measure_all=True)
    plain = trained(dataset, tmp_path / "plain", "supervised")
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert all(line["train_eval"].keys() == line["test"].keys() == line["val"].keys() for line in lines)
    assert "test" not in json.loads(plain.metrics.read_text().splitlines()[0])
    assert folder.model.read_bytes() == plain.model.read_bytes()
    evaluation = json.loads(folder.evaluation.read_text())
    chosen = lines[evaluation["selected_epoch"] - 1]
    assert chosen["test"]["nll"] == pytest.approx(evaluation["test"]["nll"], abs=1e-6)


def test_long_runs_measure_everything_now_and_then_and_at_the_end(dataset: Dataset, tmp_path: Path) -> None:
    folder = trained(dataset, tmp_path, "supervised", epochs=5, measure_all=True, measure_every=2)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines if "test" in line] == [2, 4, 5]


def test_an_input_that_overflows_the_network_is_named_and_the_model_kept(dataset: Dataset, tmp_path: Path) -> None:
    wild = replace(dataset.test, inputs=dataset.test.inputs.clone())
    wild.inputs[7] = 3e38
    with pytest.raises(RicnetError, match=r"the answer to 1 of 60 test rows is NaN.*model is in .*model\.safetensors"):
        trained(replace(dataset, test=wild), tmp_path, horizon=3)
    assert load(tmp_path).refine(dataset.test.inputs).final.isfinite().all()
    assert not (tmp_path / "evaluation.json").exists()
