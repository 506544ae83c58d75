import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ricnet.data import Dataset
from ricnet.training.config import Config, Optimization
from ricnet.training.remarks import advice, announcement, in_python
from ricnet.training.run_folder import RunFolder

GOOD = {"accuracy": 0.9, "mean_confidence": 0.88, "ece_signed": -0.02, "n": 1000}
SHY = {"accuracy": 0.9, "mean_confidence": 0.6, "ece_signed": -0.3, "n": 1000}


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
    assert "--epochs 40" in hint
    assert advice(finished(tmp_path, course), of_epochs(30), dataset) == []  # patience had it end here


def test_a_run_surer_of_itself_by_training_longer_or_by_a_temperature(dataset: Dataset, tmp_path: Path) -> None:
    (hint,) = advice(finished(tmp_path, [0.5, 0.5], train=SHY, val=SHY), of_epochs(2), dataset)
    assert "validation accuracy 90.0%, mean confidence 60.0%" in hint
    assert "--epochs 4" in hint
    assert "--calibration temperature" in hint
    fitted = of_epochs(2, calibration="temperature")
    assert "--calibration" not in advice(finished(tmp_path, [0.5, 0.5], train=SHY, val=SHY), fitted, dataset)[0]
    assert advice(finished(tmp_path, [0.5, 0.5], val=SHY), of_epochs(2), dataset) == []


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
    own = replace(config, network=replace(config.network, encoder="custom"))
    assert "encoder of your own" in announcement(own, dataset, cpu)


def test_flags_are_parameters_in_python_and_commands_stay_commands() -> None:
    assert in_python("--batch-size 1 is too small; see ric train --help.") == (
        "batch_size 1 is too small; see ric train --help."
    )
    assert in_python("--seed -1 is out of range", {"seed": "random_state"}) == "random_state -1 is out of range"


def test_a_run_no_better_than_one_answer_for_all_has_learned_nothing(dataset: Dataset, tmp_path: Path) -> None:
    folder = finished(tmp_path, [1.1, 1.0], train=GOOD | {"accuracy": 0.34})
    (hint,) = advice(folder, of_epochs(2), dataset)
    assert "always answering 'a' would be right for 33.3% of the training data, it is for 34.0%" in hint
    assert "--epochs 4" in hint
