import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from problems import CPU
from ricnet.data import Dataset
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.errors import in_flags
from ricnet.models.classifier import Classifier
from ricnet.models.config import Config, Optimization
from ricnet.models.run import RunFolder
from ricnet.training import console
from ricnet.training.console import ProgressBar, announcement, duration, unfinished
from ricnet.training.recipes import Facts, preset


def finished(path: Path, nll: list[float]) -> RunFolder:
    folder = RunFolder(path)
    folder.evaluation.write_text("{}")
    folder.metrics.write_text("".join(json.dumps({"val": {"nll": value}}) + "\n" for value in nll))
    return folder


def of_epochs(epochs: int, **changes: Any) -> Config:
    return Config(optimization=Optimization(epochs=epochs), **changes)


def own_encoder(config: Config) -> Config:
    return replace(config, network=replace(config.network, encoder="custom"))


def test_the_announcement_says_what_is_learned_from_what(dataset: Dataset) -> None:
    said = announcement(of_epochs(3), dataset, CPU)
    assert all(fact in said for fact in ("RIC (ric): ", "96 rows of 4 numbers", "3 classes", "mlp", "3 epochs", "cpu"))
    assert "1 epoch," in announcement(of_epochs(1), dataset, CPU)
    assert "your own" in announcement(own_encoder(of_epochs(3)), dataset, CPU)


def images_of(dataset: Dataset) -> Dataset:
    train = replace(dataset.train, inputs=torch.zeros(96, 3, 128, 128, dtype=torch.uint8))
    return replace(dataset, train=train, augmentation=PHOTOGRAPHS)


def test_on_a_cpu_it_is_said_what_would_be_faster(dataset: Dataset, tmp_path: Path) -> None:
    config = of_epochs(500)
    patient = replace(config, optimization=replace(config.optimization, patience=9))
    cases = (
        (config, dataset, "width epochs"),
        (replace(config, data=str(tmp_path)), images_of(dataset), "resolution width epochs"),
        (replace(config, data="cifar10"), images_of(dataset), "width epochs"),
        (own_encoder(config), dataset, "epochs"),
        (patient, dataset, "width epochs patience"),
    )
    for case, data, named in cases:
        said = in_flags(console.faster(case, data, CPU))
        assert [word.split()[0].strip(",") for word in said.split("--")[1:]] == named.split()
        assert "--epochs (now 500)" in said
    assert console.faster(config, dataset, torch.device("cuda")) is None


def test_a_note_says_that_photographs_are_augmented(dataset: Dataset) -> None:
    photos, config = images_of(dataset), preset("fast", None, Facts(96, 3, 128, "cpu"))
    [note] = console.augmentation_note(config, photos)
    assert all(fact in in_flags(note) for fact in ("48 pixels", "--no-augment"))
    plain = replace(config, optimization=replace(config.optimization, augment=False))
    frozen = replace(config, network=replace(config.network, encoder="custom", freeze=True))
    assert console.augmentation_note(plain, photos) == console.augmentation_note(frozen, photos) == []
    assert console.augmentation_note(config, dataset) == []


def test_lines_are_wrapped_at_words_where_the_width_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/a/" + "long/" * 20
    monkeypatch.setenv("COLUMNS", "40")
    console.say(["note: these are words that do not fit into one line", f"report   {path}"])
    assert capsys.readouterr().err.splitlines() == [
        "note: these are words that do not fit",
        "into one line",
        "report",
        path,
    ]
    monkeypatch.delenv("COLUMNS")
    console.say([f"note: {'word ' * 40}end"])  # a log
    assert capsys.readouterr().err.count("\n") == 1


def test_lines_beyond_the_limit_are_counted() -> None:
    long = "word " * 30  # two lines
    assert console.limited([], 4, "x") == []
    assert console.limited([long, long], 4, "x") == [long, long]
    assert console.limited([long, long, "a"], 4, "report.html") == [long, long, "(1 more in report.html)"]
    assert console.limited([3 * long, "a"], 4, "x") == [3 * long, "(1 more in x)"]


def test_an_unfinished_run_is_told_from_a_model_without_evaluation(tmp_path: Path) -> None:
    def said(epochs: int, folder: Path | None = tmp_path) -> list[str]:
        config = of_epochs(epochs)
        return unfinished(Classifier(config, config.method, torch.nn.Identity(), (4,), ("a", "b"), folder=folder))

    folder = finished(tmp_path, [1.0, 0.9, 0.8])
    assert said(60) == []
    folder.evaluation.unlink()
    (note,) = said(60)
    assert all(fact in note for fact in (str(tmp_path), "epoch 3 of 60", f"ric train --out {tmp_path} --resume"))
    assert said(3) == []
    folder.previous_state.touch()
    assert "epoch 3 of 3" in said(3)[0]
    folder.previous_state.unlink()
    folder.metrics.unlink()
    assert said(60) == []  # as the Hub has them
    assert said(60, None) == []


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


@pytest.mark.parametrize(
    ("updates", "seconds", "faster", "told"),
    [
        (20, 7.2, "less is faster", True),
        (2, 30, "less is faster", False),  # the first updates say little
        (9, 1, "less is faster", False),
        (20, 6, "less is faster", False),
        (20, 7.2, None, False),
    ],
)
def test_who_would_wait_long_is_told_once_what_is_faster(
    clock: Clock, updates: int, seconds: float, faster: str | None, told: bool
) -> None:
    """The first updates of a hundred, each of which takes so many seconds."""
    shown = Console(file=io.StringIO(), width=80)
    with ProgressBar("ric on photos", 1000, 0, shown, faster=faster) as bar:
        for update in range(1, updates + 1):
            clock.now += seconds
            bar.advance(10 * update)
    said = shown.file.getvalue()
    assert (said.count("12 minutes"), said.count("less is faster")) == (told, told)


def test_lines_say_how_long_it_will_take(clock: Clock) -> None:
    shown = Console(file=io.StringIO(), width=80)
    with ProgressBar("ric on photos", 1000, 200, shown) as bar:
        for epoch in (3, 10):
            clock.now += 20
            bar.advance(100 * epoch)
            bar.epoch({"epoch": epoch, "val": VAL, "images_per_second": 5.0}, 10)
    first, last = shown.file.getvalue().split("\n")[:2]
    assert (first.endswith("2 minutes left"), "left" in last) == (True, False)


def test_a_terminal_shows_the_time_left_even_where_updates_are_slow(clock: Clock) -> None:
    shown = Console(file=io.StringIO(), width=80, force_terminal=True, get_time=lambda: clock.now)
    bar = ProgressBar("ric on photos", 1000, 0, shown)
    for update in (1, 2, 3):
        clock.now += 40
        bar.advance(10 * update)
    assert bar.bar.tasks[0].time_remaining == 97 * 40


def test_durations_are_read_at_a_glance() -> None:
    expected = {40.0: "40 seconds", 100.0: "2 minutes", 750.0: "12 minutes", 9000.0: "2.5 hours"}
    assert {seconds: duration(seconds) for seconds in expected} == expected
