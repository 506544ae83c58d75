from dataclasses import asdict

import pytest

from ricnet.methods import RIC
from ricnet.report.runs import system_name, without_algorithm


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({}, "RIC"),
        ({"updates_per_snapshot": None, "passes_per_snapshot": 5, "exact_gain": False}, "RIC"),
        ({"updates_per_snapshot": 10}, "RIC"),
        ({"updates_per_snapshot": 1, "exact_gain": False}, "RIC, on-policy"),
        ({"updates_per_snapshot": 1, "exact_gain": True}, "RIC, closed form"),
        ({"updates_per_snapshot": 10, "exact_gain": True}, "RIC, closed form"),
        ({"updates_per_snapshot": 1, "objective": "expected"}, "RIC, expected"),
    ],
)
def test_a_title_says_which_algorithm_it_was(settings: dict[str, object], title: str) -> None:
    assert RIC.title_of(settings) == title
    assert system_name({"method": {"name": "ric", **settings}}) == title


def test_a_system_is_called_by_its_algorithm_and_what_else_it_has() -> None:
    method = {"name": "ric", "exact_gain": True, "objective": "ppo", "readout": "mu"}
    assert system_name({"method": method, "calibration": "temperature"}) == (
        "RIC, closed form, PPO, readout mu + temperature"
    )
    assert without_algorithm("RIC, closed form, PPO") == without_algorithm("RIC, on-policy, PPO") == "RIC, PPO"
    assert system_name({"method": {"name": "supervised", "updates_per_snapshot": 1}}) == "SL"


def test_the_settings_of_the_paper_are_algorithm_1() -> None:
    assert RIC.title_of(asdict(RIC())) == "RIC"
