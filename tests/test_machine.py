import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ricnet import machine
from ricnet.machine import COUNTS, WAITS, settle_threads, usable_cores


def container(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 3),
        (
            "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        (
            "4:cpu:/\n0::/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            16,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "broken"}, 16),
    ],
)
def test_a_container_may_have_fewer_cores_than_its_machine(
    cgroup: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_own_cores", lambda: 16)
    assert usable_cores(container(tmp_path, cgroup, files)) == cores


def test_without_control_groups_all_cores_are_ours(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("given", "set_to"),
    [
        ({}, {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "3"}),
        ({"GOMP_SPINCOUNT": "9", "MKL_NUM_THREADS": "8"}, {"GOMP_SPINCOUNT": "9", "MKL_NUM_THREADS": "8"}),
        ({"OMP_NUM_THREADS": "8"}, {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "8"}),
    ],
)
def test_variables_set_by_the_user_are_kept(
    given: dict[str, str], set_to: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(machine, "_own_cores", lambda: 16)
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    for name in COUNTS | WAITS:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, given[name]) if name in given else None
    settle_threads()
    assert {name: os.environ[name] for name in COUNTS | WAITS if name in os.environ} == set_to


def waiting_after(code: str, **given: str) -> str:
    """OMP_WAIT_POLICY in a new process that runs this code."""
    environment = {name: value for name, value in os.environ.items() if name not in COUNTS | WAITS} | given
    code += "; import os; print(os.environ.get('OMP_WAIT_POLICY'))"
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def test_importing_ricnet_settles_it_before_torch_is_there() -> None:
    assert waiting_after("import sys, ricnet; assert 'torch' not in sys.modules") == "passive"
    assert waiting_after("import ricnet", OMP_WAIT_POLICY="active") == "active"
    assert waiting_after("import ricnet", KMP_BLOCKTIME="100") == "None"


def test_after_torch_it_is_too_late_and_nothing_is_changed() -> None:
    """As if torch had been imported, which takes seconds."""
    assert waiting_after("import sys; sys.modules['torch'] = sys; import ricnet") == "None"


def test_tests_take_one_thread_each() -> None:
    assert torch.get_num_threads() == 1
    assert "OMP_NUM_THREADS" in os.environ
