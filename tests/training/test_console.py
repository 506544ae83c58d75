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
from ricnet.methods import RIC, OnPolicy
from ricnet.models.classifier import Classifier
from ricnet.models.config import Config, Optimization
from ricnet.models.run import RunFolder
from ricnet.training import console
from ricnet.training.console import SHORT, ProgressBar, advice, announcement, duration, hints, unfinished
from ricnet.training.recipes import Facts, changed, preset


def finished(path: Path, nll: list[float]) -> RunFolder:
    folder = RunFolder(path)
    folder.evaluation.write_text("{}")
    lines = (json.dumps({"epoch": epoch, "val": {"nll": value}}) for epoch, value in enumerate(nll, 1))
    folder.metrics.write_text("".join(f"{line}\n" for line in lines))
    return folder


def of_epochs(epochs: int, **changes: Any) -> Config:
    return Config(optimization=Optimization(epochs=epochs), **changes)


def own_encoder(config: Config) -> Config:
    return replace(config, network=replace(config.network, encoder="custom"))


def test_the_announcement_names_method_data_and_device(dataset: Dataset) -> None:
    said = announcement(of_epochs(3), dataset, CPU)
    assert all(
        fact in said
        for fact in ("RIC, Algorithm 1 (ric): ", "96 rows of 4 numbers", "3 classes", "mlp", "3 epochs", "cpu")
    )
    marginal = replace(of_epochs(3), method=RIC(credit="marginal"))
    assert "training RIC, Algorithm 1, marginal credit (ric): " in announcement(marginal, dataset, CPU)
    on_policy = replace(of_epochs(3), method=OnPolicy())
    assert "training RIC, on-policy (ric-on-policy): " in announcement(on_policy, dataset, CPU)
    assert "1 epoch," in announcement(of_epochs(1), dataset, CPU)
    assert "your own" in announcement(own_encoder(of_epochs(3)), dataset, CPU)


def images_of(dataset: Dataset) -> Dataset:
    train = replace(dataset.train, inputs=torch.zeros(96, 3, 128, 128, dtype=torch.uint8))
    return replace(dataset, train=train, augmentation=PHOTOGRAPHS)


def test_on_a_cpu_a_hint_names_faster_settings(dataset: Dataset, tmp_path: Path) -> None:
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


def test_lines_beyond_the_limit_are_counted() -> None:
    long = "word " * 30  # two lines
    assert console.limited([], 4, "x") == []
    assert console.limited([long, long], 4, "x") == [long, long]
    assert console.limited([long, long, "a"], 5, "x") == [long, long, "a"]
    assert console.limited([long, long, "a"], 4, "report.html") == [long, "(2 more in report.html)"]
    assert console.limited(["a", "b", long], 3, "x") == ["a", "b", "(1 more in x)"]
    assert console.limited([3 * long, "a"], 4, "x") == [3 * long, "(1 more in x)"]


def test_an_unfinished_run_is_distinguished_from_a_model_without_evaluation(tmp_path: Path) -> None:
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
def test_the_hint_for_long_runs_is_printed_once(
    clock: Clock, updates: int, seconds: float, faster: str | None, told: bool
) -> None:
    """The first updates of a hundred, each of which takes so many seconds."""
    shown = Console(file=io.StringIO(), width=80)
    bar = ProgressBar("ric on photos", 1000, 0, shown, faster=faster)
    for update in range(1, updates + 1):
        clock.now += seconds
        bar.advance(10 * update)
    said = shown.file.getvalue()
    assert (said.count("12 minutes"), said.count("less is faster")) == (told, told)


def test_lines_say_how_long_it_will_take(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # a line in a log is not wrapped
    shown = Console(file=io.StringIO(), width=80)
    bar = ProgressBar("ric on photos", 1000, 200, shown)
    for epoch in (3, 10):
        clock.now += 20
        bar.advance(100 * epoch)
        bar.epoch({"epoch": epoch, "val": VAL, "images_per_second": 5.0}, 10)
    first, last = shown.file.getvalue().split("\n")[:2]
    assert max(len(first), len(last)) <= 80
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


GOOD = {
    **{"accuracy": 0.9, "mean_confidence": 0.88, "ece_signed": -0.02, "ece_signed_error": 0.01, "n": 1000, "nll": 0.05},
    **{"nll_gain": 0.6, "nll_gain_error": 0.02},
}
BOLD = GOOD | {"accuracy": 0.64, "mean_confidence": 0.97, "ece_signed": 0.33}  # a table of 1,000 rows once was
LUCKY = GOOD | {"accuracy": 0.8, "mean_confidence": 0.9, "ece_signed": 0.1, "n": 60, "ece_signed_error": 0.052}


COURSE = [1 / (1 + epoch) for epoch in range(20)]
FALLING = f"({(1 / 17 + 1 / 18) / 2:.3f} to {(1 / 19 + 1 / 20) / 2:.3f})"
LONG = of_epochs(10)
FITTED = of_epochs(10, calibration="temperature")
BY_NLL = replace(FITTED, optimization=replace(FITTED.optimization, select="nll"))
FINAL = changed(of_epochs(20), {"final_fit": True})
IMPATIENT = replace(of_epochs(30), optimization=replace(of_epochs(30).optimization, patience=5))


def said(config: Config, dataset: Dataset, nll: list[float] | None = None, **parts: Any) -> list[str]:
    evaluation = {"train": GOOD, "val": GOOD, "test": GOOD} | parts
    course = [0.5] * config.optimization.epochs if nll is None else nll
    by_epoch = dict(enumerate(course, 1))
    return [in_flags(sentence) for sentence in advice(evaluation, by_epoch, config, dataset)]


def test_epochs_between_validations_count_as_epochs(dataset: Dataset) -> None:
    evaluation = {"train": GOOD, "val": GOOD, "test": GOOD}
    falling = {3: 1.0, 6: 0.5, 9: 0.3, 10: 0.2}
    config = replace(of_epochs(10), optimization=replace(of_epochs(10).optimization, validate_every=3))
    [hint] = advice(evaluation, falling, config, dataset)
    assert "still falling in the last 3 epochs (0.300 to 0.200)" in hint
    impatient = replace(config, optimization=replace(config.optimization, patience=4))
    assert "Ended after 6 of 10 epochs" in advice(evaluation, {3: 0.4, 6: 0.5}, impatient, dataset)[-1]


@pytest.mark.parametrize(
    ("config", "nll", "splits", "facts"),
    [
        (of_epochs(4), [1.0, 0.5, 0.3, 0.299], {}, None),
        (of_epochs(1), [1.0], {}, None),
        (of_epochs(20), COURSE, {}, ("2 epochs", FALLING, "--epochs 40", "--overwrite", "--out")),
        (IMPATIENT, COURSE, {}, ("note", "20 of 30 epochs", "no improvement in the last 5 epochs", "--patience")),
        (LONG, None, {"val": BOLD, "test": BOLD}, ("64.0%", "97.0%", "--calibration temperature", "--select nll")),
        (FITTED, None, {"val": BOLD, "test": BOLD}, ("64.0%", "97.0%", "--select nll")),
        (BY_NLL, None, {"val": BOLD, "test": BOLD}, ("64.0%", "97.0%).")),
        (FINAL, COURSE, {"val": BOLD | {"n": 7}}, None),
        (FINAL, COURSE, {"test": None}, None),
        (FINAL, COURSE, {"test": BOLD}, ("test accuracy 64.0%", "97.0%).")),
        (LONG, None, {"val": BOLD}, None),
        (LONG, None, {"val": LUCKY, "test": LUCKY}, None),
        (LONG, None, {"train": GOOD | {"accuracy": 0.979, "nll": 0.01}}, None),
        (LONG, None, {"val": GOOD | {"n": 49}}, ("49 validation rows", "--val-fraction")),
        (LONG, None, {"test": GOOD | {"n": 49}}, ("49 test rows",)),
        (LONG, None, {"val": GOOD | {"n": 7}, "test": GOOD | {"n": 9}}, ("7 validation rows", "9 test rows")),
        (LONG, None, {"test": None}, None),
        (LONG, None, {"test": GOOD | {"nll_gain": 0.03}}, ("nothing", "1,000 test", "0.030 ± 0.020", "--epochs 20")),
    ],
)
def test_advice_has_evidence_and_a_setting_to_change(
    config: Config,
    nll: list[float] | None,
    splits: dict[str, Any],
    facts: tuple[str, ...] | None,
    dataset: Dataset,
) -> None:
    given, facts = said(config, dataset, nll, **splits), facts or ()
    assert len(given) == bool(facts)
    assert [fact for fact in facts if fact not in given[0]] == []
    assert ("--calibration" in " ".join(given)) == ("--calibration temperature" in facts)


def test_rare_classes_are_no_reason_to_say_that_nothing_was_learned(dataset: Dataset) -> None:
    """1 % positives, precision 87 %, recall 56 %: the accuracy is half a point above the base rate."""
    rare = GOOD | {"accuracy": 0.9948, "base_rate": 0.99, "nll": 0.02, "nll_gain": 0.036, "nll_gain_error": 0.006}
    assert said(LONG, dataset, train=rare, val=rare, test=rare) == []
    weights = {"nll_gain_weighted": -0.17, "nll_gain_weighted_error": 0.26}
    assert said(LONG, dataset, train=rare, val=rare, test=rare | weights) == []
    weights, nothing = {"nll_gain_weighted": 0.3, "nll_gain_weighted_error": 0.1}, {"nll_gain": -0.2}
    assert said(LONG, dataset, train=rare, val=rare, test=rare | nothing | weights) == []
    [hint] = said(LONG, dataset, test=rare | nothing | weights | {"nll_gain_weighted": 0.1})
    assert "0.100 ± 0.100" in hint


def test_differences_within_noise_give_no_hint(dataset: Dataset) -> None:
    """Few rows say nothing of whether something was learned."""
    nothing = GOOD | {"nll_gain": 0.01, "nll_gain_error": 0.2}
    assert any("learned nothing" in hint for hint in said(LONG, dataset, test=nothing))
    assert not any("learned nothing" in hint for hint in said(LONG, dataset, test=nothing | {"n": 30}))
    single = nothing | {"nll_gain_error": None, "ece_signed_error": None, "n": 1}
    assert not any(
        "nothing" in hint or "over-confident" in hint for hint in said(LONG, dataset, val=BOLD | single, test=single)
    )


def test_short_runs_get_no_hint_to_train_longer(dataset: Dataset) -> None:
    bad = BOLD | {"nll_gain": 0.0}
    assert said(of_epochs(2), dataset, [1.0, 0.1], train=bad, val=bad, test=bad) == []
    assert len(said(of_epochs(SHORT), dataset, train=bad, val=bad, test=bad)) == 2


def entry(nll: float, advantage: float, error: float | None = 0.02) -> dict[str, Any]:
    return {"nll": nll, "accuracy": 0.97, "advantage": advantage, "advantage_error": error, "n": 1000}


def test_a_better_baseline_is_named_with_its_numbers(dataset: Dataset) -> None:
    for epochs in (2, 10):
        baselines = {"Logistic regression": entry(0.01, 0.04), "Gradient boosting": entry(0.02, 0.03)}
        [hint] = said(of_epochs(epochs), dataset, baselines=baselines)
        facts = ("logistic regression", "0.010", "0.050", "0.040 ± 0.020", "97.0%", "90.0%", "1,000 test rows")
        assert [fact for fact in facts if fact not in hint] == []
    within = {"Logistic regression": entry(0.031, 0.019), "Gradient boosting": entry(0.01, 0.04, None)}
    assert said(LONG, dataset, baselines=within) == []


def test_hints_come_before_notes(dataset: Dataset) -> None:
    """A terminal shows the first lines only."""
    lines = said(IMPATIENT, dataset, COURSE, baselines={"Logistic regression": entry(0.01, 0.04)})
    assert [line[:4] for line in lines] == ["hint", "note"]


def test_few_images_and_few_texts_are_not_called_rows(dataset: Dataset) -> None:
    few = {"train": GOOD, "val": GOOD | {"n": 14}, "test": GOOD | {"n": 9}}
    images = replace(dataset.train, inputs=torch.zeros(96, 3, 128, 128, dtype=torch.uint8))
    tokens = replace(dataset.train, inputs=dataset.train.inputs.int())
    for train, unit in ((images, "images"), (tokens, "texts")):
        [hint] = hints(few, dict.fromkeys(range(1, 11), 0.5), LONG, replace(dataset, train=train))
        assert f"14 validation {unit}" in hint
        assert f"9 test {unit}" in hint
