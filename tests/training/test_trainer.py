import dataclasses
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import ricnet
from problems import CPU, PARTS, assert_same_weights, configured, epochs, read, read_lines, weights
from refusals import refusal
from ricnet.data import Dataset
from ricnet.errors import Interrupted
from ricnet.evaluation.evaluate import observe
from ricnet.methods import METHODS, Supervised
from ricnet.models.build import autocast_dtype
from ricnet.models.run import RunFolder
from ricnet.training.api import run
from ricnet.training.console import StopRequest
from ricnet.training.trainer import Trainer

EVERY_METHOD = pytest.mark.parametrize("method", sorted(METHODS))
Finished = Callable[[str], RunFolder]


def trainer(dataset: Dataset, method: str = "supervised", **changes: Any) -> Trainer:
    return Trainer(configured(dataset, method, **changes), dataset, None, CPU)


def trained(dataset: Dataset, folder: Path, method: str = "supervised", **changes: Any) -> Any:
    return run(configured(dataset, method, **changes), dataset, RunFolder(folder), CPU)


@EVERY_METHOD
def test_a_run_leaves_everything_behind(finished: Finished, method: str) -> None:
    folder = finished(method)
    left = ["config.json", "evaluation.json", "examples.npz", "metrics.jsonl", "model.safetensors", "predictions.npz"]
    left += ["manifest.json"]
    chosen = ["calibration.json", *(["halting.json"] if method.startswith("ric") else [])]
    assert sorted(path.name for path in folder.path.iterdir()) == sorted(left + chosen)
    lines, header, evaluation = read_lines(folder.path), read(folder.config), read(folder.evaluation)
    assert [(line["epoch"], line["update"]) for line in lines] == [(1, 3), (2, 6), (3, 9)]
    assert [evaluation[part]["n"] for part in PARTS] == list(header["data"]["rows"].values()) == [96, 30, 60]
    assert header["hardware"]["torch"] == torch.__version__
    if method.startswith("ric"):  # what people who train agents look for
        agent = {"approx_kl", "ratio_deviation", "explained_variance", "mean_c", "entropy", "variance_penalty"}
        assert agent | {"return", "logit_norm", "loss", "gradient_norm"} <= lines[0]["train"].keys()


def test_the_seed_decides_and_the_callers_random_numbers_neither_matter_nor_change(
    dataset: Dataset, finished: Finished, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    evaluation = trained(dataset, tmp_path / "again", "ric")
    assert torch.equal(torch.rand(3), expected)
    assert read(tmp_path / "again" / "evaluation.json") == evaluation
    assert_same_weights(tmp_path / "again", finished("ric").path)
    trained(dataset, tmp_path / "other", "ric", seed=2)
    name = "refiner.from_thought.weight"
    assert not torch.equal(weights(tmp_path / "other")[name], weights(tmp_path / "again")[name])


def test_calibrated_keeps_the_latest_epoch_that_is_about_as_good_as_the_best(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch 2 is best; 4 differs from it by less than a standard error, 5 by more; patience counts from 2."""
    noise = torch.linspace(-1, 1, len(dataset.val)).double()
    shown = iter([-2.0 + 0 * noise, -1.0 + 0 * noise, -2.0 + 0 * noise, -1.001 + 0.1 * noise, -1.5 + 0.1 * noise])
    monkeypatch.setattr("ricnet.training.trainer.calibrated_scores", lambda *seen: next(shown))
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


@EVERY_METHOD
@pytest.mark.parametrize("updates", [1, 2, 3, 5])
def test_stopping_after_any_update_changes_nothing(
    dataset: Dataset,
    finished: Finished,
    method: str,
    updates: int,
    tmp_path: Path,
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Averaged weights, snapshots, optimizer, random numbers: all go on as if nothing had happened."""
    stop_after(updates)
    with refusal(f"{updates} of 9", f"--out {tmp_path} --resume", kind=Interrupted):
        trained(dataset, tmp_path, method)
    monkeypatch.undo()
    torch.manual_seed(99)
    run(configured(dataset, method), dataset, RunFolder(tmp_path), CPU, resume=True)
    assert_same_weights(tmp_path, finished(method).path)
    assert epochs(tmp_path) == epochs(finished(method).path)


LEVEL: dict[str, Any] = {"schedule": "constant", "preset": "paper", "device": "cpu"}


@EVERY_METHOD
def test_a_finished_run_goes_on_to_more_epochs_bit_for_bit(dataset: Dataset, method: str, tmp_path: Path) -> None:
    """Snapshots, averages, selection and random numbers as in a run that was started with as many."""
    small = {"batch_size": 32, "width": 0.1, "average": 0.9, "calibration": "temperature", "baselines": False}
    steps = {} if method == "supervised" else {"horizon": 3}
    changes = {**LEVEL, **small, **steps, "method": method}
    short, long = tmp_path / "short", tmp_path / "long"
    ricnet.train(dataset, out=short, epochs=3, **changes)
    first = read(short / "evaluation.json")
    model = ricnet.train(dataset, out=short, resume=True, epochs=7, device="cpu")
    ricnet.train(dataset, out=long, epochs=7, **changes)
    assert model.config.optimization.epochs == 7
    assert_same_weights(short, long)
    assert epochs(short) == epochs(long)
    assert [line["epoch"] for line in read_lines(short)] == [1, 2, 3, 4, 5, 6, 7]
    seconds = [line["seconds"] for line in read_lines(short)]
    assert seconds == sorted(seconds)
    ours, theirs = read(short / "evaluation.json"), read(long / "evaluation.json")
    assert ours["seconds"] >= first["seconds"]
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert read(short / "config.json") == read(long / "config.json")


def test_what_cannot_go_on_says_why_and_stays_as_it_was(dataset: Dataset, tmp_path: Path) -> None:
    changes = {"method": "supervised", "width": 0.1, "baselines": False, "epochs": 2}
    waved, level, warm = (tmp_path / name for name in ("waved", "level", "warm"))
    ricnet.train(dataset, out=waved, **changes, **LEVEL | {"schedule": "cosine"})
    ricnet.train(dataset, out=level, **changes, **LEVEL)
    ricnet.train(dataset, out=warm, **changes, **LEVEL, warmup_epochs=1)
    assert [(folder / "state.pt").is_file() for folder in (waved, level, warm)] == [False, True, False]
    (level / "state.pt").unlink()
    before = (level / "evaluation.json").read_bytes()
    for folder, named in ((waved, "schedule='cosine'"), (warm, "warmup_epochs"), (level, "no state.pt")):
        with refusal(folder, named, "overwrite=True"):
            ricnet.train(dataset, out=folder, resume=True, device="cpu", epochs=4)
    assert (level / "evaluation.json").read_bytes() == before
    with refusal("epochs changes"):
        ricnet.train(dataset, out=level, resume=True, device="cpu", epochs=1)


def test_a_study_leaves_no_state(dataset: Dataset, tmp_path: Path) -> None:
    """Nobody goes on with its many runs."""
    run(configured(dataset, "supervised", schedule="constant"), dataset, RunFolder(tmp_path), CPU)
    assert not list(tmp_path.glob("state*"))


def test_a_second_signal_is_no_longer_caught() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.asked
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


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
def test_the_next_run_is_told_that_the_last_one_diverged_or_takes_its_place(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """Weights of a good epoch are not replaced unasked; without any there is nothing to keep."""
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
    """Training accuracy falls in epochs 3 and 4, whatever is learned; three updates an epoch are enough."""
    monkeypatch.setattr("ricnet.evaluation.collapse.FIRST_UPDATES", 0)
    accumulate, accuracy = Trainer._accumulate, (0.5, 0.9, 0.55, 0.55, 0.95)

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


@pytest.mark.usefixtures("collapsing")
def test_a_collapse_stands_in_its_epochs_and_once_in_the_terminal(dataset: Dataset, tmp_path: Path) -> None:
    said = collapsed(dataset, tmp_path, lr=0.003, clip=None)
    found = [line.get("collapse") for line in read_lines(tmp_path)]
    entry = {"accuracy": pytest.approx(0.55), "best_accuracy": pytest.approx(0.9)}
    assert found == [None, None, entry, entry, None]
    assert said.count("collapsed") == 1
    assert "note: training collapsed in epoch 3: training accuracy 55.0 %, 35.0 points below its best. " in said
    assert "best weights so far are of epoch" in said
    assert "train again with a lower --lr (now 0.003) or with --clip 0.5." in said
    assert "a lower --clip (now 1)." in collapsed(dataset, tmp_path / "clipped", clip=1.0)


@pytest.mark.usefixtures("collapsing")
@pytest.mark.parametrize(("stop", "told"), [(6, ""), (7, ""), (10, "epoch 3")])
def test_a_resumed_run_knows_the_best_accuracy_and_what_it_told(
    dataset: Dataset, tmp_path: Path, stop: int, told: str, stop_after: Callable[[int], None]
) -> None:
    stop_after(stop)
    with refusal("--resume", kind=Interrupted):
        collapsed(dataset, tmp_path)
    rest = collapsed(dataset, tmp_path, resume=True)
    assert ["collapse" in line for line in read_lines(tmp_path)] == [False, False, True, True, False]
    assert ("collapsed in epoch 3" in rest) == (not told)
    assert "collapsed in epoch 4" not in rest


def test_resuming_reads_past_damaged_lines(dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None]) -> None:
    stop_after(7)
    with refusal("--resume", kind=Interrupted):
        trained(dataset, tmp_path)
    damaged = b'[1]\n{"epoch": 2, "train": {"accuracy": "high", "value_loss": null}, "val": {"nll": 1.0}}\n'
    (tmp_path / "metrics.jsonl").write_bytes(damaged)
    folder = RunFolder(tmp_path)
    assert [line["epoch"] for line in folder.metrics_lines()] == [2]
    training = Trainer(configured(dataset, "supervised"), dataset, folder, CPU)
    training.restore(folder.read_state(print))
    assert training.watch.best == 0
    (tmp_path / "metrics.jsonl").unlink()
    assert list(folder.metrics_lines()) == []


def test_a_run_is_never_overwritten_unless_told(dataset: Dataset, tmp_path: Path) -> None:
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path / "run")
    folder.begin(config, dataset, CPU)
    with refusal(folder.path, "resume"):
        run(config, dataset, folder, CPU)
    with refusal("data"):
        run(config, dataclasses.replace(dataset, class_names=("a", "b", "d")), folder, CPU, resume=True)
    run(config, dataset, folder, CPU, resume=True)
    before = folder.evaluation.read_bytes()
    for again, named in (({}, "overwrite"), ({"resume": True}, "finished")):
        with refusal(folder.path, named):
            run(config, dataset, folder, CPU, **again)
    assert folder.evaluation.read_bytes() == before
    (folder.path / "mine.txt").write_text("keep")
    run(dataclasses.replace(config, seed=3), dataset, folder, CPU, overwrite=True)
    assert folder.evaluation.read_bytes() != before
    assert (folder.path / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize(("place", "named"), [("", "not a run"), ("file", "is a file"), ("file/run", "cannot be made")])
def test_folders_that_are_no_runs_are_left_alone(dataset: Dataset, tmp_path: Path, place: str, named: str) -> None:
    (tmp_path / "file").write_text("important")
    with refusal(tmp_path / place, named):
        run(configured(dataset), dataset, RunFolder(tmp_path / place), CPU, overwrite=True)
    assert (tmp_path / "file").read_text() == "important"


@pytest.mark.parametrize(
    ("setting", "value"), [("lr", float("inf")), ("halt_threshold", float("nan")), ("width", -3.0), ("seed", -1)]
)
def test_settings_out_of_range_are_refused(dataset: Dataset, setting: str, value: float) -> None:
    with refusal(setting, value):
        configured(dataset, **{setting: value})


def test_training_in_bf16_on_a_cpu_learns_too(dataset: Dataset, tmp_path: Path) -> None:
    precisions = {"auto": None, "float32": None, "bf16": torch.bfloat16}
    assert {name: autocast_dtype(name, CPU) for name in precisions} == precisions
    assert trained(dataset, tmp_path, precision="bf16", epochs=30, width=0.5)["test"]["accuracy"] > 0.7


def test_any_module_is_an_encoder_which_is_left_alone_and_wanted_back(dataset: Dataset, tmp_path: Path) -> None:
    module, inputs = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh()), dataset.test.inputs[:5]
    before = module[0].weight.clone()
    model = ricnet.train(dataset, encoder=module, out=tmp_path / "run", epochs=2, horizon=3, device="cpu")
    assert torch.equal(module[0].weight, before)
    with refusal("encoder"):
        ricnet.load(tmp_path / "run")
    again = ricnet.load(tmp_path / "run", encoder=torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh()))
    torch.testing.assert_close(again.refine(inputs).final, model.refine(inputs).final)


def test_the_snapshot_is_renewed_every_so_many_updates_and_stands_still_between(dataset: Dataset) -> None:
    learner = trainer(dataset, "ric", updates_per_snapshot=3)
    for update in range(7):
        before = learner.model.refiner.policy.weight.clone()
        learner._step()
        if update % 3 == 0:
            held = before
        assert torch.equal(learner.snapshot.refiner.policy.weight, held)
        assert not torch.equal(learner.model.refiner.policy.weight, held)


def test_a_snapshot_every_update_is_the_network_itself(dataset: Dataset) -> None:
    learner, passes = trainer(dataset, "ric-on-policy"), list[int]()
    assert learner.snapshot is learner.model
    learner.model.get_submodule("backbone").register_forward_hook(lambda *_: passes.append(1))
    learner._step()
    assert len(passes) == 1


def test_the_schedule_reaches_the_optimizer(dataset: Dataset, tmp_path: Path) -> None:
    trained(dataset, tmp_path, lr=0.1, warmup_epochs=2.0, epochs=4)
    rates = [line["lr"] for line in read_lines(tmp_path)]
    assert rates[:2] == pytest.approx([0.05, 0.1])
    assert 0 < rates[3] < rates[2] < 0.1


@pytest.mark.parametrize("clip", [1e-3, None])
def test_the_gradient_is_clipped(dataset: Dataset, clip: float | None) -> None:
    """Plain SGD moves the weights by rate × gradient, so the length of a step shows the gradient's norm."""
    learner = trainer(dataset, optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, clip=clip)
    before = torch.cat([p.detach().flatten().clone() for p in learner.model.parameters()])
    learner._step()
    moved = (torch.cat([p.detach().flatten() for p in learner.model.parameters()]) - before).norm().item()
    assert moved == pytest.approx(1e-3, rel=1e-3) if clip else moved > 0.01


def test_after_recording_at_the_first_update_a_resumed_run_sees_its_own_epoch(dataset: Dataset) -> None:
    """On a GPU the update is recorded on a batch of epoch 0 before the state is restored."""
    learner, other = trainer(dataset), trainer(dataset)
    for _ in range(4):
        learner._step()
    state, expected = learner.state(), learner._next_rows()
    other._next_rows()
    other.restore(state)
    assert torch.equal(other._next_rows(), expected)


def test_the_average_follows_the_weights_as_said(dataset: Dataset) -> None:
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


def test_only_what_is_recorded_and_long_is_compiled_unasked(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = trainer(dataset, "ric")
    for worth, recorded, compiles in ((9, True, True), (9, False, False), (10, True, False)):
        monkeypatch.setattr("ricnet.training.trainer.WORTH_COMPILING", worth)
        assert learner._compiles(recorded=recorded) == compiles


def test_compiled_training_is_the_same_and_leaves_evaluation_alone(
    dataset: Dataset, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for torch.compile, which takes too long here; what it makes of the network is a GPU's matter."""
    calls = list[int]()

    def compile_(plain: Any, dynamic: bool) -> Any:
        assert not dynamic
        return lambda *inputs, **options: (calls.append(1), plain(*inputs, **options))[1]

    monkeypatch.setattr(torch, "compile", compile_)
    trained(dataset, tmp_path / "off", epochs=1, compile="off")
    assert not calls
    trained(dataset, tmp_path / "on", "ric-on-policy", compile="on")
    assert_same_weights(tmp_path / "on", finished("ric-on-policy").path)
    assert len(calls) == 9 * (1 + 3 + 2)  # encoder, steps, advantages and loss of each update; no evaluation


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


def weighted(dataset: Dataset) -> Dataset:
    parts = {name: getattr(dataset, name) for name in ("train", "val")}
    heavy = {name: dataclasses.replace(part, weights=torch.arange(1.0, len(part) + 1)) for name, part in parts.items()}
    return dataclasses.replace(dataset, **heavy)


def test_weights_reach_the_loss_with_their_rows_and_are_one_on_average(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, plain = trainer(weighted(dataset)), trainer(dataset)
    loss, seen = Supervised.loss, list[Any]()
    monkeypatch.setattr(Supervised, "loss", lambda *args: (seen.append(args[5]), loss(*args))[1])
    rows = [learner._next_rows() for _ in range(3) if learner._step() is None]  # the rows of the update that follows
    assert learner.weights.mean().item() == pytest.approx(1)
    for told, place in zip(seen[1:], rows[:-1], strict=True):
        torch.testing.assert_close(told, (place + 1) / 48.5)  # 1 … 96, whose mean is 48.5
    assert len(plain._batch(plain._next_rows())) == 2


def test_the_epoch_is_chosen_by_weighted_rows(dataset: Dataset, tmp_path: Path) -> None:
    data = weighted(dataset)
    config = configured(dataset, "supervised", select="accuracy", average=0.0)
    learner = Trainer(config, data, RunFolder(tmp_path), CPU)
    learner._step()
    with torch.no_grad():
        beliefs = learner.model.eval()(data.val.inputs).softmax(-1).double().numpy()
    learner.model.train()
    learner.update = learner.updates_per_epoch
    learner._finish_epoch()
    shares = np.arange(1, 31) / 465
    right = beliefs.argmax(1) == data.val.labels.numpy()
    accuracy, nll = shares @ right, -(shares @ np.log(beliefs[range(30), data.val.labels]))
    assert learner.best["score"] == pytest.approx([accuracy, -nll], rel=1e-5)


@pytest.mark.parametrize("method", ["ric", "act"])
def test_who_counts_for_nothing_is_not_learned(dataset: Dataset, method: str, tmp_path: Path) -> None:
    """The third class, which is then hardly ever answered."""
    train = dataclasses.replace(dataset.train, weights=(dataset.train.labels != 2).float())
    trained(dataclasses.replace(dataset, train=train), tmp_path, method, epochs=8, lr=0.05, select="last")
    path = ricnet.load(tmp_path).refine(dataset.test.inputs)
    assert (path.final.argmax(-1) == 2).float().mean() < 0.1


def test_with_balanced_classes_the_epoch_is_chosen_by_all_rows(dataset: Dataset) -> None:
    """30, 2 and 4 training rows have a third of the weight each; the validation rows count alike all the same."""
    order = torch.cat([torch.nonzero(dataset.train.labels == k).flatten()[:n] for k, n in enumerate((30, 2, 4))])
    uneven = dataclasses.replace(dataset, train=dataset.train.take(order))
    made = trainer(uneven, class_weight="balanced", batch_size=16)
    outcome = observe(made.method, made.average, made.dataset.val)
    accuracy, nll, _ = made._scores(outcome, {})
    labels, beliefs = outcome.labels, outcome.log_beliefs.double().exp() * torch.tensor([30, 2, 4]) / 36
    shifted = (beliefs / beliefs.sum(1, keepdim=True)).log()
    assert nll == pytest.approx(-float(shifted[range(len(labels)), labels].mean()), abs=1e-6)
    recalls = [(outcome.log_beliefs[labels == k].argmax(1) == k).double().mean() for k in range(3)]
    assert accuracy == pytest.approx(float(sum(recalls)) / 3)
