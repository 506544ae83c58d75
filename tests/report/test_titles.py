from dataclasses import asdict

import pytest

from ricnet.methods import RIC
from ricnet.report.runs import system_name
from ricnet.report.titles import (
    belief,
    epochs,
    flatten,
    listing,
    markdown_safe,
    number,
    percent,
    short,
    without_algorithm,
)


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
    assert RIC.title_of(settings) == title


def test_a_system_is_called_by_its_algorithm_and_what_else_it_has() -> None:
    method = {"name": "ric", "exact_gain": True, "objective": "ppo", "readout": "mu"}
    full = "RIC, closed form, PPO, readout mu + temperature"
    assert system_name({"method": method, "calibration": "temperature"}) == full
    assert without_algorithm("RIC, closed form, PPO") == without_algorithm("RIC, on-policy, PPO") == "RIC, PPO"
    assert system_name({"method": {"name": "supervised", "updates_per_snapshot": 1}}) == "SL"
    settings = {"seed": 1, "method": {"name": "ric", "gamma": 0.8}}
    assert flatten(settings) == {"seed": 1, "method.name": "ric", "method.gamma": 0.8}


def test_how_words_and_numbers_are_written() -> None:
    assert (short("a\nb\x1b[31m"), short("x" * 20, 5)) == ("a�b�[31m", "xxxx…")
    assert [number(x, 1) for x in (61, 1234.56, None, float("nan"))] == ["61.0", "1,234.6", "–", "–"]
    assert (percent(0.98444), percent(1), percent(None)) == ("98.44 %", "100.00 %", "–")
    assert [belief(share) for share in (0.994, 0.996, 0.99999, 1.0)] == ["99 %", "> 99 %", "> 99 %", "100 %"]
    assert (epochs(1), epochs(20)) == ("1 epoch", "20 epochs")
    assert [listing(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert markdown_safe(r"a|b *c* _d_ `e` [f] <i> \\") == r"a\|b \*c\* \_d\_ \`e\` \[f\] &lt;i> \\\\"
