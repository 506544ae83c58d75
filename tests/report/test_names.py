from dataclasses import asdict

import pytest

from ricnet.methods import RIC
from ricnet.report.names import flatten, method_title, system_name, without_algorithm


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({}, "RIC"),
        (asdict(RIC()), "RIC"),  # the settings of the paper are Algorithm 1
        ({"updates_per_snapshot": None, "passes_per_snapshot": 5, "exact_gain": False}, "RIC"),
        ({"updates_per_snapshot": 10}, "RIC"),
        ({"updates_per_snapshot": 1, "exact_gain": False}, "RIC, on-policy"),
        ({"updates_per_snapshot": 1, "exact_gain": True}, "RIC, closed form"),
        ({"updates_per_snapshot": 10, "exact_gain": True}, "RIC, closed form"),
        ({"updates_per_snapshot": 1, "objective": "expected"}, "RIC, expected"),
    ],
)
def test_a_title_says_which_algorithm_it_was(settings: dict[str, object], title: str) -> None:
    assert method_title({"name": "ric", **settings}) == title


def test_a_system_is_called_by_its_algorithm_and_what_else_it_has() -> None:
    method = {"name": "ric", "exact_gain": True, "objective": "ppo", "readout": "mu"}
    full = "RIC, closed form, PPO, readout mu + temperature"
    assert system_name({"method": method, "calibration": "temperature"}) == full
    assert without_algorithm("RIC, closed form, PPO") == without_algorithm("RIC, on-policy, PPO") == "RIC, PPO"
    assert system_name({"method": {"name": "supervised", "updates_per_snapshot": 1}}) == "SL"
    marginal = {"name": "ric", "updates_per_snapshot": 1, "credit": "marginal"}
    assert system_name({"method": marginal}) == "RIC, on-policy, marginal credit"
    settings = {"seed": 1, "method": {"name": "ric", "gamma": 0.8}}
    assert flatten(settings) == {"seed": 1, "method.name": "ric", "method.gamma": 0.8}
