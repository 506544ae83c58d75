import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ricnet.data import Dataset
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.errors import in_flags
from ricnet.training import console
from ricnet.training.classifier import Classifier
from ricnet.training.config import Config, Optimization
from ricnet.training.console import announcement, unfinished
from ricnet.training.presets import Facts, preset
from ricnet.training.run import RunFolder

GOOD = {"accuracy": 0.9, "mean_confidence": 0.88, "ece_signed": -0.02, "n": 1000, "nll": 0.05}
SHY = {"accuracy": 0.9, "mean_confidence": 0.6, "ece_signed": -0.3, "n": 1000, "nll": 0.05}


def advice(folder: RunFolder, config: Config, dataset: Dataset) -> list[str]:
    """As the command line says it."""
    return [in_flags(sentence) for sentence in console.advice(folder, config, dataset)]


def preface(config: Config, dataset: Dataset, known: Facts) -> list[str]:
    return [in_flags(sentence) for sentence in console.preface(config, dataset, known)]


def faster(config: Config, dataset: Dataset, device: torch.device) -> str | None:
    hint = console.faster(config, dataset, device)
    return hint and in_flags(hint)


def finished(path: Path, nll: list[float], **splits: dict[str, Any]) -> RunFolder:
    folder = RunFolder(path)
    folder.evaluation.write_text(json.dumps({"train": GOOD, "val": GOOD, "test": GOOD} | splits))
    folder.metrics.write_text("".join(json.dumps({"val": {"nll": value}}) + "\n" for value in nll))
    return folder


def of_epochs(epochs: int, **changes: Any) -> Config:
    return Config(optimization=Optimization(epochs=epochs), **changes)


def test_a_good_run_is_given_no_advice(dataset: Dataset, tmp_path: Path) -> None:
    assert advice(finished(tmp_path, [1.0, 0.5, 0.3, 0.299]), of_epochs(4), dataset) == []
    assert advice(finished(tmp_path, [1.0]), of_epochs(1), dataset) == []


def test_a_run_that_still_improved_should_be_longer(dataset: Dataset, tmp_path: Path) -> None:
    course = [1 / (1 + epoch) for epoch in range(20)]
    (hint,) = advice(finished(tmp_path, course), of_epochs(20), dataset)
    before, after = (1 / 17 + 1 / 18) / 2, (1 / 19 + 1 / 20) / 2
    assert hint.startswith(f"hint: validation NLL was still falling in the last 2 epochs ({before:.3f} to {after:.3f})")
    assert "--epochs 40 (with --overwrite, or another --out)." in hint
    assert advice(finished(tmp_path, course), of_epochs(30), dataset) == []  # patience had it end here


def test_a_run_surer_of_itself_by_training_longer_or_by_a_temperature(dataset: Dataset, tmp_path: Path) -> None:
    (hint,) = advice(finished(tmp_path, [0.5, 0.5], train=SHY, val=SHY), of_epochs(2), dataset)
    assert "validation accuracy 90.0%, mean confidence 60.0%" in hint
    assert "--epochs 4" in hint
    assert "--calibration temperature" in hint
    fitted = of_epochs(2, calibration="temperature")
    assert "--calibration" not in advice(finished(tmp_path, [0.5, 0.5], train=SHY, val=SHY), fitted, dataset)[0]
    assert advice(finished(tmp_path, [0.5, 0.5], val=SHY), of_epochs(2), dataset) == []


def test_a_run_surer_than_it_is_right_is_told_so(dataset: Dataset, tmp_path: Path) -> None:
    """64 % right and 97 % sure, as a table of 1,000 rows once was; on few rows a little of that is chance."""
    bold = GOOD | {"accuracy": 0.64, "mean_confidence": 0.97, "ece_signed": 0.33}
    (hint,) = advice(finished(tmp_path, [0.5, 0.5], val=bold), of_epochs(2), dataset)
    assert "surer than it is right (validation accuracy 64.0%, mean confidence 97.0%)" in hint
    assert "--calibration temperature" in hint
    assert "--weight-decay (now 0.05)" in hint
    lucky = GOOD | {"accuracy": 0.8, "mean_confidence": 0.9, "ece_signed": 0.1, "n": 60}  # error of .8: .052
    assert advice(finished(tmp_path, [0.5, 0.5], val=lucky), of_epochs(2), dataset) == []


def test_a_run_that_over_fits_is_told_so(dataset: Dataset, tmp_path: Path) -> None:
    known, new = GOOD | {"accuracy": 0.979, "nll": 0.1}, GOOD | {"accuracy": 0.72, "nll": 0.16}
    (hint,) = advice(finished(tmp_path, [0.5, 0.5], train=known, val=new), of_epochs(2), dataset)
    assert "it over-fits: accuracy is 97.9% on training and 72.0% on validation data, NLL 0.100 and 0.160;" in hint
    assert "lower --width (now 1) or --epochs (now 2)" in hint


def test_where_a_logistic_regression_is_as_good_it_is_said(dataset: Dataset, tmp_path: Path) -> None:
    """Its NLL by an implementation of our own: three classes, one linear layer, the pull that scikit-learn has."""
    train, val = dataset.train, dataset.val
    mean, std = train.inputs.mean(0), train.inputs.std(0, correction=0)
    layer = torch.nn.Linear(4, 3)
    steps = torch.optim.LBFGS(layer.parameters(), max_iter=500, tolerance_change=1e-12)

    def loss() -> torch.Tensor:
        steps.zero_grad()
        fit = torch.nn.functional.cross_entropy(layer((train.inputs - mean) / std), train.labels, reduction="sum")
        total = fit + layer.weight.square().sum() / 2
        total.backward()
        return total

    steps.step(loss)
    nll = torch.nn.functional.cross_entropy(layer((val.inputs - mean) / std), val.labels).item()
    (hint,) = advice(finished(tmp_path, [0.5, 0.5], val=GOOD | {"nll": nll + 0.01}), of_epochs(2), dataset)
    assert f"logistic regression has an NLL of {nll:.3f}, this network {nll + 0.01:.3f}" in hint
    assert advice(finished(tmp_path, [0.5, 0.5], val=GOOD | {"nll": nll - 0.01}), of_epochs(2), dataset) == []


@pytest.mark.parametrize(
    ("val", "test", "said"),
    [
        (49, 50, "only 49 validation rows chose the epoch, so chance decides much; collect more, or raise --val-"),
        (50, 49, "only 49 test rows gave these numbers, so chance decides much; collect more."),
        (7, 9, "only 7 validation rows chose the epoch and 9 test rows gave these numbers"),
    ],
)
def test_few_rows_to_judge_by_are_named(val: int, test: int, said: str, dataset: Dataset, tmp_path: Path) -> None:
    folder = finished(tmp_path, [0.5, 0.5], val=GOOD | {"n": val}, test=GOOD | {"n": test})
    (hint,) = advice(folder, of_epochs(2), dataset)
    assert said in hint


def test_the_announcement_says_what_is_learned_from_what(dataset: Dataset) -> None:
    config, cpu = of_epochs(3), torch.device("cpu")
    words = "training ric on 96 rows of 4 numbers, 3 classes, encoder mlp, 3 epochs, on cpu"
    assert announcement(config, dataset, cpu) == words
    assert "mlp, 1 epoch, on cpu" in announcement(of_epochs(1), dataset, cpu)
    own = replace(config, network=replace(config.network, encoder="custom"))
    assert "encoder of your own" in announcement(own, dataset, cpu)


def test_on_a_cpu_it_is_said_what_would_be_faster(dataset: Dataset, tmp_path: Path) -> None:
    cpu, config = torch.device("cpu"), of_epochs(500)
    assert faster(config, dataset, cpu) == "a smaller --width or fewer --epochs (now 500) is faster"
    assert faster(config, dataset, torch.device("cuda")) is None
    images = replace(dataset, train=replace(dataset.train, inputs=torch.zeros(96, 3, 128, 128, dtype=torch.uint8)))
    of_folder = replace(config, data=str(tmp_path))
    assert faster(of_folder, images, cpu) == (
        "a smaller --resolution (now 128), --width or fewer --epochs (now 500) is faster"
    )
    assert "--resolution" not in str(faster(replace(config, data="cifar10"), images, cpu))
    own = replace(config, network=replace(config.network, encoder="custom"))
    assert faster(own, dataset, cpu) == "fewer --epochs (now 500) are faster"
    patient = replace(config, optimization=replace(config.optimization, patience=9))
    assert str(faster(patient, dataset, cpu)).endswith("is faster, and --patience may end it sooner")


def test_it_is_said_what_was_decided_for_photographs_and_for_a_cpu(dataset: Dataset) -> None:
    """The words for a GPU are those of the presets for one; whoever chose a network is not told of others."""
    shape = (96, 3, 128, 128)
    photos = replace(
        dataset,
        train=replace(dataset.train, inputs=torch.zeros(shape, dtype=torch.uint8)),
        augmentation=PHOTOGRAPHS,
    )
    known = Facts(96, 3, 128, "cpu")
    config = preset("fast", "ric", known)
    note, hint = preface(config, photos, known)
    assert note.startswith("note: images in colour above 48 pixels are taken for photographs")
    assert "--no-augment" in note
    gpu = preset("fast", "ric", replace(known, device="cuda"))
    assert f"for a GPU `fast` would have --encoder resnet10 --width 0.5 --epochs {gpu.optimization.epochs}" in hint
    assert "--preset paper has a resnet34 for 2000 epochs" in hint
    plain = replace(config, optimization=replace(config.optimization, augment=False))
    assert preface(plain, photos, known) == [hint]
    wide = replace(config, network=replace(config.network, width=1.0))
    assert preface(wide, photos, known) == [note]
    assert preface(gpu, photos, replace(known, device="cuda")) == [note]
    assert preface(of_epochs(3), dataset, Facts(96, 3, 0, "cpu")) == []


def of_run(folder: Path | None, epochs: int) -> Classifier:
    config = of_epochs(epochs)
    return Classifier(config, config.method, torch.nn.Identity(), (4,), ("a", "b"), folder=folder)


def test_an_unfinished_run_is_told_from_a_model_without_evaluation(tmp_path: Path) -> None:
    folder = finished(tmp_path, [1.0, 0.9, 0.8])
    assert unfinished(of_run(tmp_path, 60)) == []
    folder.evaluation.unlink()
    assert unfinished(of_run(tmp_path, 60)) == [
        f"note: {tmp_path} is not finished (epoch 3 of 60); this is the best so far. "
        f"Go on with: ric train --out {tmp_path} --resume"
    ]
    assert unfinished(of_run(tmp_path, 3)) == []
    folder.previous_state.touch()
    assert "(epoch 3 of 3)" in unfinished(of_run(tmp_path, 3))[0]
    folder.previous_state.unlink()
    folder.metrics.unlink()
    assert unfinished(of_run(tmp_path, 60)) == []  # as the Hub has them
    assert unfinished(of_run(None, 60)) == []


def test_a_run_no_better_than_one_answer_for_all_has_learned_nothing(dataset: Dataset, tmp_path: Path) -> None:
    folder = finished(tmp_path, [1.1, 1.0], train=GOOD | {"accuracy": 0.34})
    (hint,) = advice(folder, of_epochs(2), dataset)
    assert "always answering 'a' would be right for 33.3% of the training data, it is for 34.0%" in hint
    assert "--epochs 4" in hint
