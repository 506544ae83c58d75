"""Hard cases for every method: training ends, or stops with one sentence, and no NaN reaches a saved model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from problems import CPU, configured, read, weights
from refusals import refusal
from ricnet.data import Dataset, Split
from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.models.run import RunFolder
from ricnet.training.api import run
from ricnet.training.callbacks import has_fallen
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

EVERY_METHOD = pytest.mark.parametrize("method", sorted(METHODS))


def clouds(classes: int, rows: int = 32, few: int = 12) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(classes, 4, generator=generator)

    def draw(count: int) -> Split:
        labels = torch.randint(classes, (count,), generator=generator)
        return Split(centres[labels] + torch.randn(count, 4, generator=generator), labels)

    return Dataset("clouds", draw(rows), draw(few), draw(few), tuple(f"class {k}" for k in range(classes)))


def change(dataset: Dataset, edit: Callable[[Split], Split]) -> Dataset:
    return dataclasses.replace(dataset, **{name: edit(getattr(dataset, name)) for name in ("train", "val", "test")})


def scaled(dataset: Dataset, factor: float) -> Dataset:
    return change(dataset, lambda split: dataclasses.replace(split, inputs=factor * split.inputs))


def without_features(dataset: Dataset) -> Dataset:
    return change(dataset, lambda split: dataclasses.replace(split, inputs=torch.full_like(split.inputs, 7.0)))


def without_meaning(dataset: Dataset) -> Dataset:
    """Labels that have nothing to do with the inputs."""
    return change(dataset, lambda split: dataclasses.replace(split, labels=split.labels[torch.randperm(len(split))]))


def without_a_class(dataset: Dataset) -> Dataset:
    return dataclasses.replace(dataset, train=dataset.train.take(dataset.train.labels.nonzero().squeeze(1)))


def judged_by_one_row(dataset: Dataset) -> Dataset:
    one = dataset.test.take(torch.tensor([0]))
    return dataclasses.replace(dataset, val=one, test=one)


def assert_finite(folder: Path) -> None:
    assert all(tensor.isfinite().all() for tensor in weights(folder).values())


def attempt(dataset: Dataset, method: str, folder: Path, preset: str = "fast", **changes: Any) -> str:
    """Train; returns what training was stopped with, or nothing. Whatever is left behind must be finite."""
    steps = {} if method == "supervised" else {"horizon": changes.pop("horizon", 3)}
    changes.pop("horizon", None)
    config = configure(dataset, method, preset, **({"epochs": 2, "batch_size": 16, "width": 0.1} | steps | changes))
    said = ""
    try:
        run(config, dataset, RunFolder(folder), CPU)
    except RicnetError as error:
        said = str(error)
    if (folder / "model.safetensors").exists():
        assert_finite(folder)
    assert said or (folder / "evaluation.json").exists()
    return said


@EVERY_METHOD
def test_little_to_learn_from(method: str, tmp_path: Path) -> None:
    """No features, no meaning, a class never seen, one row to judge by, a last batch of one, one step."""
    rows = clouds(classes=5, rows=10)
    dataset = judged_by_one_row(without_meaning(without_features(without_a_class(rows))))
    odd = dataclasses.replace(dataset, train=dataset.train.take(torch.arange(5)))
    assert attempt(odd, method, tmp_path, batch_size=2, horizon=1) == ""


@EVERY_METHOD
def test_two_classes_in_bf16_at_a_hundred_times_the_rate(method: str, tmp_path: Path) -> None:
    assert attempt(clouds(2), method, tmp_path, precision="bf16", lr=0.3) == ""


@EVERY_METHOD
def test_a_rate_that_cannot_work_is_explained(method: str, tmp_path: Path) -> None:
    said = attempt(clouds(3), method, tmp_path, optimizer="sgd", lr=1e30, clip=None)
    assert all(fact in said for fact in ("epoch 1", "--lr (now 1e+30)", "--clip 0.5"))


def test_many_classes(tmp_path: Path) -> None:
    assert attempt(clouds(200), "ric", tmp_path, epochs=1) == ""
    judged = read(tmp_path / "evaluation.json")["test"]
    assert 4.5 < judged["nll"] < 6.5  # log 200 is 5.3, and it has learned next to nothing


HARD: dict[str, tuple[Dataset, dict[str, Any]]] = {
    "2 classes": (clouds(2), {}),
    "100 classes": (clouds(100), {}),
    "1000 classes": (clouds(1000), {}),
    "1 step": (clouds(3), {"horizon": 1}),
    "64 steps": (clouds(3), {"horizon": 64}),
    "a class is missing": (without_a_class(clouds(3)), {"epochs": 10}),
    "constant features": (without_features(clouds(3)), {"epochs": 10}),
    "labels are noise": (without_meaning(clouds(10)), {"epochs": 30}),
    "1000 labels are noise": (without_meaning(clouds(1000, few=200)), {"epochs": 12}),
    "1 row to judge by": (judged_by_one_row(clouds(3)), {}),
    "2 rows to learn from": (clouds(3, rows=2), {}),
    "batches of 2": (clouds(3), {"batch_size": 2}),
    "bf16": (clouds(3), {"precision": "bf16"}),
    "1000 classes in bf16": (clouds(1000), {"precision": "bf16"}),
    "averaged weights": (clouds(3), {"average": 0.99}),
    "large features": (scaled(clouds(3), 1e30), {}),
    "small features": (scaled(clouds(3), 1e-30), {}),
}


@EVERY_METHOD
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("case", HARD)
def test_every_hard_case_ends(case: str, preset: str, method: str, tmp_path: Path) -> None:
    dataset, changes = HARD[case]
    assert attempt(dataset, method, tmp_path, preset, **changes) == ""


@EVERY_METHOD
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 0.3},
        {"lr": 0.3, "clip": None, "average": 0.99},
        {"lr": 0.3, "optimizer": "adam", "precision": "bf16"},
        {"lr": 10.0, "optimizer": "sgd", "clip": None},
        {"lr": 1e4, "clip": None},
    ],
    ids=str,
)
def test_a_rate_far_too_large_ends_or_is_explained(
    changes: dict[str, Any], classes: int, preset: str, method: str, tmp_path: Path
) -> None:
    said = attempt(clouds(classes), method, tmp_path, preset, epochs=12, **changes)
    assert said == "" or said.startswith("training diverged in epoch")


def test_a_nan_that_no_metric_shows_is_not_saved(tmp_path: Path, after_update: Callable[..., None]) -> None:
    """The last update of epoch 2 spoils the value, which an answer does not depend on: NaN is never below 0."""
    dataset = clouds(3)
    after_update(4, lambda trainer: trainer.model.refiner.value.weight.data.fill_(torch.nan))
    with refusal("epoch 2", "of epoch 1"):
        run(configured(dataset, batch_size=16), dataset, RunFolder(tmp_path), CPU, checkpoint_seconds=0.0)
    assert_finite(tmp_path)
    assert RunFolder(tmp_path).read_state()["update"] == 3


def test_a_checkpoint_holds_no_weights_that_an_update_has_just_broken(tmp_path: Path) -> None:
    dataset = clouds(3)
    trainer = Trainer(configured(dataset, "supervised", batch_size=8), dataset, RunFolder(tmp_path), CPU)
    trainer._step()
    trainer.checkpoint()
    trainer._step()
    trainer.model[-1].weight.data[0, 0] = torch.inf
    with refusal("infinite", "no epoch"):
        trainer.checkpoint()
    assert RunFolder(tmp_path).read_state()["update"] == 1


def test_a_resumed_diverged_run_diverges_again_and_keeps_the_best_weights(
    tmp_path: Path, after_update: Callable[..., None]
) -> None:
    dataset = clouds(3)
    config = configured(dataset, "supervised", batch_size=16)
    after_update(5, lambda trainer: trainer.model[-1].weight.data.fill_(torch.nan))
    said, kept = [], []
    for resume in (False, True, True):
        with refusal("epoch 3") as caught:
            run(config, dataset, RunFolder(tmp_path), CPU, resume=resume, checkpoint_seconds=0.0)
        said.append(str(caught.value))
        kept.append(weights(tmp_path)["1.weight"])
    assert said[0] == said[1] == said[2]
    assert kept[0].isfinite().all()
    assert torch.equal(kept[0], kept[2])


def test_a_fall_counts_only_where_luck_does_not_explain_it() -> None:
    """Nor does less than half of the best; two right answers among 500 with 1000 classes are luck."""
    fallen = [(0.10, 0.90, 5000), (0.10, 0.99, 30), (0.0, 1.0, 1)]
    not_fallen = [(0.60, 0.90, 5000), (0.0, 0.004, 500), (0.05, 0.20, 30), (0.0, 0.0, 30)]
    assert [has_fallen(*case) for case in fallen + not_fallen] == [True] * 3 + [False] * 4


def test_one_training_row_is_refused() -> None:
    with refusal("1 training row", "at least 2"):
        configure(clouds(3, rows=1), "ric", "fast")
