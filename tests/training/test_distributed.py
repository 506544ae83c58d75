"""Two processes that train together against one that trains alone, on a CPU, over gloo."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing as torch_multiprocessing

from ricnet.data import Augmentation, Dataset, Split
from ricnet.methods import METHODS
from ricnet.processes import Processes
from ricnet.training.api import configure
from ricnet.training.trainer import Trainer

CPU = torch.device("cpu")
EXACT = 1e-10
WITH_SNAPSHOT = {"updates_per_snapshot": 2, "exact_gain": True, "reward_floor": None, "objective": "ppo"}
SYSTEMS: dict[str, dict[str, Any]] = {
    **{method: {} for method in sorted(METHODS)},
    "ric, with snapshots": WITH_SNAPSHOT,
    "ric, logistic-normal": {"head": "logistic-normal"},
    "ric, in parts": {"accumulate": 2},
}


def images(rows: int, seed: int, weighted: bool = False) -> Split:
    """Bars of three lengths, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    bars = (torch.arange(5) <= labels[:, None] + 1).float()[:, None, None] * 100
    pixels = (bars + 100 * torch.rand(rows, 1, 5, 5, generator=generator)).to(torch.uint8)
    return Split(pixels, labels, torch.rand(rows, generator=generator) if weighted else None)


def problem(weighted: bool = False) -> Dataset:
    augmentation = Augmentation(crop_padding=1, flip=True)
    return Dataset("bars", images(60, 0, weighted), images(31, 1), images(33, 2), ("a", "b", "c"), augmentation)


def settings(system: str, dataset: Dataset, **changes: Any) -> Any:
    method = system.split(",")[0]
    own = {} if method == "supervised" else {"horizon": 3}
    common = {"epochs": 2, "batch_size": 15, "width": 0.1, "encoder": "mlp", "cutout": 2, "average": 0.9}
    return configure(dataset, method, "fast", **(common | own | SYSTEMS[system] | changes))


def in_processes(count: int, work: Callable[..., None], tmp_path: Path, *arguments: Any) -> None:
    """Call work(processes, *arguments) in so many processes. They are forked from one that has torch already."""
    multiprocessing.set_forkserver_preload(["ricnet.training.api"])
    store = tmp_path / "store"
    torch_multiprocessing.start_processes(
        join_and_work, (count, str(store), work, *arguments), count, start_method="forkserver"
    )


def join_and_work(rank: int, count: int, store: str, work: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        work(Processes(rank, count), *arguments)
    finally:
        dist.destroy_process_group()


def in_double_precision(system: str, processes: Processes, updates: int, **changes: Any) -> Trainer:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        dataset = problem(weighted=system == "ric")
        trainer = Trainer(settings(system, dataset, **changes), dataset, None, CPU, processes=processes)
        for _ in range(updates):
            trainer._step()
    finally:
        torch.set_default_dtype(before)
    return trainer


def numbers(trainer: Trainer) -> dict[str, torch.Tensor]:
    logged = {name: total.double() for name, total in trainer.sums.items()}
    weights = {f"weights of {name}": tensor for name, tensor in trainer.average.state_dict().items()}
    return {"rng": torch.get_rng_state().double(), **logged, **weights}


def save_steps(processes: Processes, folder: Path) -> None:
    for system in SYSTEMS:
        torch.save(numbers(in_double_precision(system, processes, 5)), folder / f"{system} {processes.rank}")


def assert_near(made: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], but: tuple[str, ...] = ()) -> None:
    assert made.keys() == expected.keys()
    for name in made.keys() - set(but):
        tolerance = EXACT if name.startswith("weights") else 1e-5  # metrics are summed in single precision
        torch.testing.assert_close(made[name], expected[name], atol=tolerance, rtol=tolerance, msg=name)


def test_two_processes_make_the_updates_of_one(tmp_path: Path) -> None:
    """Batches of 15: the shares are not even equally large."""
    in_processes(2, save_steps, tmp_path, tmp_path)
    for system in SYSTEMS:
        alone = numbers(in_double_precision(system, Processes(), 5, accumulate=1))
        for rank in range(2):
            assert_near(torch.load(tmp_path / f"{system} {rank}"), alone, but=("explained_variance",))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_batch_in_parts_gives_the_update_of_the_whole(system: str) -> None:
    whole, parts = (numbers(in_double_precision(system, Processes(), 3, accumulate=n)) for n in (1, 4))
    assert_near(parts, whole, but=("explained_variance",))
