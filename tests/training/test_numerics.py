"""Hard cases for every method: training ends, or stops with one sentence, and no NaN reaches a saved model."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ricnet.data import Dataset, Split
from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.training.api import configure, run
from ricnet.training.run import RunFolder
from ricnet.training.trainer import Trainer, has_fallen

CPU = torch.device("cpu")
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
        assert all(tensor.isfinite().all() for tensor in load_file(folder / "model.safetensors").values())
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
    assert "diverged in epoch 1" in said
    assert "lower --lr (now 1e+30) or with --clip 0.5" in said


def test_a_thousand_classes(tmp_path: Path) -> None:
    assert attempt(clouds(1000), "ric", tmp_path, epochs=1) == ""
    judged = json.loads((tmp_path / "evaluation.json").read_text())["test"]
    assert 6 < judged["nll"] < 8  # log 1000 is 6.9, and it has learned next to nothing


@EVERY_METHOD
def test_the_same_seed_gives_the_same_numbers(method: str) -> None:
    def trained() -> dict[str, torch.Tensor]:
        dataset = clouds(3)
        steps = {} if method == "supervised" else {"horizon": 3}
        config = configure(dataset, method, "fast", epochs=1, batch_size=8, width=0.1, seed=5, **steps)
        trainer = Trainer(config, dataset, None, CPU)
        trainer.train()
        return trainer.model.state_dict()

    first, second = trained(), trained()
    assert all(torch.equal(first[name], second[name]) for name in first)


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


def test_a_nan_that_no_metric_shows_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last update of epoch 2 spoils the value, which an answer does not depend on: NaN is never below 0."""
    dataset = clouds(3)
    config = configure(dataset, "ric", "fast", epochs=4, batch_size=16, width=0.1, horizon=3)
    step = Trainer._step

    def spoil(self: Trainer) -> None:
        step(self)
        if self.update == 4:
            self.model.refiner.value.weight.data.fill_(torch.nan)

    monkeypatch.setattr(Trainer, "_step", spoil)
    with pytest.raises(RicnetError, match=r"epoch 2: the weights became infinite or NaN; the best weights.*of epoch 1"):
        run(config, dataset, RunFolder(tmp_path), CPU, checkpoint_seconds=0.0)
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "model.safetensors").values())
    state = RunFolder(tmp_path).read_state()
    assert state is not None
    assert state["update"] == 3


def test_a_checkpoint_holds_no_weights_that_an_update_has_just_broken(tmp_path: Path) -> None:
    dataset = clouds(3)
    config = configure(dataset, "supervised", "fast", batch_size=8, width=0.1)
    trainer = Trainer(config, dataset, RunFolder(tmp_path), CPU)
    trainer._step()
    trainer.checkpoint()
    trainer._step()
    trainer.model[-1].weight.data[0, 0] = torch.inf
    with pytest.raises(RicnetError, match="the weights became infinite or NaN; no epoch was completed"):
        trainer.checkpoint()
    state = RunFolder(tmp_path).read_state()
    assert state is not None
    assert state["update"] == 1


def test_resuming_what_diverged_says_so_again_and_keeps_the_best_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = clouds(3)
    config = configure(dataset, "supervised", "fast", epochs=4, batch_size=16, width=0.1)
    step = Trainer._step

    def diverge(self: Trainer) -> None:
        step(self)
        if self.update == 5:
            self.model[-1].weight.data.fill_(torch.nan)

    monkeypatch.setattr(Trainer, "_step", diverge)
    said, kept = [], []
    for resume in (False, True, True):
        with pytest.raises(RicnetError, match="diverged in epoch 3") as caught:
            run(config, dataset, RunFolder(tmp_path), CPU, resume=resume, checkpoint_seconds=0.0)
        said.append(str(caught.value))
        kept.append(load_file(tmp_path / "model.safetensors")["1.weight"])
    assert said[0] == said[1] == said[2]
    assert kept[0].isfinite().all()
    assert torch.equal(kept[0], kept[2])


@pytest.mark.parametrize(
    ("accuracy", "best", "rows", "fallen"),
    [
        (0.10, 0.90, 5000, True),
        (0.10, 0.99, 30, True),
        (0.0, 1.0, 1, True),
        (0.60, 0.90, 5000, False),  # not by half
        (0.0, 0.004, 500, False),  # two right answers among 500 with 1000 classes are luck
        (0.05, 0.20, 30, False),
        (0.0, 0.0, 30, False),
    ],
)
def test_a_fall_counts_only_where_luck_does_not_explain_it(
    accuracy: float, best: float, rows: int, fallen: bool
) -> None:
    assert has_fallen(accuracy, best, rows) is fallen


def test_one_training_row_is_refused() -> None:
    with pytest.raises(RicnetError, match="there is 1 training row to learn from; training needs at least 2"):
        configure(clouds(3, rows=1), "ric", "fast")
