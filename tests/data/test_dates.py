from datetime import date

import pytest

from ricnet.data.columns import (
    Category,
    Columns,
    Date,
    columns_from_json,
    common_formats,
    fit_columns,
    parse_date,
    show_date,
)
from ricnet.data.tables import Table
from ricnet.errors import RicnetError

DAY = float((date(2024, 2, 29) - date(1970, 1, 1)).days)


@pytest.mark.parametrize(
    ("cell", "form", "days"),
    [
        ("2024-02-29", "iso", DAY),
        ("2024-02-29T12:00:00", "iso", DAY + 0.5),
        ("2024-02-29 18:00:00+06:00", "iso", DAY + 0.5),
        ("2024/02/29", "%Y/%m/%d", DAY),
        ("29.02.2024", "%d.%m.%Y", DAY),
        ("2/29/2024", "%m/%d/%Y", DAY),
        ("29/02/2024", "%d/%m/%Y", DAY),
        ("2023-02-29", "iso", None),  # no leap year
        ("20240229", "iso", None),  # a number
        ("yesterday", "iso", None),
        ("", "iso", None),
    ],
)
def test_dates_are_days_since_1970(cell: str, form: str, days: float | None) -> None:
    assert parse_date(cell, form) == days
    if days == DAY:
        assert parse_date(show_date(days, form), form) == days


def test_all_cells_of_a_column_must_agree() -> None:
    assert common_formats(["01/02/2024", "03/04/2024"]) == ["%m/%d/%Y", "%d/%m/%Y"]
    assert common_formats(["01/02/2024", "31/04/2024"]) == []
    assert common_formats(["01/02/2024", "30/04/2024"]) == ["%d/%m/%Y"]
    assert common_formats([]) == []


def table(**columns: list[str]) -> Table:
    rows = len(next(iter(columns.values())))
    return Table("my.csv", columns, list(range(2, rows + 2)))


def test_a_column_of_dates_is_one_of_numbers() -> None:
    """A date became a category for each day."""
    columns, notes = fit_columns(table(joined=["2024-02-28", "", "2024-03-01"], y=["0"] * 3), "y")
    assert columns.inputs == (Date("joined", DAY, 1.0, True, "iso"),)
    assert notes == ("Columns read as dates, in days: 'joined'.",)
    assert columns.encode(table(joined=["2024-03-02", "NA"])).tolist() == [[2, 0], [0, 1]]
    assert columns_from_json(columns.to_json(), "config.json") == columns
    with pytest.raises(RicnetError, match=r"my\.csv, line 2: 'joined' is 'soon', but .* dates such as 1999-12-31"):
        columns.encode(table(joined=["soon"]))


def test_a_draw_and_a_typing_error_are_said() -> None:
    _, notes = fit_columns(table(a=["01/02/2024", "03/04/2024"], y=["0"] * 2), "y")
    assert notes[1] == "'a' is read as dates such as 12/31/1999, month first; write 1999-12-31 if it is not."
    columns, notes = fit_columns(table(a=["2024-01-01"] * 4 + ["2024-13-01"], y=["0"] * 5), "y")
    assert isinstance(columns.inputs[0], Category)
    assert notes == ("Column 'a' is read as text, for '2024-13-01' in line 6 is no date; correct it if it is.",)


def test_a_format_nobody_knows_is_refused() -> None:
    entry = Columns("y", (Date("a", 0.0, 1.0, False, "iso"),)).to_json()
    entry["inputs"][0]["format"] = "%Q"
    with pytest.raises(RicnetError, match="its columns are damaged"):
        columns_from_json(entry, "config.json")
