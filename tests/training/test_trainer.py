import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ricnet
from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.methods import METHODS, Supervised
from ricnet.training.api import configure, run
from ricnet.training.classifier import autocast_dtype
from ricnet.training.console import Interrupted, StopRequest
from ricnet.training.run import RunFolder
from ricnet.training.trainer import Trainer

CPU = torch.device("cpu")
SHORT = {"epochs": 4, "batch_size": 16, "width": 0.1}
FEW_STEPS = {"horizon": 4}


def settings(dataset: Dataset, method: str = "ric", **changes: Any) -> Any:
    own = {} if method == "supervised" else FEW_STEPS
    return configure(dataset, method, "fast", **(SHORT | own | changes))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_run_leaves_everything_behind(dataset: Dataset, method: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    evaluation = run(settings(dataset, method), dataset, folder, CPU)
    chosen = ["calibration.json", *(["halting.json"] if method == "ric" else [])]
    left = ["config.json", "evaluation.json", "examples.npz", "metrics.jsonl", "model.safetensors", "predictions.npz"]
    assert sorted(p.name for p in folder.path.iterdir()) == sorted(left + chosen)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["update"] == 4 * (96 // 16)
    assert json.loads(folder.evaluation.read_text()) == evaluation
    assert {evaluation[part]["n"] for part in ("train", "val", "test")} == {96, 30, 60}
    header = json.loads(folder.config.read_text())
    assert header["data"]["rows"] == {"train": 96, "val": 30, "test": 60}
    assert header["hardware"]["torch"] == torch.__version__


def test_ric_logs_what_people_who_train_agents_look_for(dataset: Dataset, tmp_path: Path) -> None:
    run(settings(dataset), dataset, RunFolder(tmp_path), CPU)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    expected = {"approx_kl", "ratio_deviation", "explained_variance", "mean_c", "entropy", "variance_penalty", "return"}
    assert expected | {"logit_norm", "loss", "gradient_norm"} <= line["train"].keys()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(dataset: Dataset, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(name))  # what the caller did with random numbers before must not matter
        run(settings(dataset, seed=seed), dataset, RunFolder(tmp_path / name), CPU)
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not torch.equal(*(weights(tmp_path / n)["refiner.from_thought.weight"] for n in "ac"))


def test_training_leaves_the_callers_random_numbers_alone(dataset: Dataset, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(settings(dataset), dataset, RunFolder(tmp_path), CPU)
    assert torch.equal(torch.rand(3), expected)


def test_the_best_epoch_is_selected_and_ties_go_to_the_lower_nll(dataset: Dataset, tmp_path: Path) -> None:
    raw = settings(dataset, "supervised", epochs=12, calibration="none")
    evaluation = run(raw, dataset, RunFolder(tmp_path), CPU)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: (line["val"]["accuracy"], -line["val"]["nll"]))
    assert evaluation["selected_epoch"] == best["epoch"]
    assert evaluation["val"]["nll"] == pytest.approx(best["val"]["nll"], rel=1e-5)
    by_nll = run(settings(dataset, "supervised", epochs=12, select="nll"), dataset, RunFolder(tmp_path / "n"), CPU)
    lines = [json.loads(line) for line in (tmp_path / "n" / "metrics.jsonl").read_text().splitlines()]
    assert by_nll["selected_epoch"] == min(lines, key=lambda line: line["val"]["nll"])["epoch"]


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("updates", [1, 5, 6, 11])
def test_stopping_after_any_update_changes_nothing(
    dataset: Dataset, method: str, updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(dataset, method)
    run(config, dataset, RunFolder(tmp_path / "whole"), CPU)
    step = Trainer._step

    def step_and_ask_to_stop(self: Trainer) -> None:
        step(self)
        if self.update == updates:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", step_and_ask_to_stop)
        with pytest.raises(Interrupted, match=f"stopped after {updates} of 24 updates.*--out .*parts --resume"):
            run(config, dataset, RunFolder(tmp_path / "parts"), CPU)
    torch.manual_seed(99)
    run(config, dataset, RunFolder(tmp_path / "parts"), CPU, resume=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    logs = [(tmp_path / n / "metrics.jsonl").read_text().splitlines() for n in ("whole", "parts")]
    values = [[(d["epoch"], d["train"], d["val"]) for d in map(json.loads, log)] for log in logs]
    assert values[0] == values[1]


@pytest.mark.slow
def test_killed_at_a_random_moment_and_resumed_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    """SIGKILL, for real: the process has no chance to tidy up. Three times, then once to the end, as a user types it;
    test_kills.py has more."""
    script = textwrap.dedent(
        """
        import sys, torch
        torch.set_num_threads(1)
        from ricnet.apps.cli import main
        flags = ["--epochs", "5", "--width", "0.1", "--horizon", "4", "--rollouts", "1", "--device", "cpu"]
        main(["train", "digits", *flags, "--checkpoint-seconds", "0", *sys.argv[1:]])
        """
    )

    def command(out: str, *flags: str) -> list[str]:
        return [sys.executable, "-c", script, "--out", str(tmp_path / out), *flags]

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command("whole"), check=True, **quiet)
    random = np.random.default_rng()
    flags: list[str] = []
    for _ in range(3):
        process = subprocess.Popen(command("killed", *flags), **quiet)
        deadline = time.monotonic() + 60
        while not (tmp_path / "killed" / "state.pt").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.4))
        process.kill()
        process.wait()
        if (tmp_path / "killed" / "evaluation.json").exists():
            break
        flags = ["--resume"]
    else:
        subprocess.run(command("killed", "--resume"), check=True, **quiet)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


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


@pytest.mark.parametrize("method", sorted(METHODS))
def test_divergence_is_reported_and_the_last_good_state_kept(
    dataset: Dataset, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = METHODS[method].loss
    calls = []

    def break_in_the_third_epoch(*args: Any) -> Any:
        calls.append(1)
        value, metrics = loss(*args)
        return value * (float("nan") if len(calls) > 13 else 1), metrics

    monkeypatch.setattr(METHODS[method], "loss", break_in_the_third_epoch)
    with pytest.raises(RicnetError, match=r"diverged in epoch 3: loss .*NaN; the best weights.*lower --lr") as caught:
        run(settings(dataset, method), dataset, RunFolder(tmp_path), CPU, checkpoint_seconds=0.0)
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())
    state = RunFolder(tmp_path).read_state()
    assert state is not None
    assert state["update"] == 13
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_collapse_to_chance_is_reported(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refine = Supervised.refine
    calls = []

    def forget(*args: Any, **more: Any) -> Any:
        calls.append(1)
        path = refine(*args, **more)
        return path if len(calls) < 3 else dataclasses.replace(path, log_beliefs=path.log_beliefs.roll(1, dims=-1))

    monkeypatch.setattr(Supervised, "refine", forget)
    with pytest.raises(RicnetError, match=r"validation accuracy has fallen to .* from"):
        run(settings(dataset, "supervised", epochs=20, lr=0.01), dataset, RunFolder(tmp_path), CPU)


def test_a_run_is_never_overwritten_unless_told(dataset: Dataset, tmp_path: Path) -> None:
    config, folder = settings(dataset, "supervised"), RunFolder(tmp_path / "run")
    run(config, dataset, folder, CPU)
    before = folder.evaluation.read_bytes()
    with pytest.raises(RicnetError, match=r"holds a finished run.*--overwrite"):
        run(config, dataset, folder, CPU)
    with pytest.raises(RicnetError, match="finished; nothing is left to resume"):
        run(config, dataset, folder, CPU, resume=True)
    assert folder.evaluation.read_bytes() == before
    (folder.path / "mine.txt").write_text("keep")
    run(dataclasses.replace(config, seed=3), dataset, folder, CPU, overwrite=True)
    assert folder.evaluation.read_bytes() != before
    assert (folder.path / "mine.txt").read_text() == "keep"


def test_folders_that_are_no_runs_are_left_alone(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(RicnetError, match="not a run"):
        run(settings(dataset), dataset, RunFolder(tmp_path), CPU, overwrite=True)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RicnetError, match="is a file"):
        run(settings(dataset), dataset, RunFolder(file), CPU)


def test_an_unfinished_run_says_how_to_go_on_and_refuses_other_data(dataset: Dataset, tmp_path: Path) -> None:
    config, folder = settings(dataset), RunFolder(tmp_path / "run")
    folder.begin(config, dataset, CPU)
    with pytest.raises(RicnetError, match="unfinished run; go on with --resume"):
        run(config, dataset, folder, CPU)
    other = dataclasses.replace(dataset, class_names=("a", "b", "d"))
    with pytest.raises(RicnetError, match="data is not what"):
        run(config, other, folder, CPU, resume=True)


def test_a_checkpoint_cut_in_half_is_named(dataset: Dataset, tmp_path: Path) -> None:
    config, folder = settings(dataset), RunFolder(tmp_path / "run")
    folder.begin(config, dataset, CPU)
    Trainer(config, dataset, folder, CPU).checkpoint()
    folder.state.write_bytes(folder.state.read_bytes()[: folder.state.stat().st_size // 2])
    with pytest.raises(RicnetError, match=r"state\.pt is damaged"):
        run(config, dataset, folder, CPU, resume=True)


def test_an_unwritable_folder_is_one_sentence(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RicnetError, match="cannot be made"):
        run(settings(dataset), dataset, RunFolder(tmp_path / "file" / "run"), CPU)


def test_precision() -> None:
    assert autocast_dtype("auto", CPU) is None
    assert autocast_dtype("float32", CPU) is None
    assert autocast_dtype("bf16", CPU) is torch.bfloat16


def test_training_in_bf16_on_a_cpu_learns_too(dataset: Dataset, tmp_path: Path) -> None:
    config = settings(dataset, "supervised", precision="bf16", epochs=30, width=0.5)
    assert run(config, dataset, RunFolder(tmp_path), CPU)["test"]["accuracy"] > 0.7


def test_train_takes_any_module_as_encoder_and_load_wants_it_back(dataset: Dataset, tmp_path: Path) -> None:
    def module() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh())

    trained = ricnet.train(dataset, encoder=module(), out=tmp_path / "run", epochs=2, horizon=3)
    inputs = dataset.test.inputs[:5]
    with pytest.raises(RicnetError, match="your own encoder; pass the module"):
        ricnet.load(tmp_path / "run")
    again = ricnet.load(tmp_path / "run", encoder=module())
    torch.testing.assert_close(again.refine(inputs).final, trained.refine(inputs).final)


def test_train_refuses_unknown_settings(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match="horizont: no such setting for the method ric"):
        ricnet.train(dataset, out=tmp_path / "run", horizont=3)
    assert not (tmp_path / "run").exists()


def test_the_snapshot_is_renewed_every_so_many_updates_and_stands_still_between(
    dataset: Dataset, tmp_path: Path
) -> None:
    trainer = Trainer(settings(dataset, updates_per_snapshot=3), dataset, RunFolder(tmp_path), CPU)
    for update in range(7):
        before = trainer.model.refiner.policy.weight.clone()
        trainer._step()
        if update % 3 == 0:
            held = before
        assert torch.equal(trainer.snapshot.refiner.policy.weight, held)
        assert not torch.equal(trainer.model.refiner.policy.weight, held)


def test_the_schedule_reaches_the_optimizer(dataset: Dataset, tmp_path: Path) -> None:
    run(settings(dataset, "supervised", lr=0.1, warmup_epochs=2.0), dataset, RunFolder(tmp_path), CPU)
    rates = [json.loads(line)["lr"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rates[:2] == pytest.approx([0.05, 0.1])
    assert 0 < rates[3] < rates[2] < 0.1


def test_the_gradient_is_clipped(dataset: Dataset, tmp_path: Path) -> None:
    """Plain SGD moves the weights by rate × gradient, so the length of a step shows the gradient's norm."""
    for clip, longest in ((1e-3, 1e-3), (None, None)):
        config = settings(dataset, "supervised", optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, clip=clip)
        trainer = Trainer(config, dataset, RunFolder(tmp_path), CPU)
        before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
        trainer._step()
        moved = (torch.cat([p.detach().flatten() for p in trainer.model.parameters()]) - before).norm().item()
        assert moved == pytest.approx(longest, rel=1e-3) if longest else moved > 0.01


def test_after_recording_at_the_first_update_a_resumed_run_sees_its_own_epoch(dataset: Dataset, tmp_path: Path) -> None:
    """On a GPU the update is recorded on a batch of epoch 0 before the state is restored."""
    config = settings(dataset, "supervised")
    trainer = Trainer(config, dataset, RunFolder(tmp_path), CPU)
    for _ in range(8):
        trainer._step()
    state = trainer.state()
    expected = trainer._next_rows()
    other = Trainer(config, dataset, RunFolder(tmp_path), CPU)
    other._next_rows()
    other.restore(state)
    assert torch.equal(other._next_rows(), expected)


def test_resuming_from_python(dataset: Dataset, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(configure(dataset, "supervised", "fast", **SHORT), dataset, CPU)
    ricnet.train(dataset, method="supervised", out=folder.path, resume=True, device="cpu", **SHORT)
    assert folder.finished


def test_training_leaves_the_callers_encoder_alone(dataset: Dataset, tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 6)
    before = module.weight.clone()
    ricnet.train(dataset, method="supervised", encoder=module, out=tmp_path / "run", epochs=1, device="cpu")
    assert torch.equal(module.weight, before)


def test_overwriting_with_settings_that_cannot_be_keeps_the_old_run(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match="--lr inf is out of range"):
        settings(dataset, lr=float("inf"))
    with pytest.raises(RicnetError, match="--halt-threshold nan"):
        settings(dataset, halt_threshold=float("nan"))
    with pytest.raises(RicnetError, match=r"--width -3\.0"):
        settings(dataset, width=-3.0)
    with pytest.raises(RicnetError, match="--seed -1"):
        settings(dataset, seed=-1)


def test_the_average_follows_the_weights_as_said(dataset: Dataset, tmp_path: Path) -> None:
    """By hand: the share of the new weights is 9 / (9 + n) at update n, until that falls below 1 − average."""
    trainer = Trainer(settings(dataset, "supervised", average=0.75), dataset, RunFolder(tmp_path), CPU)
    expected = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    for n in range(1, 41):
        trainer._step()
        share = max(9 / (9 + n), 0.25)
        for name, tensor in trainer.model.state_dict().items():
            expected[name] = (
                expected[name] + share * (tensor - expected[name]) if tensor.is_floating_point() else tensor
            )
    for name, tensor in trainer.average.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name])


def test_a_run_with_an_average_is_judged_by_it_and_resumes_exactly(dataset: Dataset, tmp_path: Path) -> None:
    config = settings(dataset, "ric", average=0.9)
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    run(config, dataset, whole, CPU)
    parts.begin(config, dataset, CPU)
    trainer = Trainer(config, dataset, parts, CPU)
    for _ in range(7):
        trainer._step()
        if trainer.update % trainer.updates_per_epoch == 0:
            trainer._finish_epoch()
    trainer.checkpoint()
    run(config, dataset, parts, CPU, resume=True)
    assert_same(weights(whole.path), weights(parts.path))


def test_a_snapshot_every_update_is_the_network_itself(dataset: Dataset, tmp_path: Path) -> None:
    trainer = Trainer(settings(dataset, updates_per_snapshot=1), dataset, RunFolder(tmp_path), CPU)
    assert trainer.snapshot is trainer.model
    passes: list[int] = []
    trainer.model.get_submodule("backbone").register_forward_hook(lambda *_: passes.append(1))
    trainer._step()
    assert len(passes) == 1


def test_only_what_is_recorded_and_long_is_compiled_unasked(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(settings(dataset, "ric"), dataset, RunFolder(tmp_path), CPU)
    monkeypatch.setattr("ricnet.training.trainer.WORTH_COMPILING", trainer.total_updates)
    assert trainer._compiles(recorded=True)
    assert not trainer._compiles(recorded=False)
    monkeypatch.setattr("ricnet.training.trainer.WORTH_COMPILING", trainer.total_updates + 1)
    assert not trainer._compiles(recorded=True)


def test_compiled_training_is_the_same_and_leaves_evaluation_alone(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for torch.compile, which takes too long here; what it makes of the network is a GPU's matter."""
    calls: list[str] = []

    def compile_(plain: Any, dynamic: bool) -> Any:
        assert not dynamic
        return lambda *inputs, **options: (calls.append("compiled"), plain(*inputs, **options))[1]

    monkeypatch.setattr(torch, "compile", compile_)
    plain = run(settings(dataset, "ric", compile="off"), dataset, RunFolder(tmp_path / "plain"), CPU)
    assert not calls
    fast = run(settings(dataset, "ric", compile="on"), dataset, RunFolder(tmp_path / "fast"), CPU)
    assert plain["test"] == fast["test"]
    updates = 4 * (96 // 16)
    assert len(calls) == updates * (1 + FEW_STEPS["horizon"] + 2)  # encoder, steps, advantages, loss; no evaluation


def test_patience_ends_a_run_that_no_longer_gets_better_and_survives_a_stop(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(dataset, "supervised", epochs=60, lr=0.05, patience=3)
    evaluation = run(config, dataset, RunFolder(tmp_path / "whole"), CPU)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == evaluation["selected_epoch"] + 3 < 60
    best = max(lines, key=lambda line: (line["val"]["accuracy"], -line["val"]["nll"]))
    assert evaluation["selected_epoch"] == best["epoch"]
    step, stops = Trainer._step, [len(lines) * 6 - 9]  # in the middle of the last epochs but one

    def step_and_ask_to_stop(self: Trainer) -> None:
        step(self)
        if self.update in stops:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", step_and_ask_to_stop)
        with pytest.raises(Interrupted):
            run(config, dataset, RunFolder(tmp_path / "parts"), CPU)
    run(config, dataset, RunFolder(tmp_path / "parts"), CPU, resume=True)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) == len(lines)


def test_the_last_epoch_is_kept_where_nothing_is_to_choose_it(dataset: Dataset, tmp_path: Path) -> None:
    assert run(settings(dataset, select="last"), dataset, RunFolder(tmp_path), CPU)["selected_epoch"] == 4
    unhurried = settings(dataset, select="last", patience=1)
    assert run(unhurried, dataset, RunFolder(tmp_path / "patient"), CPU)["selected_epoch"] == 4
    with pytest.raises(RicnetError, match=r"--patience 0 .* at least 1"):
        settings(dataset, patience=0)


def weighted(dataset: Dataset) -> Dataset:
    parts = {name: getattr(dataset, name) for name in ("train", "val")}
    heavy = {name: dataclasses.replace(part, weights=torch.arange(1.0, len(part) + 1)) for name, part in parts.items()}
    return dataclasses.replace(dataset, **heavy)


def test_weights_reach_the_loss_with_their_rows_and_are_one_on_average(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(settings(dataset, "supervised"), weighted(dataset), RunFolder(tmp_path), CPU)
    loss, seen = Supervised.loss, []

    def remember(*args: Any) -> Any:
        seen.append(args[5])
        return loss(*args)

    monkeypatch.setattr(Supervised, "loss", remember)
    rows = [trainer._next_rows() for _ in range(6) if trainer._step() is None]  # the rows of the update that follows
    assert trainer.weights is not None
    assert trainer.weights.mean().item() == pytest.approx(1)
    for told, place in zip(seen[1:], rows[:-1], strict=True):
        torch.testing.assert_close(told, (place + 1) / 48.5)  # 1 … 96, whose mean is 48.5
    plain = Trainer(settings(dataset, "supervised"), dataset, RunFolder(tmp_path), CPU)
    assert len(plain._batch(plain._next_rows())) == 2


def test_the_epoch_is_chosen_by_weighted_rows(dataset: Dataset, tmp_path: Path) -> None:
    data = weighted(dataset)
    trainer = Trainer(settings(dataset, "supervised", select="accuracy", average=0.0), data, RunFolder(tmp_path), CPU)
    trainer._step()
    with torch.no_grad():
        beliefs = trainer.model.eval()(data.val.inputs).softmax(-1).double().numpy()
    trainer.model.train()
    trainer.update = trainer.updates_per_epoch
    trainer._finish_epoch()
    shares = np.arange(1, 31) / 465
    right = beliefs.argmax(1) == data.val.labels.numpy()
    accuracy, nll = shares @ right, -(shares @ np.log(beliefs[range(30), data.val.labels]))
    assert trainer.best["score"] == pytest.approx([accuracy, -nll], rel=1e-5)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_trains_with_weights(dataset: Dataset, method: str, tmp_path: Path) -> None:
    """The third class counts for nothing in training, so it is hardly ever answered."""
    train = dataclasses.replace(dataset.train, weights=(dataset.train.labels != 2).float())
    config = settings(dataset, method, epochs=10, lr=0.02, select="last")
    run(config, dataclasses.replace(dataset, train=train), RunFolder(tmp_path), CPU)
    path = ricnet.load(tmp_path).refine(dataset.test.inputs)
    assert (path.final.argmax(-1) == 2).float().mean() < 0.1
