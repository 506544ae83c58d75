"""scripts/study_default.py: the rule that names the winner."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "study_default.py"
LONG, SHORT, ON_POLICY, CLOSED = (
    "Algorithm 1, rounds of 5 passes",
    "Algorithm 1, rounds of 2 updates",
    "on-policy",
    "closed form",
)


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def runs(seconds: float, *scores: float) -> dict[str, dict[str, float]]:
    return {str(seed): {"nll": nll, "accuracy": 0.9, "seconds": seconds} for seed, nll in enumerate(scores)}


def test_the_lowest_loss_wins(tool: dict[str, Any]) -> None:
    found = {SHORT: runs(10, 0.5, 0.51, 0.52), ON_POLICY: runs(10, 0.4, 0.41, 0.42), "SL": runs(1, 0.1, 0.1, 0.1)}
    assert tool["winner"](found) == ON_POLICY


def test_a_tie_goes_to_algorithm_1_and_then_to_on_policy(tool: dict[str, Any]) -> None:
    """The differences 0.01, −0.02, 0.02 have mean 0.003 and an interval that includes 0."""
    found = {ON_POLICY: runs(10, 0.41, 0.40, 0.44), CLOSED: runs(10, 0.40, 0.42, 0.42)}
    assert tool["winner"](found) == ON_POLICY
    assert tool["winner"](found | {SHORT: runs(10, 0.41, 0.40, 0.45)}) == SHORT


def test_an_algorithm_of_more_than_twice_the_time_is_out(tool: dict[str, Any]) -> None:
    found = {LONG: runs(21, 0.1, 0.1, 0.1), SHORT: runs(20, 0.3, 0.31, 0.32), CLOSED: runs(10, 0.4, 0.41, 0.42)}
    assert tool["winner"](found) == SHORT


def test_one_seed_shows_no_tie(tool: dict[str, Any]) -> None:
    assert tool["winner"]({SHORT: runs(10, 0.5), CLOSED: runs(10, 0.4)}) == CLOSED


def test_the_table_marks_the_winner(tool: dict[str, Any]) -> None:
    found = {SHORT: runs(10, 0.5), CLOSED: runs(10, 0.4)}
    row = tool["table"]({"digits": found}).splitlines()[-1]
    assert row.split(" | ")[1:] == ["1", "–", "0.500 / 90.0 / 10", "–", "**0.400 / 90.0 / 10**", "– |"]


def test_a_kind_is_the_mean_of_its_data_sets_over_the_seeds_that_all_have(tool: dict[str, Any]) -> None:
    small = {"magic": {SHORT: runs(10, 0.1, 0.2, 0.9)}, "letter": {SHORT: runs(30, 0.3, 0.5)}, "digits": {}}
    found = tool["kinds"](small)["tables from 5,000 rows on"]
    assert {seed: run["nll"] for seed, run in found[SHORT].items()} == pytest.approx({"0": 0.2, "1": 0.35})
    assert [run["seconds"] for run in found[SHORT].values()] == [20, 20]
    assert found[CLOSED] == {}


def test_differences_are_paired_by_seed(tool: dict[str, Any]) -> None:
    """0.02 and 0.04 less: mean 0.03, standard error 0.01, Student-t quantile 12.706."""
    found = {ON_POLICY: runs(10, 0.40, 0.50), "SL": runs(1, 0.38, 0.46, 9.9)}
    row = tool["table"]({"digits": found}, differences=True).splitlines()[-1]
    assert "(−0.030 ± 0.127)" in row
    assert "| 2 or 3 |" in row
