import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from ricnet.data import Dataset
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.errors import RicnetError, in_flags
from ricnet.training import console
from ricnet.training import console as tracking
from ricnet.training.api import configure, run, train
from ricnet.training.classifier import Classifier
from ricnet.training.config import Config, Optimization
from ricnet.training.console import ProgressBar, announcement, duration, scalars, unfinished
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


VAL = {"accuracy": 0.5, "ece": 0.1, "mean_steps": 2.0}


class Clock:
    """A second hand that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        # Not the clock of the whole process: servers of other tests sleep by it, and would never wake.
        monkeypatch.setattr("ricnet.training.console.time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def said(clock: Clock, updates: int, seconds: float, faster: str | None = "less is faster") -> str:
    """What is printed in the first updates of a hundred, each of which takes so many seconds."""
    console = Console(file=io.StringIO(), width=80)
    with ProgressBar("ric on photos", 1000, 0, console, faster=faster) as bar:
        for update in range(1, updates + 1):
            clock.now += seconds
            bar.advance(10 * update)
    return str(console.file.getvalue()).strip()  # type: ignore[attr-defined]


def test_who_would_wait_long_is_told_once_what_is_faster(clock: Clock) -> None:
    assert said(clock, 20, 7.2) == "hint: this will take about 12 minutes on this CPU; less is faster."
    assert said(clock, 2, 30) == ""  # the first updates say little
    assert said(clock, 9, 1) == ""
    assert said(clock, 20, 6) == ""
    assert said(clock, 20, 7.2, None) == ""


def test_lines_say_how_long_it_will_take(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with ProgressBar("ric on photos", 1000, 200, console) as bar:
        for epoch in (3, 10):
            clock.now += 20
            bar.advance(100 * epoch)
            bar.epoch({"epoch": epoch, "val": VAL, "images_per_second": 5.0}, 10)
    first, last = console.file.getvalue().split("\n")[:2]  # type: ignore[attr-defined]
    assert first.endswith("2.0 steps  2 minutes left")
    assert last.endswith("2.0 steps")


def test_a_terminal_shows_the_time_left_even_where_updates_are_slow(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, get_time=lambda: clock.now)
    bar = ProgressBar("ric on photos", 1000, 0, console)
    for update in (1, 2, 3):
        clock.now += 40
        bar.advance(10 * update)
    assert bar.bar.tasks[0].time_remaining == 97 * 40


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(seconds) for seconds in (40.0, 100.0, 750.0, 9000.0)] == [
        *("40 seconds", "2 minutes", "12 minutes", "2.5 hours"),
    ]


CPU = torch.device("cpu")


def points(folder: RunFolder) -> list[tuple[str, int, float]]:
    """As TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder.curves)).Reload()
    return [(tag, point.step, point.value) for tag in found.Tags()["scalars"] for point in found.Scalars(tag)]


def test_the_numbers_of_a_line_are_scalars() -> None:
    line = {"epoch": 3, "lr": 0.1, "val": {"accuracy": 0.5, "aurc": None}, "note": "text"}
    assert list(scalars(line)) == [("lr", 0.1), ("val/accuracy", 0.5)]


def test_every_epoch_is_a_point_once_even_if_the_run_was_stopped(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = configure(dataset, "supervised", "fast", epochs=3, batch_size=32, width=0.1)
    folder = RunFolder(tmp_path / "run")

    def kill(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise ZeroDivisionError  # after the first curves were written, before a checkpoint was

    with pytest.raises(ZeroDivisionError):
        run(config, dataset, folder, CPU, track="tensorboard", watch=kill, checkpoint_seconds=1e9)
    run(config, dataset, folder, CPU, track="tensorboard", resume=True)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    expected = [(name, line["epoch"], value) for line in lines for name, value in scalars(line)]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    found = points(folder)
    assert Counter((name, step) for name, step, _ in found) == Counter((name, step) for name, step, _ in expected)
    values = {(name, step): value for name, step, value in found}
    for name, step, value in expected:
        assert values[name, step] == pytest.approx(value, rel=1e-6)
    run(config, dataset, folder, CPU, overwrite=True)
    assert not folder.curves.exists()


def test_a_missing_extra_is_named_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with pytest.raises(RicnetError, match=r"needs tensorboard; install with: pip install 'ricnet\[track\]'"):
        tracking.require_tracker("tensorboard")
    with pytest.raises(RicnetError, match=r"^track.* needs tensorboard"):
        train(tmp_path / "nowhere", out=tmp_path / "run", track="tensorboard")
