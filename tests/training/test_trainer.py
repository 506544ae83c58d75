import dataclasses
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ricnet
from problems import (
    CPU,
    PARTS,
    assert_same_weights,
    configured,
    epochs,
    read,
    read_lines,
    trained,
    trainer,
    weighted,
    weights,
)
from refusals import refusal
from ricnet.data import Augmentation, Dataset, Split
from ricnet.errors import Interrupted
from ricnet.methods import METHODS, Supervised
from ricnet.models.classifier import autocast_dtype
from ricnet.models.config import from_json
from ricnet.models.run import RunFolder, read_config
from ricnet.training.api import run
from ricnet.training.console import StopRequest
from ricnet.training.recipes import changed, configure
from ricnet.training.trainer import impossible

EVERY_METHOD = pytest.mark.parametrize("method", sorted(METHODS))
Finished = Callable[[str], RunFolder]


@EVERY_METHOD
def test_a_run_leaves_everything_behind(finished: Finished, method: str) -> None:
    folder = finished(method)
    left = ["config.json", "evaluation.json", "examples.npz", "metrics.jsonl", "model.safetensors", "predictions.npz"]
    left += ["manifest.json", "rows.hash"]
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


def test_a_run_that_cannot_be_resumed_is_refused_and_unchanged(dataset: Dataset, tmp_path: Path) -> None:
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
    """Runs of a study are not extended, so they keep no checkpoint."""
    run(configured(dataset, "supervised", schedule="constant"), dataset, RunFolder(tmp_path), CPU)
    assert not list(tmp_path.glob("state*"))


def test_a_second_signal_is_no_longer_caught() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_is_overwritten_only_on_request(dataset: Dataset, tmp_path: Path) -> None:
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


def test_any_module_can_be_the_encoder_and_is_needed_to_load(dataset: Dataset, tmp_path: Path) -> None:
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
    state, expected = learner.state_dict(), learner._next_rows()
    other._next_rows()
    other.load_state_dict(state)
    assert torch.equal(other._next_rows(), expected)


def test_alternating_flips_show_each_side_in_turn_also_after_resuming() -> None:
    images = torch.arange(2, dtype=torch.uint8).repeat(64, 1, 3, 5)  # every image differs from its mirror
    split = Split(images, torch.arange(64) % 2)
    data = Dataset("stripes", split, split, split, ("a", "b"), Augmentation(flip=True))
    how: dict[str, Any] = {"flip": "alternating", "encoder": "mlp", "batch_size": 16, "epochs": 4}
    learner, resumed = trainer(data, **how), trainer(data, **how)
    seen = torch.zeros(4, 64, dtype=torch.int64)
    for update in range(16):
        rows = learner._next_rows()
        seen[update // 4, rows] = learner.batches(rows)[0][:, 0, 0, 0].long()
        learner.update += 1
    assert torch.equal(seen[0], 1 - seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert 16 < seen[0].sum() < 48
    resumed._next_rows()
    resumed.update = 12
    rows = resumed._next_rows()
    assert torch.equal(resumed.batches(rows)[0][:, 0, 0, 0].long(), seen[3, rows])


@pytest.mark.parametrize("method", ["supervised", "ric-on-policy"])
def test_a_final_fit_uses_every_row_and_chooses_nothing(
    dataset: Dataset, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ricnet.train(dataset, method=method, final_fit=True, epochs=2, width=0.1, out=tmp_path, device="cpu")
    evaluation = read(RunFolder(tmp_path).evaluation)
    assert evaluation["train"]["n"] == len(dataset.train) + len(dataset.val)
    assert (evaluation["val"]["n"], evaluation["selected_epoch"], evaluation["fitted"]) == (len(dataset.val), 2, {})
    assert any("--final-fit" in note and "trained on too" in note for note in evaluation["notes"])
    assert (model.config.final_fit, model.config.optimization.select, model.temperature) == (True, "last", 1.0)
    said = capsys.readouterr().err
    assert "exact copies" not in said
    assert "train acc " in said
    assert "val acc " not in said
    for name, value in {"select": "nll", "patience": 3, "halt_rule": "auto", "calibration": "temperature"}.items():
        with refusal(name, value, "final_fit", "needs validation rows") as caught:
            ricnet.train(dataset, final_fit=True, out=tmp_path / "other", device="cpu", **{name: value})
        assert "out of range" not in str(caught.value)
    started = configure(dataset, method, "fast", patience=3)
    assert changed(started, {"final_fit": True, "epochs": 9}).optimization.patience is None
    with refusal("final_fit", "epochs"):
        changed(started, {"final_fit": True})


def test_mixed_labels_reach_the_loss_and_are_learned_from(dataset: Dataset, tmp_path: Path) -> None:
    learner = trainer(dataset, mixup=0.4)
    rows = learner._next_rows()
    inputs, labels = learner.batches(rows)
    assert (inputs.dtype, labels.shape) == (torch.float32, (len(rows), 3))
    mixed = (labels.amax(1) < 0.99) & (labels.sum(1) > 0.99)
    assert 0.2 < mixed.float().mean() < 0.9
    with refusal("mixup", "weighted rows"):
        trainer(weighted(dataset), mixup=0.4)
    for method in ("supervised", "ric-on-policy"):
        plain, mixing = (
            trained(dataset, tmp_path / f"{method}{alpha}", method, mixup=alpha, label_smoothing=alpha / 4, epochs=20)
            for alpha in (0.0, 0.2)
        )
        assert mixing["test"]["accuracy"] > plain["test"]["accuracy"] - 0.15
        assert mixing["test"]["nll"] < math.log(3)


def test_weights_reach_the_loss_with_their_rows_and_are_one_on_average(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, plain = trainer(weighted(dataset)), trainer(dataset)
    loss, seen = Supervised.loss, list[Any]()
    monkeypatch.setattr(Supervised, "loss", lambda *args: (seen.append(args[5]), loss(*args))[1])
    rows = [learner._next_rows() for _ in range(3) if learner._step() is None]  # the rows of the update that follows
    assert learner.batches.weights.mean().item() == pytest.approx(1)
    for told, place in zip(seen[1:], rows[:-1], strict=True):
        torch.testing.assert_close(told, (place + 1) / 48.5)  # 1 … 96, whose mean is 48.5
    assert len(plain.batches(plain._next_rows())) == 2


@pytest.mark.parametrize("method", ["ric", "act"])
def test_rows_of_weight_0_are_not_learned(dataset: Dataset, method: str, tmp_path: Path) -> None:
    """The third class, which is then hardly ever answered."""
    train = dataclasses.replace(dataset.train, weights=(dataset.train.labels != 2).float())
    trained(dataclasses.replace(dataset, train=train), tmp_path, method, epochs=8, lr=0.05, select="last")
    path = ricnet.load(tmp_path).refine(dataset.test.inputs)
    assert (path.final.argmax(-1) == 2).float().mean() < 0.1


OLD = Path(__file__).parent / "interrupted"


def test_a_run_that_an_older_version_left_in_an_epoch_goes_on_as_it_would_have(
    dataset: Dataset, tmp_path: Path
) -> None:
    """Stopped after 7 of 15 updates, with averaged weights and patience; expected.safetensors is the unbroken run."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(OLD, folder.path)
    config = from_json(read_config(folder.path)["config"], "config.json")
    run(config, dataset, folder, CPU, resume=True)
    made, expected = weights(folder.path), load_file(OLD / "expected.safetensors")
    assert made.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(made[name], tensor)


def test_the_state_has_the_entries_that_older_versions_wrote(dataset: Dataset) -> None:
    saved = RunFolder(OLD).read_state()
    learner = trainer(dataset, average=0.9)
    learner._step()
    assert learner.state_dict().keys() - saved.keys() == {"summed"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"update": 16}, "update 16 of 15"),
        ({"update": -1}, "update -1"),
        ({"update": 7.0}, "update 7.0"),
        ({"collapsed": -1}, "counts"),
        ({"best": {}}, "no best epoch"),
        ({"best": {"epoch": 3, "best_epoch": 2}}, "best epoch 3 after 2"),
        ({"best": {"epoch": 2, "best_epoch": 0}}, "best epoch 0"),
        ({"best": {"epoch": 2, "best_epoch": 2, "weights": {}}}, "another network"),
        ({}, None),
    ],
)
def test_an_impossible_state_is_refused(dataset: Dataset, change: dict[str, Any], named: str | None) -> None:
    learner = trainer(dataset, average=0.9, epochs=5, encoder="mlp")
    why = impossible(learner, RunFolder(OLD).read_state() | change)
    assert why is None if named is None else named in str(why)
