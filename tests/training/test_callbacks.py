"""The trainer's callbacks, and the interface for users' callbacks."""

import dataclasses
import io
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import ricnet
from problems import (
    CPU,
    EachEpoch,
    assert_same_weights,
    configured,
    read,
    read_lines,
    trained,
    trainer,
    weighted,
    weights,
)
from refusals import refusal
from ricnet.data import Dataset
from ricnet.errors import Interrupted, RicnetError
from ricnet.evaluation.evaluate import observe
from ricnet.io import read_json
from ricnet.methods import METHODS, Supervised
from ricnet.models.run import RunFolder
from ricnet.training import callbacks
from ricnet.training.api import Request, run, train, train_in_folder
from ricnet.training.callbacks import (
    FALLEN_EPOCHS,
    Callback,
    Collapse,
    Fall,
    Finite,
    Measuring,
    Patience,
    Selection,
    Tracking,
    scalars,
)
from ricnet.training.optimization import Averaging
from ricnet.training.trainer import Trainer

Finished = Callable[[str], RunFolder]
HOOKS = ("on_train_begin", "on_update_end", "on_epoch_end", "on_train_end")


class Diary(Callback):
    """Notes its hooks in a list that may be shared."""

    def __init__(self, name: str, pages: list[str]) -> None:
        self.name, self.pages = name, pages

    def on_train_begin(self, trainer: Trainer) -> None:
        self.pages.append(f"{self.name} begins at {trainer.update}")

    def on_update_end(self, trainer: Trainer) -> None:
        self.pages.append(f"{self.name} update {trainer.update}")

    def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
        self.pages.append(f"{self.name} epoch {line['epoch']}")

    def on_train_end(self, trainer: Trainer) -> None:
        self.pages.append(f"{self.name} ends at {trainer.update}")


def test_hooks_are_called_in_order_and_at_the_end_in_reverse(dataset: Dataset, tmp_path: Path) -> None:
    pages: list[str] = []
    both = [Diary("first", pages), Diary("second", pages)]
    run(configured(dataset, "supervised", epochs=2), dataset, RunFolder(tmp_path), CPU, callbacks=both)
    updates = [[f"{name} update {update}" for name in ("first", "second")] for update in range(1, 7)]
    epochs = [[f"{name} epoch {epoch}" for name in ("first", "second")] for epoch in (1, 2)]
    expected = ["first begins at 0", "second begins at 0", *chain(*updates[:3]), *epochs[0], *chain(*updates[3:])]
    assert pages == [*expected, *epochs[1], "second ends at 6", "first ends at 6"]


def test_an_own_callback_comes_after_selection_and_log_and_ends_with_the_selected_weights(
    dataset: Dataset, tmp_path: Path
) -> None:
    class Look(Callback):
        def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
            assert read_lines(tmp_path)[-1] == line
            assert trainer.best["epoch"] <= line["epoch"] == trainer.epoch
            assert line["epoch"] > 1 or trainer.best["epoch"] == 1
            assert trainer.outcome.labels.tolist() == dataset.val.labels.tolist()
            assert float(next(iter(trainer.sums.values()))) == 0  # a checkpoint made here starts the next epoch

        def on_train_end(self, trainer: Trainer) -> None:
            for name, tensor in trainer.model.state_dict().items():
                assert torch.equal(tensor, trainer.best["weights"][name])
            self.ended = True

    look = Look()
    run(configured(dataset, "supervised", average=0.9), dataset, RunFolder(tmp_path), CPU, callbacks=[look])
    assert look.ended


def test_a_callback_that_only_reads_changes_nothing(dataset: Dataset, finished: Finished, tmp_path: Path) -> None:
    run(configured(dataset, "ric"), dataset, RunFolder(tmp_path), CPU, callbacks=[Diary("reader", [])])
    assert_same_weights(tmp_path, finished("ric").path)


@pytest.mark.parametrize(("hook", "made"), [("on_update_end", 1), ("on_epoch_end", 1), ("on_train_begin", 1)])
def test_stop_ends_training_after_the_present_epoch(dataset: Dataset, tmp_path: Path, hook: str, made: int) -> None:
    """Even if it is set before the first update: without a validated epoch there is nothing to keep."""
    stop = type("Stop", (Callback,), {hook: lambda self, trainer, *line: setattr(trainer, "stop", True)})
    evaluation = run(configured(dataset, "supervised"), dataset, RunFolder(tmp_path), CPU, callbacks=[stop()])
    assert len(read_lines(tmp_path)) == evaluation["selected_epoch"] == made
    assert RunFolder(tmp_path).finished


def test_an_epoch_in_which_stop_is_set_is_completed(dataset: Dataset, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            trainer.stop |= trainer.update == 4

    run(configured(dataset, "supervised"), dataset, RunFolder(tmp_path), CPU, callbacks=[Stop()])
    assert [line["update"] for line in read_lines(tmp_path)] == [3, 6]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyError, RuntimeError, StopIteration])
def test_an_error_in_a_hook_surfaces_as_it_is_and_what_began_is_ended(
    dataset: Dataset, tmp_path: Path, hook: str, kind: type[Exception]
) -> None:
    problem, pages = kind("mine"), list[str]()

    def fail(*_: Any) -> None:
        raise problem

    broken = type("Broken", (Callback,), {hook: fail})()
    around = [Diary("before", pages), broken, Diary("after", pages)]
    with pytest.raises(kind) as caught:
        ricnet.train(dataset, out=tmp_path, method="supervised", epochs=1, device="cpu", callbacks=around)
    assert caught.value is problem
    assert "before" in pages[-1]
    assert "ends" in pages[-1]
    assert any("after ends" in page for page in pages) == (hook != "on_train_begin")


class Count(Callback):
    def __init__(self) -> None:
        self.updates = 0

    def on_update_end(self, trainer: Trainer) -> None:
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


def test_the_states_of_own_callbacks_survive_a_stop(
    dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their names, two of a class too; a resumed run may have others or none."""
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path)
    first, second = Count(), Count()
    second.updates = 100
    stop_after(4)
    with pytest.raises(Interrupted):
        run(config, dataset, folder, CPU, callbacks=[first, Diary("mine", []), second])
    monkeypatch.undo()
    assert folder.read_state()["callbacks"] == {"Count": {"updates": 4}, "Count 2": {"updates": 104}}
    first, second, third = Count(), Count(), Count()
    run(config, dataset, folder, CPU, resume=True, callbacks=[first, second, third])
    assert (first.updates, second.updates, third.updates) == (9, 109, 5)


def test_a_state_that_cannot_be_stored_is_refused_when_it_would_be_saved(dataset: Dataset, tmp_path: Path) -> None:
    class Odd(Count):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": [1, (2.0, "three"), {"four": np.zeros(4)}]}

    with refusal("Odd", "ndarray", "tensors"):
        run(configured(dataset), dataset, RunFolder(tmp_path), CPU, callbacks=[Odd()], checkpoint_seconds=0.0)
    assert not RunFolder(tmp_path).state.exists()


def test_an_error_while_a_callback_takes_its_state_back_surfaces_as_it_is(
    dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path)
    stop_after(4)
    with pytest.raises(Interrupted):
        run(config, dataset, folder, CPU, callbacks=[Count()])
    monkeypatch.undo()
    monkeypatch.setattr(Count, "load_state_dict", lambda self, state: state["missing"])
    with pytest.raises(KeyError, match="missing"):
        run(config, dataset, folder, CPU, resume=True, callbacks=[Count()])


@pytest.mark.parametrize(("given", "named"), [(Count, "the class Count"), (print, "builtin_function")])
def test_invalid_callbacks_are_refused(given: Any, named: str) -> None:
    with refusal("callbacks", named, "ricnet.Callback"):
        train_in_folder(Request("nowhere", {}, device="cpu", callbacks=[Count(), given]))


# Averaging


def test_an_average_starts_again_and_takes_its_state_back() -> None:
    model = torch.nn.Linear(2, 1)
    averaging, other = Averaging(model, 0.5), Averaging(model, 0.5)
    model.weight.data.fill_(3.0)
    averaging.follow()
    averaging.follow()
    other.load_state_dict(averaging.state_dict())
    model.weight.data.fill_(-1.0)
    averaging.follow()
    other.follow()
    assert torch.equal(averaging.network.weight, other.network.weight)
    assert float(other.updates) == 3
    averaging.restart()
    assert torch.equal(averaging.network.weight, model.weight)
    assert float(averaging.updates) == 0


def test_without_a_decay_the_network_itself_is_evaluated() -> None:
    model = torch.nn.Linear(2, 1)
    averaging = Averaging(model, 0.0)
    averaging.follow()
    assert averaging.network is model
    assert averaging.state_dict()["average"] == {}
    assert float(averaging.updates) == 0


# Selection and patience


class Scripted(Selection):
    """Accuracy, NLL and scores of each epoch are given."""

    def __init__(self, shown: list[tuple[float, float, torch.Tensor | None]], select: str) -> None:
        super().__init__()
        network = SimpleNamespace(state_dict=lambda: {"weight": torch.tensor(self.epoch)})
        self.shown, self.trainer = iter(shown), SimpleNamespace(average=network)
        self.trainer.settings = SimpleNamespace(select=select)
        self.trainer.processes = ricnet.distributed.ALONE
        for self.epoch in range(1, len(shown) + 1):
            self.on_epoch_end(self.trainer, {"epoch": self.epoch, "val": {}})

    def scores(self, trainer: Any, val: Any) -> Any:
        return next(self.shown)


@pytest.mark.parametrize(("select", "epoch"), [("accuracy", 3), ("nll", 2), ("last", 4), ("calibrated", 2)])
def test_each_rule_selects_its_epoch_and_the_first_of_equal_ones(select: str, epoch: int) -> None:
    shown = [(0.5, 0.9, None), (0.6, 0.5, None), (0.7, 0.6, None), (0.7, 0.6, None)]
    chosen = Scripted(shown, select).best
    assert (chosen["epoch"], chosen["best_epoch"], int(chosen["weights"]["weight"])) == (epoch, epoch, epoch)
    assert chosen["accuracy"] == shown[epoch - 1][0]


@pytest.mark.parametrize(("select", "epoch"), [("accuracy", 2), ("nll", 2)])
def test_of_equal_epochs_the_other_metric_decides(select: str, epoch: int) -> None:
    shown = {"accuracy": [(0.7, 0.6, None), (0.7, 0.5, None)], "nll": [(0.6, 0.5, None), (0.7, 0.5, None)]}[select]
    assert Scripted(shown, select).best["epoch"] == epoch


def test_by_scores_a_later_epoch_that_is_as_good_is_selected_but_is_not_the_best() -> None:
    noise = torch.linspace(-1, 1, 30).double()
    shown = [(0.7, 9.0, -1.0 + 0 * noise), (0.6, 0.1, -1.001 + 0.1 * noise), (0.7, 0.1, -1.5 + 0.1 * noise)]
    chosen = Scripted(shown, "calibrated").best
    assert (chosen["epoch"], chosen["best_epoch"], chosen["accuracy"]) == (2, 1, 0.7)
    assert chosen["score"] == [pytest.approx(-1.0), 0.7]


@pytest.mark.parametrize(("patience", "epoch", "ends"), [(3, 4, False), (3, 5, True), (3, 6, True), (None, 99, False)])
def test_patience_counts_from_the_best_epoch(patience: int | None, epoch: int, ends: bool) -> None:
    selection = Selection()
    waiting = Patience(patience, selection)
    for best in ({}, {"epoch": 4, "best_epoch": 2}):
        selection.best = best
        begun, ended = (SimpleNamespace(stop=False, epoch=epoch) for _ in range(2))
        waiting.on_train_begin(begun)
        waiting.on_epoch_end(ended, {"epoch": epoch})
        assert begun.stop == ended.stop == (ends and bool(best))


def test_patience_does_not_reset_stop() -> None:
    asked = SimpleNamespace(stop=True, epoch=1)
    Patience(None, Selection()).on_epoch_end(asked, {"epoch": 1})
    assert asked.stop


def test_measured_are_every_nth_epoch_and_the_last(dataset: Dataset, tmp_path: Path) -> None:
    changes = {"epochs": 5, "measure_all": True, "patience": None, "select": "last"}
    trained(dataset, tmp_path / "all", measure_every=2, **changes)
    measured = [line["epoch"] for line in read_lines(tmp_path / "all") if "test" in line and "train_eval" in line]
    assert measured == [2, 4, 5]
    trained(dataset, tmp_path / "none", epochs=1)
    assert "test" not in read_lines(tmp_path / "none")[0]


def test_validation_every_nth_epoch_changes_no_weights(
    dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are averages over the epochs since the last one; a run stopped between two validations goes on alike."""
    how = {"epochs": 5, "patience": None, "select": "last", "batch_size": 16}
    whole, sparse = configured(dataset, **how), configured(dataset, validate_every=2, **how)
    run(whole, dataset, RunFolder(tmp_path / "each"), CPU)
    run(sparse, dataset, RunFolder(tmp_path / "some"), CPU)
    assert_same_weights(tmp_path / "some", tmp_path / "each")
    each, some = (read_lines(tmp_path / name) for name in ("each", "some"))
    assert [line["epoch"] for line in some] == [2, 4, 5]
    assert RunFolder(tmp_path / "some").last_epoch == 5
    assert some[0]["val"] == each[1]["val"]
    assert some[1]["train"]["value_loss"] == pytest.approx(np.mean([e["train"]["value_loss"] for e in each[2:4]]), 1e-5)
    assert some[2]["train"] == each[4]["train"]
    assert some[0]["measured_rows"] == sum(line["measured_rows"] for line in each[:2])
    per_epoch = each[0]["update"]
    stop_after(3 * per_epoch + 1)
    with refusal("--resume", kind=Interrupted):
        run(sparse, dataset, RunFolder(tmp_path / "stopped"), CPU)
    monkeypatch.undo()
    run(sparse, dataset, RunFolder(tmp_path / "stopped"), CPU, resume=True)
    assert_same_weights(tmp_path / "stopped", tmp_path / "each")
    again = read_lines(tmp_path / "stopped")
    assert [(line["epoch"], line["train"], line["val"]) for line in again] == [
        (line["epoch"], line["train"], line["val"]) for line in some
    ]


def test_only_validated_epochs_are_selected(dataset: Dataset, tmp_path: Path) -> None:
    trained(dataset, tmp_path / "run", validate_every=4, epochs=6, patience=1, select="accuracy")
    epochs = {line["epoch"] for line in read_lines(tmp_path / "run")}
    assert epochs <= {4, 6}
    assert read_json(tmp_path / "run" / "evaluation.json")["selected_epoch"] in epochs


def test_the_epoch_that_uses_up_patience_is_measured(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = Selection()
    selection.best = {"best_epoch": 2}
    made, shown = trainer(dataset, measure_all=True, measure_every=100), list[Any]()
    monkeypatch.setattr(callbacks, "observe", lambda method, model, split, processes: shown.append(split.inputs))
    monkeypatch.setattr(callbacks, "summarize", lambda outcome: {})
    measuring, lines = Measuring(Patience(3, selection)), [{"epoch": epoch} for epoch in (4, 5)]
    for line in lines:
        measuring.on_epoch_end(made, line)
    assert lines == [{"epoch": 4}, {"epoch": 5, "train_eval": {}, "test": {}}]
    rows = torch.linspace(0, 95, 30).long()  # as many as there are validation rows, evenly spread
    assert torch.equal(shown[0], dataset.train.inputs[rows])
    assert torch.equal(shown[1], dataset.test.inputs)


# Divergence and collapses


def test_validation_that_is_not_finite_is_never_selected(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summarize = ricnet.training.trainer.summarize
    calls = list[int]()

    def spoil(outcome: Any) -> dict[str, Any]:
        calls.append(1)
        return summarize(outcome) | ({"nll": float("nan"), "accuracy": 1.0} if len(calls) == 2 else {})

    monkeypatch.setattr("ricnet.training.trainer.summarize", spoil)
    with refusal("epoch 2", "nll became infinite or NaN", "of epoch 1"):
        trained(dataset, tmp_path, select="accuracy")
    assert read(RunFolder(tmp_path).diverged)["epoch"] == 2


def test_weights_are_checked_once_an_epoch(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[int]()
    monkeypatch.setattr(Finite, "check", lambda self, trainer: checked.append(trainer.update))
    trainer(dataset).train()
    assert checked == [3, 6, 9]


def fallen(accuracies: list[float], fall: Fall | None = None) -> Fall:
    selection = Selection()
    selection.best = {"accuracy": 0.9}
    fall = fall or Fall(selection)
    data = SimpleNamespace(val=range(1000))
    settings = SimpleNamespace(lr=0.1, clip=None)
    made = SimpleNamespace(dataset=data, best={}, folder=None, update=30, updates_per_epoch=3, settings=settings)
    for fall.selection.accuracy in accuracies:
        fall.on_epoch_end(made, {})
    return fall


def test_a_fall_ends_training_after_some_epochs_in_a_row() -> None:
    assert FALLEN_EPOCHS == 5
    assert fallen([0.1] * 4).epochs == 4
    assert fallen([0.1] * 4 + [0.8] + [0.1] * 4).epochs == 4
    with refusal("epoch 10", "fallen to 10.0% from 90.0%", "lr", "clip"):
        fallen([0.1] * 5)
    other = Fall(Selection())
    other.load_state_dict(fallen([0.1] * 3).state_dict())
    other.selection.best = {"accuracy": 0.9}
    with pytest.raises(RicnetError):
        fallen([0.1] * 2, other)


def test_calibrated_keeps_the_latest_epoch_that_is_about_as_good_as_the_best(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch 2 is best; 4 differs from it by less than a standard error, 5 by more; patience counts from 2."""
    noise = torch.linspace(-1, 1, len(dataset.val)).double()
    shown = iter([-2.0 + 0 * noise, -1.0 + 0 * noise, -2.0 + 0 * noise, -1.001 + 0.1 * noise, -1.5 + 0.1 * noise])
    monkeypatch.setattr("ricnet.training.callbacks.calibrated_scores", lambda *seen: next(shown))
    training = trainer(dataset, epochs=5, select="calibrated", patience=4)
    training.train()
    assert (training.best["epoch"], training.best["best_epoch"]) == (4, 2)
    assert training.best["score"][0] == pytest.approx(-1.0)


@pytest.mark.parametrize("select", ["accuracy", "nll", "last"])
def test_the_best_epoch_is_selected_and_ties_go_to_the_lower_nll(dataset: Dataset, select: str, tmp_path: Path) -> None:
    evaluation = trained(dataset, tmp_path, epochs=12, calibration="none", select=select, patience=None)
    score: dict[str, Callable[[Any], Any]] = {
        "accuracy": lambda line: (line["val"]["accuracy"], -line["val"]["nll"]),
        "nll": lambda line: -line["val"]["nll"],
        "last": lambda line: line["epoch"],
    }
    best = max(read_lines(tmp_path), key=score[select])
    assert evaluation["selected_epoch"] == best["epoch"]
    assert evaluation["val"]["nll"] == pytest.approx(best["val"]["nll"], rel=1e-5)


@pytest.mark.parametrize("method", ["ric", "supervised"])
def test_divergence_is_reported_and_the_last_good_state_kept(
    dataset: Dataset, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, calls = METHODS[method].loss, list[int]()

    def break_in_the_third_epoch(*args: Any) -> Any:
        calls.append(1)
        value, metrics = loss(*args)
        return value * (float("nan") if len(calls) > 7 else 1), metrics

    monkeypatch.setattr(METHODS[method], "loss", break_in_the_third_epoch)
    with refusal("epoch 3", "lr", tmp_path / "model.safetensors"):
        run(configured(dataset, method), dataset, RunFolder(tmp_path), CPU, checkpoint_seconds=0.0)
    state = RunFolder(tmp_path).read_state()
    assert state["update"] == 7
    for tensors in (weights(tmp_path), state["model"]):
        assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_new_run_is_refused_or_replaces_a_diverged_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """A diverged run with weights of a good epoch is kept; one without any is replaced."""
    config, folder, loss, calls = configured(dataset, "supervised"), RunFolder(tmp_path), Supervised.loss, list[int]()

    def broken(*args: Any) -> Any:
        calls.append(1)
        value, metrics = loss(*args)
        return value * (float("nan") if len(calls) > 3 * epochs else 1), metrics

    with monkeypatch.context() as patch:
        patch.setattr(Supervised, "loss", broken)
        with refusal(f"diverged in epoch {epochs + 1}", *(["overwrite"] if epochs else [])):
            run(config, dataset, folder, CPU)
    assert folder.has_diverged
    if epochs:
        with refusal(folder.path, f"diverged in epoch {epochs + 1}", "overwrite", "lr"):
            run(config, dataset, folder, CPU)
    assert folder.has_diverged
    run(config, dataset, folder, CPU, overwrite=epochs > 0)
    assert folder.finished
    assert not folder.diverged.exists()


def test_a_diverged_run_may_be_resumed(dataset: Dataset, tmp_path: Path) -> None:
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path)
    folder.begin(config, dataset, CPU)
    folder.write_json(folder.diverged, {"epoch": 1, "reason": "loss became infinite or NaN"})
    run(config, dataset, folder, CPU, resume=True)
    assert not folder.diverged.exists()


def test_a_collapse_to_chance_is_reported(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refine, calls = Supervised.refine, list[int]()

    def forget(*args: Any, **more: Any) -> Any:
        calls.append(1)
        path = refine(*args, **more)
        return path if len(calls) < 3 else dataclasses.replace(path, log_beliefs=path.log_beliefs.roll(1, dims=-1))

    monkeypatch.setattr(Supervised, "refine", forget)
    with refusal("accuracy has fallen"):
        trained(dataset, tmp_path, epochs=20, lr=0.01)


@pytest.fixture
def collapsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training accuracy falls in epochs 3 and 5, whatever is learned, and validation NLL rises; three updates an epoch
    are enough."""
    monkeypatch.setattr("ricnet.evaluation.metrics.FIRST_UPDATES", 0)
    monkeypatch.setattr("ricnet.training.callbacks.validation_nll", lambda line: float(line["epoch"]))
    accumulate, accuracy = Trainer._accumulate, (0.5, 0.9, 0.55, 0.9, 0.55)

    def scripted(self: Trainer, metrics: dict[str, torch.Tensor]) -> None:
        epoch = self.update // self.updates_per_epoch
        accumulate(self, metrics | {"accuracy": torch.tensor(accuracy[epoch])})

    monkeypatch.setattr(Trainer, "_accumulate", scripted)


def collapsed(dataset: Dataset, folder: Path, *, resume: bool = False, **changes: Any) -> str:
    """Train five epochs; what the terminal shows."""
    shown = Console(file=io.StringIO(), width=80)
    config = configured(dataset, "supervised", epochs=5, patience=None, **changes)
    run(config, dataset, RunFolder(folder), CPU, resume=resume, console=shown)
    return shown.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "rows"), [("supervised", 96), ("anytime", 96), ("ric", 32)])
def test_the_rows_behind_training_accuracy_are_counted(
    method: str, rows: int, finished: Callable[[str], RunFolder]
) -> None:
    """On a CPU RIC measures one of three batches of 32."""
    assert {line["measured_rows"] for line in read_lines(finished(method).path)} == {rows}


@pytest.mark.usefixtures("collapsing")
def test_a_collapse_stands_in_its_epochs_and_once_in_the_terminal(dataset: Dataset, tmp_path: Path) -> None:
    said = collapsed(dataset, tmp_path, lr=0.003, clip=None)
    found = [line.get("collapse") for line in read_lines(tmp_path)]
    entry = {"accuracy": pytest.approx(0.55), "best_accuracy": pytest.approx(0.9)}
    assert found == [None, None, entry, None, entry]
    assert said.count("collapsed") == 1
    assert "note: training collapsed in epoch 3: training accuracy 55.0 %, 35.0 points below its best. " in said
    assert "best weights so far are of epoch" in said
    assert "train again with a lower --lr (now 0.003) or with --clip 0.5." in said
    assert "a lower --clip (now 1)." in collapsed(dataset, tmp_path / "clipped", clip=1.0)


@pytest.mark.usefixtures("collapsing")
@pytest.mark.parametrize(("stop", "told"), [(6, ""), (7, ""), (10, "epoch 3")])
def test_a_resumed_run_keeps_best_accuracy_and_notes(
    dataset: Dataset, tmp_path: Path, stop: int, told: str, stop_after: Callable[[int], None]
) -> None:
    stop_after(stop)
    with refusal("--resume", kind=Interrupted):
        collapsed(dataset, tmp_path)
    rest = collapsed(dataset, tmp_path, resume=True)
    assert ["collapse" in line for line in read_lines(tmp_path)] == [False, False, True, False, True]
    assert ("collapsed in epoch 3" in rest) == (not told)
    assert "collapsed in epoch 4" not in rest


@pytest.mark.usefixtures("collapsing")
def test_at_the_best_validation_nll_there_is_no_alarm(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricnet.training.callbacks.validation_nll", lambda line: -float(line["epoch"] == 5))
    said = collapsed(dataset, tmp_path)
    assert ["collapse" in line for line in read_lines(tmp_path)] == [False, False, False, False, False]
    assert "collapsed" not in said


def test_a_jump_of_the_value_loss_is_no_collapse(dataset: Dataset, tmp_path: Path) -> None:
    """A collapse after it is told too; each once."""
    shown = Console(file=io.StringIO(), width=1000)
    trainer: Any = SimpleNamespace(
        **{"dataset": dataset, "device": CPU, "folder": None, "console": shown, "best": {"epoch": 19}},
        **{"config": configured(dataset, "supervised"), "settings": configured(dataset, "supervised").optimization},
    )
    alarm = Collapse()
    alarm.on_train_begin(trainer)
    for epoch in range(1, 26):
        train = {"value_loss": 1.0 if epoch < 22 else 9.0, "accuracy": 0.9 if epoch < 24 else 0.1}
        val = {"nll": float(epoch)}
        alarm.on_epoch_end(trainer, {"epoch": epoch, "update": 9 * epoch, "train": train, "val": val})
    jump, collapse = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert jump.startswith(
        "note: the value loss jumped in epoch 22: to 9, from a median of 1 in the 20 epochs before. The best weights "
        "so far are of epoch 19. If it does not recover, train again with"
    )
    assert collapse.startswith("note: training collapsed in epoch 24: training accuracy 10.0 %, 80.0 points below ")


def test_resuming_reads_past_damaged_lines(dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None]) -> None:
    stop_after(7)
    with refusal("--resume", kind=Interrupted):
        trained(dataset, tmp_path)
    damaged = b'[1]\n{"epoch": 2, "train": {"accuracy": "high", "value_loss": null}, "val": {"nll": 1.0}}\n'
    (tmp_path / "metrics.jsonl").write_bytes(damaged)
    folder = RunFolder(tmp_path)
    assert [line["epoch"] for line in folder.metrics_lines()] == [2]
    training, collapse = Trainer(configured(dataset, "supervised"), dataset, folder, CPU), Collapse()
    training.load_state_dict(folder.read_state(print))
    collapse.on_train_begin(training)
    assert collapse.watch.best == 0
    (tmp_path / "metrics.jsonl").unlink()
    assert list(folder.metrics_lines()) == []


def test_the_average_follows_the_weights(dataset: Dataset) -> None:
    """By hand: the share of the new weights is 9 / (9 + n) at update n, until that falls below 1 − average."""
    learner = trainer(dataset, average=0.75)
    expected = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    for n in range(1, 41):
        learner._step()
        share = max(9 / (9 + n), 0.25)
        for name, tensor in learner.model.state_dict().items():
            if tensor.is_floating_point():
                expected[name] += share * (tensor - expected[name])
    for name, tensor in learner.average.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name])


def test_patience_ends_a_run_that_no_longer_gets_better_and_survives_a_stop(
    dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"epochs": 60, "lr": 0.05, "patience": 3, "select": "accuracy"}
    evaluation, lines = trained(dataset, tmp_path / "whole", **changes), read_lines(tmp_path / "whole")
    assert len(lines) == evaluation["selected_epoch"] + 3 < 60
    stop_after(3 * len(lines) - 4)  # in the middle of the last epoch but one
    with pytest.raises(Interrupted):
        trained(dataset, tmp_path / "parts", **changes)
    monkeypatch.undo()
    config = configured(dataset, "supervised", **changes)
    run(config, dataset, RunFolder(tmp_path / "parts"), CPU, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert len(read_lines(tmp_path / "parts")) == len(lines)
    assert trained(dataset, tmp_path / "last", **changes | {"select": "last", "epochs": 9})["selected_epoch"] == 9
    with refusal("patience", 0):
        configured(dataset, patience=0)


def test_the_epoch_is_chosen_by_weighted_rows(dataset: Dataset, tmp_path: Path) -> None:
    data = weighted(dataset)
    config = configured(dataset, "supervised", select="accuracy", average=0.0)
    learner = Trainer(config, data, RunFolder(tmp_path), CPU)
    learner._step()
    with torch.no_grad():
        beliefs = learner.model.eval()(data.val.inputs).softmax(-1).double().numpy()
    learner.model.train()
    learner.update = learner.updates_per_epoch
    for callback in learner.callbacks:
        callback.on_train_begin(learner)
    learner.summed = learner.updates_per_epoch
    learner._validate()
    for callback in learner.callbacks:
        callback.on_train_end(learner)
    shares = np.arange(1, 31) / 465
    right = beliefs.argmax(1) == data.val.labels.numpy()
    accuracy, nll = shares @ right, -(shares @ np.log(beliefs[range(30), data.val.labels]))
    assert learner.best["score"] == pytest.approx([accuracy, -nll], rel=1e-5)


def test_with_balanced_classes_the_epoch_is_chosen_by_all_rows(dataset: Dataset) -> None:
    """30, 2 and 4 training rows have a third of the weight each; the validation rows count alike all the same."""
    order = torch.cat([torch.nonzero(dataset.train.labels == k).flatten()[:n] for k, n in enumerate((30, 2, 4))])
    uneven = dataclasses.replace(dataset, train=dataset.train.take(order))
    made = trainer(uneven, class_weight="balanced", batch_size=16)
    outcome = made.outcome = observe(made.method, made.average, made.dataset.val)
    accuracy, nll, _ = made.selection.scores(made, {})
    labels, beliefs = outcome.labels, outcome.log_beliefs.double().exp() * torch.tensor([30, 2, 4]) / 36
    shifted = (beliefs / beliefs.sum(1, keepdim=True)).log()
    assert nll == pytest.approx(-float(shifted[range(len(labels)), labels].mean()), abs=1e-6)
    recalls = [(outcome.log_beliefs[labels == k].argmax(1) == k).double().mean() for k in range(3)]
    assert accuracy == pytest.approx(float(sum(recalls)) / 3)


def points(folder: RunFolder) -> list[tuple[str, int, float]]:
    """As TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder.curves)).Reload()
    return [(tag, point.step, point.value) for tag in found.Tags()["scalars"] for point in found.Scalars(tag)]


def test_every_epoch_is_a_point_once_even_if_the_run_was_stopped(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    line = {"epoch": 3, "lr": 0.1, "val": {"accuracy": 0.5, "aurc": None}, "note": "text"}
    assert list(scalars(line)) == [("lr", 0.1), ("val/accuracy", 0.5)]
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path / "run")

    def kill(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise ZeroDivisionError  # after the first curves were written, before a checkpoint was

    with pytest.raises(ZeroDivisionError):
        run(config, dataset, folder, CPU, callbacks=[Tracking(), EachEpoch(kill)], checkpoint_seconds=1e9)
    run(config, dataset, folder, CPU, callbacks=[Tracking()], resume=True)
    lines = read_lines(folder.path)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    expected = {(name, line["epoch"]): value for line in lines for name, value in scalars(line)}
    found = points(folder)
    assert Counter((name, step) for name, step, _ in found) == Counter(expected.keys())
    assert {(name, step): value for name, step, value in found} == pytest.approx(expected, rel=1e-6)
    run(config, dataset, folder, CPU, overwrite=True)
    assert not folder.curves.exists()


def test_a_missing_extra_is_named_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with refusal("track", "tensorboard", "ricnet[track]"):
        Tracking()
    with refusal("track", "tensorboard"):
        train(tmp_path / "nowhere", out=tmp_path / "run", track="tensorboard")
