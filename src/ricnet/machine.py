"""Resources of this machine: number of threads, how idle threads wait, and free memory.

By default torch's idle threads spin, which slows down busy machines (docs/performance.md), and torch uses all cores of
the machine, of which a container may have fewer. Both are set by variables that OpenMP reads when torch is imported.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

COUNTS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
WAITS = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
"""If one of these is set, keep the user's value."""
SHARE = 0.5
"""Largest share of the free memory for data or a batch; the rest is for weights, copies and other programs."""


def settle_threads() -> None:
    """Let idle threads sleep, and limit their number to the cores of the container, unless the user has set either.

    Called by `import ricnet`. No effect if torch is imported already, because OpenMP has then read its variables.
    """
    if "torch" in sys.modules:
        return
    if not WAITS & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"
    if not COUNTS & os.environ.keys() and (cores := usable_cores()) < _own_cores():
        os.environ["OMP_NUM_THREADS"] = str(cores)


def usable_cores(root: Path = Path("/")) -> int:
    """Number of cores that this process may use, by its CPU affinity and the CPU quota of its container."""
    return max(1, min([_own_cores(), *(int(quota) for quota in _quotas(root))]))


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """CPU quotas, in cores, of the control groups of this process and of their parents; none if not on Linux."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")  # cgroup v1 has one tree per controller
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            group = mount / name.strip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # no such file, or no limit: max
                    work, period = map(int, " ".join((folder / file).read_text() for file in files).split())
                    if work > 0 and period > 0 and folder.is_relative_to(mount):
                        yield work / period


def free_bytes(device: "torch.device") -> int:
    """Free memory. If the system does not report it, half of the total memory; if that is unknown, 4 GiB."""
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
    """Whether each process of this machine may hold `size` bytes of data."""
    import torch

    return size <= SHARE * free_bytes(torch.device("cpu")) / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
