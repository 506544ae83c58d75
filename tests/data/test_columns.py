import json
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ricnet.data.columns import (
    Category,
    Columns,
    Date,
    Number,
    columns_from_json,
    common_formats,
    fit_columns,
    is_plain,
    parse_date,
    parse_number,
    show_date,
)
from ricnet.data.tables import Table
from ricnet.errors import RicnetError


def table(**columns: list[str]) -> Table:
    rows = len(next(iter(columns.values())))
    return Table("my.csv", columns, list(range(2, rows + 2)))


def fit(**columns: list[str]) -> Columns:
    return fit_columns(table(**columns), "y")[0]


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1", 1), ("-2.5e3", -2500), (".5", 0.5), ("x", None), ("1_000", None), ("inf", None), ("1,5", None)],
)
def test_what_is_a_number(cell: str, value: float | None) -> None:
    assert parse_number(cell) == value


@pytest.mark.parametrize("cell", ["", "NA", "n/a", "NaN", "None", "null", "?", "<NA>"])
def test_what_is_missing(cell: str) -> None:
    assert np.isnan(parse_number(cell))  # type: ignore[arg-type]


def test_numbers_are_standardised_as_scikit_learn_does() -> None:
    """Far from zero, where single precision would not do."""
    values = 1.7e9 + np.random.default_rng(0).normal(size=50)
    cells = [repr(float(value)) for value in values]
    expected = StandardScaler().fit_transform(values[:, None])
    np.testing.assert_allclose(fit(a=cells, y=["0"] * 50).encode(table(a=cells)).numpy(), expected, atol=1e-5)


def test_missing_numbers_are_the_mean_and_are_flagged() -> None:
    columns = fit(a=["1", "?", "3"], y=["0"] * 3)
    assert columns.inputs == (Number("a", 2.0, 1.0, True),)
    assert columns.encode(table(a=["", "5"])).tolist() == [[0, 1], [3, 0]]
    never = fit(a=["1", "3"], y=["0"] * 2)
    assert never.encode(table(a=["NA", "3"])).tolist() == [[0], [1]]


def test_that_a_number_is_known_at_all_can_be_learned_from() -> None:
    assert fit(a=["4", "", "4"], y=["0"] * 3).encode(table(a=["4", ""])).tolist() == [[0, 0], [0, 1]]


def test_texts_are_encoded_as_scikit_learn_does() -> None:
    cells = [*"aabbbacccc", "", "", "", "rare", "rarer"]
    theirs = OneHotEncoder(min_frequency=3, handle_unknown="infrequent_if_exist", sparse_output=False)
    theirs.fit(np.array(cells)[:, None])
    new = ["a", "rare", "", "never seen", "c"]
    columns = fit(a=cells, y=["0"] * len(cells))
    assert columns.inputs == (Category("a", ("", "a", "b", "c"), True),)
    np.testing.assert_array_equal(columns.encode(table(a=new)).numpy(), theirs.transform(np.array(new)[:, None]))
    assert columns.surprises(table(a=new)) == ()


def test_a_new_value_is_none_of_the_known_ones_and_that_is_said() -> None:
    columns = fit(a=["u", "v"] * 3, y=["0"] * 6)
    new = table(a=["w", "v", "w"])
    assert columns.encode(new).tolist() == [[0, 0], [0, 1], [0, 0]]
    [said] = columns.surprises(new)
    assert "2 of 3 rows have a value of 'a' that training had not, such as 'w'" in said


def test_an_empty_cell_where_training_had_none_is_called_empty() -> None:
    columns = fit(a=["u", "v"] * 3, y=["0"] * 6)
    [said] = columns.surprises(table(a=["", "v", ""]))
    assert "2 of 3 rows have an empty 'a', which no training row had; it counts as none" in said
    [said] = columns.surprises(table(a=["", "w"]))
    assert "2 of 2 rows have a value of 'a' that training had not, such as 'w'" in said


def test_a_value_in_fewer_than_half_a_percent_of_many_rows_is_rare() -> None:
    cells = ["u"] * 1000 + ["v"] * 6 + ["w"] * 4
    assert fit(a=cells, y=["0"] * len(cells)).inputs == (Category("a", ("u", "v"), True),)


def test_columns_with_nothing_in_them_are_left_out_and_named() -> None:
    rows = [str(row) for row in range(8)]
    columns, notes = fit_columns(
        table(a=rows, same=["7"] * 8, void=[""] * 8, word=["x"] * 8, name=[f"n{row}" for row in rows], y=["0"] * 8), "y"
    )
    assert [column.name for column in columns.inputs] == ["a"]
    assert notes == ("Columns with nothing to learn from were left out: 'same', 'void', 'word', 'name'.",)
    with pytest.raises(RicnetError, match=r"my\.csv: beside 'y' there is no column to learn from"):
        fit(same=["7"] * 8, y=rows)


def test_a_typing_error_in_a_column_of_numbers_is_noticed() -> None:
    columns, notes = fit_columns(table(a=["1", "1", "1", "O"], y=["0"] * 4), "y")
    assert columns.inputs == (Category("a", ("1",), True),)
    assert notes == ("Column 'a' is read as text, for 'O' in line 5 is no number; correct it if it is.",)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"b": ["1"]}, r"my\.csv lacks columns that the model was trained on: 'a', 'c'; it has 'b'"),
        ({"a": ["1", "old"], "c": ["u", "u"]}, "line 3: 'a' is 'old', but the model was trained on numbers"),
        ({"a": ["1", "1e300"], "c": ["u", "u"]}, "line 3: a number is too large"),
    ],
)
def test_rows_that_do_not_fit_are_refused(columns: dict[str, list[str]], message: str) -> None:
    trained = fit(a=[*"123456"], c=["u", "v"] * 3, y=["0"] * 6)
    with pytest.raises(RicnetError, match=message):
        trained.encode(table(**columns))


def test_numbers_too_large_to_learn_from_are_refused() -> None:
    with pytest.raises(RicnetError, match="'a' are too large"):
        fit(a=["1e308", "-1e308"] * 3, y=["0"] * 6)


CELLS = st.lists(st.sampled_from(["", "?", "1", "2.5", "-7", "u", "v"]), min_size=12, max_size=12)


@given(CELLS, CELLS)
def test_what_is_saved_encodes_the_same_and_each_row_by_itself(a: list[str], b: list[str]) -> None:
    rows = table(a=a, b=b, sure=[str(row) for row in range(12)], y=["0"] * 12)
    columns = fit_columns(rows, "y")[0]
    again = columns_from_json(json.loads(json.dumps(columns.to_json(), allow_nan=False)), "config.json")
    assert again == columns
    assert again.to_json() == columns.to_json()
    encoded = again.encode(rows)
    assert encoded.shape == (12, columns.width)
    picked = [7, 0, 7]
    torch.testing.assert_close(again.encode(rows.take(picked)), encoded[picked])


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {"target": "y", "inputs": []},
        {"target": 3, "inputs": [{"kind": "number", "name": "a", "mean": 0, "std": 1, "flagged": False}]},
        {"target": "y", "inputs": [{"kind": "number", "name": "a", "mean": 0, "std": 0, "flagged": False}]},
        {"target": "y", "inputs": [{"kind": "number", "name": "a", "mean": "x", "std": 1, "flagged": False}]},
        {"target": "y", "inputs": [{"kind": "category", "name": "a", "values": [1], "other": False}]},
        {"target": "y", "inputs": [{"kind": "date", "name": "a"}]},
    ],
)
def test_damaged_columns_are_refused(entry: Any) -> None:
    with pytest.raises(RicnetError, match=r"config\.json: its columns are damaged"):
        columns_from_json(entry, "config.json")


def test_many_values_take_no_more_room_than_their_rows() -> None:
    """A table of all values against all would need 80 GB."""
    column = Category("colour", tuple(str(i) for i in range(100_000)), other=True)
    numbers = column.encode(Table("a table", {"colour": ["7", "red"]}, [2, 3]))
    assert numbers.shape == (2, 100_001)
    assert numbers.sum(axis=1).tolist() == [1, 1]
    assert (numbers[0, 7], numbers[1, -1]) == (1, 1)


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


def test_dates_in_several_forms_are_texts() -> None:
    columns, notes = fit_columns(table(a=["2024-01-01", "01/02/2024"] * 4, y=["0"] * 8), "y")
    assert columns.inputs == (Category("a", ("01/02/2024", "2024-01-01"), False),)
    assert notes == ()


def test_a_frame_of_numbers_is_plain_unless_one_names_the_row() -> None:
    numbers = pd.DataFrame({"size": np.linspace(0, 1, 40), "count": [1, 2] * 20})
    assert is_plain(numbers)
    assert is_plain(numbers.assign(size=range(0, 4000, 100)))  # with wide gaps it measures something
    assert not is_plain(numbers.assign(id=range(100, 140)))
    assert not is_plain(numbers.assign(size=[None, *range(39)]))
    assert not is_plain(numbers.assign(word="x"))
