"""scripts/study_claims_on_tables.py: effects, intervals and verdicts by hand; a run is measured as it says."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ricnet.report.comparison import ECE, NLL

SCRIPT = Path(__file__).parents[2] / "scripts" / "study_claims_on_tables.py"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def run(nll: float, tempered: float = 9.0, steps_gap: float | None = None) -> dict[str, Any]:
    return {"nll": nll, "nll_tempered": tempered, "steps_gap": steps_gap}


RUNS = {
    "tea": {"RIC": {"0": run(0.5, steps_gap=2.0), "1": run(0.7)}, "SL": {"0": run(0.9, 0.4), "1": run(0.9, 0.5)}},
    "rum": {"RIC": {"0": run(0.6), "2": run(5.0)}, "SL": {"0": run(0.7, 0.6), "1": run(7.0)}},
}


def test_differences_are_paired_by_seed_and_averaged_for_each_table(tool: dict[str, Any]) -> None:
    found = tool["difference"](RUNS, "RIC", "SL", "nll", "")
    assert found == pytest.approx({"tea": -0.3, "rum": -0.1})
    assert tool["difference"](RUNS, "RIC", "SL", "nll", "_tempered") == pytest.approx({"tea": 0.15, "rum": 0.0})
    assert tool["difference"](RUNS, "RIC", "ACT", "nll", "") == {}
    assert tool["own"](RUNS, "steps_gap") == {"tea": 2.0}


def test_runs_that_diverged_are_left_out_and_named(tool: dict[str, Any]) -> None:
    lost = {"tea": RUNS["tea"] | {"SL": {"0": run(0.9), "1": {"diverged": True}}}}
    assert tool["difference"](lost, "RIC", "SL", "nll", "") == pytest.approx({"tea": -0.4})
    assert tool["diverged"](lost) == ["SL on tea (1 seed)"]
    assert tool["diverged"](RUNS) == []


def test_intervals_are_over_tables(tool: dict[str, Any]) -> None:
    """Mean −0.2, standard error 0.1, Student-t quantile 12.706 with two tables, 3.182 with four."""
    claim = ["RIC below", "−0.200 ± 1.271", "2 of 2", "undecided"]
    assert tool["row"]("RIC below", NLL, {"tea": -0.3, "rum": -0.1}, -1) == claim
    four = {"tea": -0.3, "rum": -0.1, "ale": -0.3, "gin": -0.1}
    assert tool["row"]("", NLL, four, -1)[1:] == ["−0.200 ± 0.184", "4 of 4", "reproduced"]
    assert tool["row"]("", NLL, four, 1)[2:] == ["0 of 4", "contradicted"]
    assert tool["row"]("", NLL, {"tea": -0.3}, -1) == []


def test_likeness_needs_an_interval_within_the_margin(tool: dict[str, Any]) -> None:
    def judged(*effects: float) -> list[str]:
        return tool["row"]("", ECE, dict(enumerate(effects)), 0)[2:]

    assert judged(0.001, -0.001, 0.0, 0.002) == ["4 of 4", "reproduced"]
    assert judged(0.05, -0.05, 0.0, 0.002) == ["2 of 4", "undecided"]
    assert judged(0.05, 0.051, 0.049, 0.05) == ["0 of 4", "contradicted"]


def test_an_early_peak_is_early_large_and_gone_at_the_end(tool: dict[str, Any]) -> None:
    """Two classes: at an accuracy of .8 the gap can be .3 at most."""
    early = np.linspace(0.25, 0.0, 20)

    def seen(gap: np.ndarray, classes: int = 2) -> bool:
        return tool["is_early_peak"]({"accuracies": [0.8] * 20, "confidences": 0.8 - gap, "classes": classes})

    assert seen(early)
    assert not seen(early * 0.5)
    assert not seen(early[::-1])
    assert not seen(np.maximum(early, 0.1))
    assert not seen(early - 0.1)
    assert not seen(early, classes=5)


def test_curves_are_averaged_in_blocks(tool: dict[str, Any]) -> None:
    assert tool["in_blocks"]([1.0, 3.0] * 20) == [2.0] * 20
    assert tool["in_blocks"](np.arange(2000.0))[-1] == 1949.5


def test_runs_of_all_systems_give_all_rows(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables of made-up rows, three epochs."""
    draw = np.random.default_rng(0)

    def made(name: str) -> tuple[pd.DataFrame, np.ndarray]:
        x = pd.DataFrame(draw.normal(size=(100, 3)), columns=list("abc"))
        return x, (x["a"] > 0).to_numpy().astype(int) + (name == "rum") * (x["b"] > 0).to_numpy()

    measure = tool["measure"]
    inside = measure.__globals__
    monkeypatch.setitem(inside, "read_table", made)
    monkeypatch.setitem(inside, "LONG", {"epochs": 3})
    systems = {name: (method, changes | {"epochs": 3}) for name, (method, changes) in tool["SYSTEMS"].items()}
    monkeypatch.setitem(inside, "SYSTEMS", systems)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    runs: dict[str, Any] = {}
    for data in ("tea", "rum"):
        for system in systems:
            (key, found) = measure(data, system, 0)
            assert key == (data, system, 0)
            assert 0 <= found["accuracy"] <= 1
            assert (found.keys() >= {"accuracies", "ece_refined", "steps_gap"}) == (systems[system][0] == "ric")
            runs.setdefault(data, {})[system] = {"0": found}
    rows = tool["table"](runs).splitlines()
    claims = [row.split(" | ")[0].removeprefix("| ") for row in rows[2:-2]]
    assert len(claims) == len(set(claims)) == 22
    assert rows[-1].startswith("Test rows; 2 tables, 1 seed each.")
