import pytest

from ricnet.data.notation import (
    COMMAS,
    ENGLISH,
    NOTATIONS,
    PLAIN,
    POINTS,
    all_written,
    common_unit,
    in_plain,
    is_written,
    without_unit,
)


@pytest.mark.parametrize(
    ("cell", "notations"),
    [
        ("987", {PLAIN, COMMAS, POINTS, ENGLISH}),
        ("-1234", {PLAIN, COMMAS, POINTS, ENGLISH}),
        ("63,2", {COMMAS, POINTS}),
        ("70.5", {PLAIN, ENGLISH}),
        ("1.234", {PLAIN, POINTS, ENGLISH}),
        ("1,234", {COMMAS, POINTS, ENGLISH}),
        ("12.345.678", {POINTS}),
        ("23.154,68", {COMMAS, POINTS}),
        ("1,234,567.5", {ENGLISH}),
        ("0.123", {PLAIN, ENGLISH}),  # no number of thousands begins with zero
        ("1234.567", {PLAIN, ENGLISH}),
        ("1.2345", {PLAIN, ENGLISH}),
        ("1.234.5", set()),
        ("1,23.4", set()),
        ("x", set()),
        ("1 ", set()),
    ],
)
def test_numbers_of_each_notation(cell: str, notations: set[str]) -> None:
    assert {name for name in NOTATIONS if is_written(cell, name)} == notations
    assert {name for name in NOTATIONS if all_written(f"\n5\n{cell}\n\n{cell}", name)} == notations


def test_thousands_separators_are_removed() -> None:
    assert in_plain("1.234,5\n63,2\n-12.345.678", POINTS) == "1234.5\n63.2\n-12345678"
    assert in_plain("1,234.5\n987", ENGLISH) == "1234.5\n987"
    assert in_plain("63,2", COMMAS) == "63.2"


def test_a_unit_is_removed_from_the_ends_of_lines() -> None:
    assert without_unit("5.1 %\n7%\n\n5%3", "%") == "5.1\n7\n\n5%3"
    assert without_unit("€ 12.34\n-€5\n€ -6\n7", "€") == "12.34\n-5\n-6\n7"
    assert without_unit("5\u00a0kg", "kg") == "5"
    assert without_unit("5 kg", "") == "5 kg"


@pytest.mark.parametrize(
    ("cells", "unit"),
    [
        (["5.1 %", "7%", "€ 3"], "%"),
        (["€ 12,34", "€ 1.234"], "€"),
        (["EUR 12"], "EUR"),
        (["12 kg", "13kg"], "kg"),
        (["5 h"], "h"),
        (["12345A"], ""),
        (["-$5.00"], "$"),
        (["K00001", "n7", "12", "12 Main Street", "2024-01-01", "> 40"], ""),
    ],
)
def test_the_unit_is_found_before_or_after_a_number(cells: list[str], unit: str) -> None:
    assert common_unit(cells) == unit
