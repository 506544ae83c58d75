"""What this machine has for us: how many threads suit it and how they wait, and what fits into its memory.

torch's threads spin while they wait for each other, which takes the time of cores that others use too, and so their own
(docs/performance.md); and it counts the cores of the machine, of which a container may have fewer. Both are told to
OpenMP by its variables, which it reads once, when torch is imported.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

COUNTS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
WAITS = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
"""If one of these is set, keep the user's value."""
SHARE = 0.5
"""Of the memory that is free, that data or a batch may take; the rest is for weights, copies and other programs."""


def settle_threads() -> None:
    """Wait passively, with no more threads than this container may run, unless the user says otherwise.

    Called by `import ricnet`. If torch is imported already, OpenMP has read its variables and nothing is changed: how
    GNU's threads wait cannot be set later (docs/performance.md).
    """
    if "torch" in sys.modules:
        return
    if not WAITS & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"
    if not COUNTS & os.environ.keys() and (cores := usable_cores()) < _own_cores():
        os.environ["OMP_NUM_THREADS"] = str(cores)


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that this process may run on, or as many whole ones as its container's share of time comes to."""
    return max(1, min([_own_cores(), *(int(quota) for quota in _quotas(root))]))


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Of the control groups that this process is in, and of those around them; in cores."""
    try:
        groups = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # not Linux
        return
    for controllers, name in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")  # version 1 has a tree a controller
        group = mount / name.strip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(mount) and (quota := _quota(folder)) is not None:
                yield quota


def _quota(folder: Path) -> float | None:
    """Microseconds of work a period; None where there is no limit."""
    try:
        if (both := folder / "cpu.max").is_file():
            work, period = both.read_text().split()
        else:
            work, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(work) / int(period) if work not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def free_bytes(device: "torch.device") -> int:
    """An estimate; where the system does not say what is free, half of all there is, or of 8 GiB."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
        return total // 2


def fits_memory(size: int) -> bool:
    """Whether so many bytes of data may be held by every process that torchrun has started on this machine."""
    import torch

    return size <= SHARE * free_bytes(torch.device("cpu")) / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
