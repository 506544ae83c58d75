from pathlib import Path

import pytest

from make_pretrained import card
from ricnet.report.runs import RunRecord, read_run

from .conftest import MakeRun, rewrite


@pytest.fixture
def run(make_run: MakeRun) -> RunRecord:
    settings = {"epochs": 40, "batch_size": 128, "optimizer": "adamw", "lr": 0.003}
    folder = make_run(data="cifar10", optimization=settings, network={"encoder": "resnet18", "width": 0.25})
    (folder / "model.safetensors").write_bytes(bytes(2_500_000))
    return read_run(folder)


def test_the_numbers_are_those_of_the_evaluation(run: RunRecord) -> None:
    text = card(run, "cifar10")
    assert f"| accuracy | {100 * run.test['accuracy']:.2f} % |" in text
    assert f"| calibration error (ECE, 15 bins) | {run.test['ece']:.3f} |" in text
    assert f"| NLL | {run.test['nll']:.3f} |" in text
    assert f"| steps on average | {run.test['mean_steps']:.1f} |" in text
    assert "| on 450 test examples | |" in text


def test_it_says_what_was_done_and_what_it_is_not_for(run: RunRecord) -> None:
    text = card(run, "cifar10")
    assert "ric predict pretrained:cifar10 photo.png" in text
    assert "resnet18 of width 0.25, 40 epochs of batches of 128, adamw at 0.003, seed 0" in text
    assert "of epoch 31, chosen on validation data. 61 seconds of training on a CPU" in text
    assert "2.5 MB" in text
    assert "1,212 to train on, 135 to choose the epoch, 450 to test" in text
    assert "Decide nothing about people by it" in text
    assert "near-duplicate" in text


def test_facts_of_one_data_set_are_not_told_of_another(run: RunRecord) -> None:
    rewrite(Path(run.path) / "config.json", lambda header: header["config"].update(data="digits"))
    assert "near-duplicate" not in card(read_run(run.path), "digits")
