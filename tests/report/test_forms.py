import math

import pytest

from ricnet.io import Absent, Maybe, is_count, is_number, misfit
from ricnet.report.runs import EVALUATION, METRICS, are_counts, is_measure, is_setting, is_share


def test_numbers_are_finite_and_no_truths() -> None:
    assert all(map(is_number, [0, -1.5, 10**15]))
    assert not any(map(is_number, [True, None, "1", math.nan, math.inf, 10**16, 10**400, [], {}]))
    assert all(map(is_share, [0, 1, 0.5]))
    assert not any(map(is_share, [-0.1, 1.1, None]))
    assert not any(map(is_count, [-1, 1.0, True]))


def test_a_measure_is_any_finite_number() -> None:
    """A run that diverged wrote its loss down, and must be read nevertheless."""
    assert all(map(is_measure, [3e15, 1e308, {"nll": 2.5e38, "ece": None}, None, "adam"]))
    assert not any(map(is_measure, [math.inf, {"nll": math.nan}, 10**400, {"nll": 10**400}, []]))


def test_settings_are_shallow() -> None:
    assert is_setting({"method": {"name": "ric", "gamma": 0.8, "clip": None}, "seed": 0})
    assert not is_setting({"a": [1]})
    assert not is_setting({"method": {"objective": {}}})  # found by fuzzing: a setting is one value


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"a": 1, "b": [{"c": 1}]}, None),
        ({"a": 1, "b": [{"c": 1}], "d": None, "e": "anything"}, None),
        ({"b": [{"c": 1}]}, "a"),
        ({"a": 1, "b": []}, "b"),
        ({"a": 1, "b": [{"c": 1}, {"c": "1"}]}, "b[1].c"),
        ({"a": 1, "b": [{"c": 1}], "d": "1"}, "d"),
        ([], ""),
    ],
)
def test_the_first_misfit_is_named(entry: object, place: str | None) -> None:
    assert misfit(entry, {"a": is_count, "b": [{"c": is_count}], "d": Maybe(is_count)}) == place


def test_what_is_absent_is_not_null() -> None:
    """Found by fuzzing: a null where settings or rows belong."""
    form = {"rows": Absent(are_counts)}
    assert misfit({}, form) is None
    assert misfit({"rows": {"train": 3}}, form) is None
    assert misfit({"rows": None}, form) == "rows"
    assert misfit({"rows": {"train": "3"}}, form) == "rows"


def test_what_is_no_table_at_all() -> None:
    assert misfit(None, EVALUATION) == ""
    assert misfit({"epoch": 1, "val": {"accuracy": 0.5}}, METRICS) is None
