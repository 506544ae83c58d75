import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive_results import to_columns
from made_runs import rewrite, rewrite_arrays
from refusals import cases, refusal
from ricnet.report.files import is_measure, is_setting, is_share, to_rows
from ricnet.report.runs import RunGroup, RunRecord, read_run

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("content", [b"{", b"[1, 2]", b"\xff\xfe\x00", b"{}"])
@pytest.mark.parametrize("name", ["config.json", "evaluation.json", "metrics.jsonl", "examples.npz"])
def test_broken_files_are_named(systems: list[RunGroup], tmp_path: Path, name: str, content: bytes) -> None:
    path = shutil.copytree(systems[0].first.path, tmp_path / "run")
    (path / name).write_bytes(content)
    with refusal(name):
        read_run(path)


@pytest.mark.parametrize(
    "change",
    [
        *({"y": np.full(15, 99)}, {"halt_step": np.full(15, 0)}, {"halt_step": np.full(15, 21)}),
        *({"kind": np.full(15, 4)}, {"kind": np.full(15, -1)}, {"kind": np.zeros(3, dtype=int)}),
        {"log_beliefs": np.full((20, 15, 2), -0.7, dtype=np.float32)},
    ],
)
def test_examples_that_cannot_be_are_refused(ric: RunRecord, tmp_path: Path, change: dict[str, np.ndarray]) -> None:
    path = shutil.copytree(ric.path, tmp_path / "run")
    assert len(read_run(path).examples.labels) == 15
    rewrite_arrays(path / "examples.npz", **change)
    with refusal("examples.npz"):
        read_run(path)


def without_reliability(path: Path) -> None:
    rewrite(path, lambda evaluation: evaluation["test"].pop("reliability"))


@pytest.mark.parametrize(
    ("change", "named"),
    cases(
        {
            "no run": (lambda path: shutil.rmtree(path.parent), "run"),
            "no reliability": (without_reliability, ("evaluation.json", "test.reliability")),
            "unfinished": (Path.unlink, ("ric train --out ", "run --resume")),
        }
    ),
)
def test_missing_files_of_a_run_are_named(
    ric: RunRecord, tmp_path: Path, change: Callable[[Path], object], named: Any
) -> None:
    path = shutil.copytree(ric.path, tmp_path / "run")
    change(path / "evaluation.json")
    with refusal(path, named):
        read_run(path)


def test_allowed_values_of_a_file() -> None:
    """Losses of a diverged run can be read; a setting is a single value."""
    assert all(map(is_share, [0, 1, 0.5]))
    assert not any(map(is_share, [-0.1, 1.1, None]))
    assert all(map(is_measure, [3e15, 1e308, {"nll": 2.5e38, "ece": None}, None, "adam"]))
    assert not any(map(is_measure, [math.inf, {"nll": math.nan}, 10**400, {"nll": 10**400}, []]))
    assert is_setting({"method": {"name": "ric", "gamma": 0.8, "clip": None}, "seed": 0})
    assert not any(map(is_setting, [{"a": [1]}, {"method": {"objective": {}}}]))


names = st.text("abc", min_size=1, max_size=3)
numbers = st.integers() | st.floats(allow_nan=False)
entries = st.recursive(
    st.dictionaries(names, numbers, min_size=1, max_size=3),
    lambda inner: st.dictionaries(names, numbers | inner, min_size=1, max_size=3),
    max_leaves=6,
)


@given(entries, st.integers(1, 4))
def test_rows_come_back_from_their_columns(first: dict[str, Any], count: int) -> None:
    alike = [first | {"epoch": place} for place in range(count)]
    assert to_rows(to_columns(alike)) == alike


def test_missing_values_of_a_row_stay_missing() -> None:
    rows = [{"epoch": 1, "val": {"nll": 2.0}}, {"epoch": 2}]
    assert to_columns(rows) == {"epoch": [1, 2], "val.nll": [2.0, None]}
    assert to_rows(to_columns(rows)) == rows
