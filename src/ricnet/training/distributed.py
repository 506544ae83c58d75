"""Several processes for one run, started by torchrun: how they find each other, and how they end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ricnet.errors import RicnetError, setting
from ricnet.processes import ALONE, Processes

PATIENCE = timedelta(hours=6)
"""How long processes wait for each other; the longest is for the first on a machine to read the data. One that has
died is noticed at once, by its connection or by torchrun."""


def launched() -> Processes:
    """What torchrun says of this process."""
    if "RANK" not in os.environ:  # other launchers set WORLD_SIZE alone
        return ALONE
    try:
        return Processes(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", 1)))
    except ValueError:
        raise RicnetError("RANK and WORLD_SIZE are set, but not to numbers; start with torchrun.") from None


@contextmanager
def together(device: torch.device) -> Iterator[Processes]:
    """Join the other processes of the job, if there are any, and leave them at the end."""
    if dist.is_available() and dist.is_initialized():
        yield Processes(dist.get_rank(), dist.get_world_size())
        return
    processes = launched()
    if processes.count == 1:
        yield ALONE
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    except ValueError as error:
        raise RicnetError(f"RANK and WORLD_SIZE are set, but not all else ({error}); start with torchrun.") from error
    try:
        yield processes
    except RuntimeError as error:
        if "finished reduction" in str(error):
            raise RicnetError(
                "the encoder has parameters that its output does not depend on, which several processes cannot share; "
                "remove them, or freeze them with requires_grad_(False)."
            ) from error
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise RicnetError(
            f"process {processes.rank} of {processes.count} lost the others, so one of them has ended (what it said "
            f"stands above, if it could); mend that and go on with {setting('resume', True)}."
        ) from error
    else:  # after an error the others may wait for ever, and this one for them; it ends without a farewell
        dist.destroy_process_group()


@contextmanager
def first_on_each_machine(processes: Processes) -> Iterator[None]:
    """The first process of a machine goes in alone, the others follow: what it left on the disk they need not make."""
    ahead = processes.count == 1 or os.environ.get("LOCAL_RANK", "0") == "0"
    if not ahead:
        processes.any(False)
    yield
    if ahead:
        processes.any(False)


def own_gpu() -> torch.device:
    """The GPU of this process: torchrun numbers those of a machine."""
    if launched().count == 1:
        return torch.device("cuda")
    index = int(os.environ.get("LOCAL_RANK", 0))
    if index >= torch.cuda.device_count():
        raise RicnetError(
            f"this machine has {torch.cuda.device_count()} CUDA devices, too few for process {index} on it; "
            "lower --nproc-per-node."
        )
    return torch.device("cuda", index)
