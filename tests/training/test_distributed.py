"""Training in two processes against one: on a CPU, over gloo, in double precision."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing as torch_multiprocessing

from problems import CPU, PARTS, MadeOnce, read, read_lines, weights
from refusals import refusal
from ricnet.data import Augmentation, Dataset, Split, epoch_order
from ricnet.distributed import ALONE, Processes, first_on_each_machine, launched, together
from ricnet.methods import METHODS
from ricnet.models.classifier import settle_horizon
from ricnet.models.run import RunFolder
from ricnet.training.api import pick_device, run
from ricnet.training.console import Interrupted
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

GPU = torch.device("cuda")
UPDATES = 3
SYSTEMS: dict[str, dict[str, Any]] = {
    **{method: {} for method in sorted(METHODS)},
    "ric, with longer rounds": {"updates_per_snapshot": 3, "reward_floor": None},
    "ric, in parts": {"accumulate": 2},
    "supervised, batch norm": {"encoder": "conv"},
    "ric, with exits": {"exits": "stage"},
}
ALIKE = [system for system in SYSTEMS if "batch norm" not in system]


def images(rows: int, seed: int, weighted: bool) -> Split:
    """Bars of three lengths, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    bars = (torch.arange(5) <= labels[:, None] + 1).float()[:, None, None] * 100
    pixels = (bars + 100 * torch.rand(rows, 1, 5, 5, generator=generator)).to(torch.uint8)
    return Split(pixels, labels, torch.rand(rows, generator=generator) if weighted else None)


def problem(weighted: bool = False) -> Dataset:
    splits = (images(60, 0, weighted), images(31, 1, weighted), images(33, 2, False))
    return Dataset("bars", *splits, ("a", "b", "c"), Augmentation(crop_padding=1, flip=True))


def settings(system: str, dataset: Dataset, **changes: Any) -> Any:
    """Batches of 15, so that the shares are not even equally large."""
    method = system.split(",")[0]
    own = {} if method == "supervised" or "exits" in SYSTEMS[system] else {"horizon": 3}
    common = {"epochs": 2, "batch_size": 15, "width": 0.1, "encoder": "mlp", "cutout": 2, "average": 0.9, "lr": 1e-3}
    config = configure(dataset, method, "fast", **(common | own | SYSTEMS[system] | changes))
    return settle_horizon(config, dataset.input_shape)


@contextmanager
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def after_updates(system: str, processes: Processes, device: torch.device = CPU, **changes: Any) -> dict[str, Any]:
    with double_precision():
        dataset = problem(weighted=system == "ric")
        trainer = Trainer(settings(system, dataset, **changes), dataset, None, device, processes=processes)
        rows = []
        for _ in range(UPDATES):
            rows.append(trainer._next_rows())
            trainer._step()
    average = {f"weights of {name}": tensor for name, tensor in trainer.average.state_dict().items()}
    return {"rng": trainer.state_dict()["rng"], "rows": rows, **trainer.sums, **average}


def run_anew(folder: Path, resume: bool = False) -> dict[str, Any]:
    with double_precision():
        dataset = problem(weighted=True)
        config = settings("ric", dataset, calibration="temperature", measure_all=True)
        return run(config, dataset, RunFolder(folder), CPU, resume=resume)


def stop_after(update: int, folder: Path, rank: int = 0) -> None:
    """Only one process is asked to stop."""
    step = Trainer._step

    def step_and_ask(self: Trainer) -> None:
        step(self)
        if self.update == update and self.processes.rank == rank:
            os.kill(os.getpid(), signal.SIGINT)

    Trainer._step = step_and_ask  # type: ignore[method-assign]
    try:
        run_anew(folder)
    except (Interrupted, KeyboardInterrupt):
        return
    finally:
        Trainer._step = step  # type: ignore[method-assign]
    raise AssertionError("it went on")


def all_together(processes: Processes, folder: Path) -> None:
    """All that two processes are asked to do, in one go: starting them takes longer than what they do."""
    save_updates(processes, folder)
    evaluation = run_anew(folder / "two")
    assert evaluation == processes.broadcast(lambda: evaluation)
    stop_after(5, folder / "two, then one", rank=1)
    run_anew(folder / "one, then two", resume=True)
    (folder / f"spoken {processes.rank}").write_text(json.dumps(speak(processes)))


def speak(processes: Processes) -> dict[str, Any]:
    shard = processes.shard(3)
    own = torch.arange(6.0).view(2, 3)[:, shard.own]
    return {
        "own": own.tolist(),
        "all": shard.all_gather(own, 1).tolist(),
        "contiguous": shard.all_gather(own, 1).is_contiguous(),
        "agreed": processes.broadcast(lambda: processes.rank),
        "collected": processes.gather(processes.rank),
        "any": [processes.any(processes.rank == 1), processes.any(False)],
        "sum": processes.all_reduce(torch.tensor([processes.rank, 1])).tolist(),
    }


def save_updates(processes: Processes, folder: Path) -> None:
    torch.save({system: after_updates(system, processes) for system in SYSTEMS}, folder / f"updates {processes.rank}")


def on_one_gpu(processes: Processes, folder: Path) -> None:
    updates = {system: after_updates(system, processes, GPU, precision="float32") for system in SYSTEMS}
    torch.save(updates, folder / f"updates {processes.rank}")


def join_and_work(rank: int, count: int, folder: str, work: Callable[[Processes, Path], None]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    try:
        work(Processes(rank, count), Path(folder))
    finally:
        dist.destroy_process_group()


def start_together(folder: Path, work: Callable[[Processes, Path], None], count: int = 2) -> None:
    multiprocessing.set_forkserver_preload(["ricnet.training.api", "torch._dynamo"])  # once, not in each
    given = (count, str(folder), work)
    torch_multiprocessing.start_processes(join_and_work, given, nprocs=count, start_method="forkserver")


@pytest.fixture(scope="module")
def together_and_alone(made_once: MadeOnce) -> Path:
    return made_once("together and alone", train_together_and_alone)


def train_together_and_alone(folder: Path) -> None:
    run_anew(folder / "one")
    stop_after(3, folder / "one, then two")
    start_together(folder, all_together)
    run_anew(folder / "two, then one", resume=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_processes_on_a_gpu_make_the_updates_of_one(tmp_path: Path) -> None:
    """Over gloo: NCCL wants a GPU for each process."""
    start_together(tmp_path, on_one_gpu)
    for system in ALIKE:
        alone = after_updates(system, Processes(), GPU, precision="float32", accumulate=1, cuda_graph=False)
        for rank in range(2):
            made = torch.load(tmp_path / f"updates {rank}")[system]
            for name, tensor in alone.items():
                if name.startswith("weights"):
                    torch.testing.assert_close(made[name], tensor, atol=1e-8, rtol=1e-8)


def assert_near(made: dict[str, Any], expected: dict[str, Any]) -> None:
    assert torch.equal(made["rng"], expected["rng"])
    for name in expected.keys() - {"rng", "rows", "explained_variance"}:
        tolerance = 1e-10 if name.startswith("weights") else 1e-5  # metrics are summed in single precision
        torch.testing.assert_close(made[name], expected[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("system", ALIKE)
def test_two_processes_make_the_updates_of_one(system: str, together_and_alone: Path) -> None:
    alone = after_updates(system, Processes(), accumulate=1)
    for rank in range(2):
        assert_near(torch.load(together_and_alone / f"updates {rank}")[system], alone)


def test_batch_norm_differs_but_all_hold_the_same(together_and_alone: Path) -> None:
    system = "supervised, batch norm"
    first, second = (torch.load(together_and_alone / f"updates {rank}")[system] for rank in range(2))
    alone = after_updates(system, Processes())
    for name in alone.keys() - {"rows"}:
        assert torch.equal(first[name], second[name]), name
    mean = "weights of 0.encoder.1.running_mean"  # equally many rows a share, but for one
    torch.testing.assert_close(first[mean], alone[mean], rtol=0.1, atol=0.02)
    assert not torch.equal(first[mean], alone[mean])


def test_every_row_is_seen_once(together_and_alone: Path) -> None:
    shares = [torch.load(together_and_alone / f"updates {rank}")["ric"]["rows"] for rank in range(2)]
    seen = torch.cat([rows for batch in zip(*shares, strict=True) for rows in batch])
    assert torch.equal(seen, epoch_order(60, 0, 0)[: UPDATES * 15])
    assert [len(rows) for rows in shares[0]] == [7] * UPDATES


@pytest.mark.parametrize("name", ["two", "two, then one", "one, then two"])
def test_a_run_is_the_same_however_many_processes_make_it(name: str, together_and_alone: Path) -> None:
    one, other = together_and_alone / "one", together_and_alone / name
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
    torch.testing.assert_close(weights(other), weights(one), atol=1e-9, rtol=1e-9)
    for left, right in zip(*(read_lines(folder) for folder in (one, other)), strict=True):
        assert flat(left) == pytest.approx(flat(right), rel=1e-5, abs=1e-7)


def test_evaluation_is_gathered_exactly(together_and_alone: Path) -> None:
    one, two = (together_and_alone / name for name in ("one", "two"))
    expected, made = (read(folder / "evaluation.json") for folder in (one, two))
    assert [made[part]["n"] for part in PARTS] == [60, 31, 33]
    assert flat(made) == pytest.approx(flat(expected), rel=1e-6, abs=1e-9)
    assert made["hints"] == expected["hints"]
    with np.load(one / "predictions.npz") as left, np.load(two / "predictions.npz") as right:
        assert all(np.allclose(left[name], right[name], atol=1e-6) for name in left.files)


def test_communication_between_processes(together_and_alone: Path) -> None:
    first, second = (read(together_and_alone / f"spoken {rank}") for rank in range(2))
    assert (first["own"], second["own"]) == ([[0], [3]], [[1, 2], [4, 5]])
    assert (first["collected"], second["collected"]) == ([0, 1], [1])
    for said in (first, second):
        assert said["all"] == [[0, 1, 2], [3, 4, 5]]
        assert said["contiguous"]
        assert (said["agreed"], said["any"], said["sum"]) == (0, [True, False], [1, 2])


def flat(entry: Any, name: str = "") -> dict[str, float]:
    """All numbers but those of clocks, and the one metric that is a mean over processes."""
    if isinstance(entry, dict | list):
        items = entry.items() if isinstance(entry, dict) else enumerate(entry)
        return {key: number for label, value in items for key, number in flat(value, f"{name}/{label}").items()}
    skipped = ("seconds", "images_per_second", "explained_variance")
    return {} if entry is None or isinstance(entry, str) or name.endswith(skipped) else {name: float(entry)}


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_row_belongs_to_one_process(count: int) -> None:
    for rows in (0, 1, 2, 15, 16):
        slices = [Processes(rank, count).slice(rows) for rank in range(count)]
        assert [row for own in slices for row in range(rows)[own]] == list(range(rows))
        sizes = [own.stop - own.start for own in slices]
        assert max(sizes) - min(sizes) <= 1


def test_alone_nothing_is_sent_or_copied() -> None:
    rows, shard = torch.rand(4, 3), ALONE.shard(3)
    assert torch.equal(rows[:, shard.own], rows)
    assert shard.all_gather(rows, 1) is ALONE.all_reduce(rows) is rows
    assert ALONE.broadcast(lambda: 5) == 5
    assert ALONE.gather("own") == ["own"]
    assert (ALONE.any(True), ALONE.any(False), ALONE.first) == (True, False, True)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))


def test_ranks_come_from_torchrun(torchrun: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() == Processes(1, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda:1")
    with refusal("device"):
        pick_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with refusal("--nproc-per-node"):
        pick_device("auto")
    monkeypatch.setenv("RANK", "one")
    with refusal("torchrun"):
        launched()


def test_a_lost_process_is_a_ricnet_error_and_other_errors_pass(
    torchrun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    with refusal("process 1 of 2", "resume"), together(CPU):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(RuntimeError, match="sizes"), together(CPU):
        raise RuntimeError("sizes differ")


def test_the_first_of_a_machine_goes_ahead(torchrun: None, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(Processes, "any", lambda *_: order.append("waits"))
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with first_on_each_machine(Processes(0, 2)):
            order.append(f"{rank} goes in")
    assert order == ["0 goes in", "waits", "waits", "1 goes in"]


@pytest.mark.slow
def test_three_processes_make_the_updates_of_one(tmp_path: Path) -> None:
    start_together(tmp_path, save_updates, 3)
    for system in ALIKE:
        alone = after_updates(system, Processes(), accumulate=1)
        for rank in range(3):
            assert_near(torch.load(tmp_path / f"updates {rank}")[system], alone)


ONE_MACHINE = ("--standalone", "--nproc-per-node", "2")


def start(
    arguments: list[str], log: Path, place: tuple[str, ...] = ONE_MACHINE, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", *place, "-m", "ricnet", "train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=cwd)


@pytest.mark.slow
def test_two_machines_find_each_other_and_one_of_them_writes(tmp_path: Path) -> None:
    """Two torchruns that know nothing of each other but an address, each in a folder of its own."""
    settings = ["digits", "--encoder", "mlp", "--width", "0.1", "--horizon", "3", "--epochs", "3", "--out", "run"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    homes = [tmp_path / "first", tmp_path / "second", tmp_path / "alone"]
    for home in homes:
        home.mkdir()
    jobs = [start(settings, home / "log", place, home) for home in homes[:2]]
    for job, home in zip(jobs, homes, strict=False):
        assert job.wait(180) == 0, (home / "log").read_text()
    subprocess.run([sys.executable, "-m", "ricnet", "train", *settings], check=True, cwd=homes[2])
    (written,) = [home / "run" for home in homes[:2] if (home / "run").exists()]
    made, expected = (read(run / "evaluation.json") for run in (written, homes[2] / "run"))
    assert [made[part]["n"] for part in PARTS] == [expected[part]["n"] for part in PARTS]
    assert flat(read_lines(written)[0]) == pytest.approx(flat(read_lines(homes[2] / "run")[0]), rel=1e-3, abs=1e-6)


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.2)
    assert holds()


@pytest.mark.slow
def test_torchrun_is_stopped_killed_and_resumed_with_nothing_lost(tmp_path: Path) -> None:
    """Asked to stop, then with a worker killed, then in one process to the end: what an unbroken run leaves."""
    settings = ["digits", "--encoder", "mlp", "--width", "0.1", "--horizon", "3", "--epochs", "60"]
    torn, log = tmp_path / "torn", tmp_path / "log"
    out = ["--out", str(torn), "--checkpoint-seconds", "1"]
    job = start([*settings, *out], log)
    wait_until((torn / "state.pt").exists)
    job.send_signal(signal.SIGINT)
    assert job.wait(60) != 0
    assert "nothing is lost" in log.read_text()

    written = (torn / "state.pt").stat().st_mtime_ns
    job = start([*out, "--resume"], log)
    wait_until(lambda: (torn / "state.pt").stat().st_mtime_ns != written)
    os.kill(int(subprocess.check_output(["pgrep", "-P", str(job.pid)]).split()[-1]), signal.SIGKILL)
    assert job.wait(60) != 0
    assert "lost its connection" in log.read_text()

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    single = [sys.executable, "-m", "ricnet", "train"]
    subprocess.run([*single, *out, "--resume"], check=True, env=environment)
    subprocess.run([*single, *settings, "--out", str(tmp_path / "whole")], check=True, env=environment)
    first, second = (read_lines(folder) for folder in (torn, tmp_path / "whole"))
    assert [line["update"] for line in first] == [line["update"] for line in second]
    assert flat(first[0]) == pytest.approx(flat(second[0]), rel=1e-3, abs=1e-6)
    assert first[-1]["val"]["accuracy"] == pytest.approx(second[-1]["val"]["accuracy"], abs=0.1)


@pytest.mark.slow
def test_errors_of_several_processes(tmp_path: Path) -> None:
    for arguments, message in (
        (["digits", "--batch-size", "3"], "raise --batch-size"),
        (["nowhere"], "No data set is called 'nowhere'"),
        (["--out", str(tmp_path), "--resume"], "holds files that are not a run"),
    ):
        job = start(arguments, tmp_path / "log")
        assert job.wait(120) != 0
        text = (tmp_path / "log").read_text()
        assert message in text
        assert "ricnet/" not in text.split("torch.distributed.elastic")[0]  # none of our own tracebacks
