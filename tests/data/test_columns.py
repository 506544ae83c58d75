import io
import json
import time
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from refusals import cases, refusal
from ricnet.data.columns import Category, Columns, Date, Number, columns_from_json, fit_columns, is_plain
from ricnet.data.notation import ENGLISH, PLAIN, POINTS
from ricnet.data.tables import (
    Cells,
    Table,
    TableError,
    parse_date,
    parse_number,
    parse_table,
    read_json_lines,
    show_date,
)
from ricnet.data.texts import Text

DAY = float((date(2024, 2, 29) - date(1970, 1, 1)).days)


def table(**columns: list[str]) -> Table:
    rows = len(next(iter(columns.values())))
    return Table("my.csv", columns, list(range(2, rows + 2)))


def learn(**columns: list[str]) -> tuple[Columns, tuple[str, ...]]:
    """Beside a column of classes."""
    return fit_columns(table(**columns, y=["0"] * len(next(iter(columns.values())))), "y")


def fit(**columns: list[str]) -> Columns:
    return learn(**columns)[0]


def test_what_is_a_number_and_what_is_missing() -> None:
    numbers = {"1": 1, "-2.5e3": -2500, ".5": 0.5, "x": None, "1_000": None, "inf": None, "1,5": None}
    assert {cell: parse_number(cell) for cell in numbers} == numbers
    for cell in ("", "NA", "n/a", "NaN", "None", "null", "?", "<NA>"):
        assert np.isnan(parse_number(cell))


def test_numbers_are_standardised_as_scikit_learn_does() -> None:
    """Far from zero, where single precision would not do."""
    values = 1.7e9 + np.random.default_rng(0).normal(size=50)
    cells = [repr(float(value)) for value in values]
    expected = StandardScaler().fit_transform(values[:, None])
    np.testing.assert_allclose(fit(a=cells).encode(table(a=cells)).numpy(), expected, atol=1e-5)


def test_missing_numbers_are_the_mean_and_are_flagged_where_training_had_some() -> None:
    columns = fit(a=["1", "?", "3"])
    assert columns.inputs == (Number("a", 2.0, 1.0, True),)
    assert columns.encode(table(a=["", "5"])).tolist() == [[0, 1], [3, 0]]
    assert fit(a=["1", "3"]).encode(table(a=["NA", "3"])).tolist() == [[0], [1]]
    assert fit(a=["4", "", "4"]).encode(table(a=["4", ""])).tolist() == [[0, 0], [0, 1]]  # that it is known at all


def test_only_training_rows_say_which_texts_are_frequent() -> None:
    cells = table(a=["x", "y"] * 5 + ["held out"] * 10)
    assert fit_columns(cells, "y", range(10))[0].inputs == (Category("a", ("x", "y"), False),)
    assert fit_columns(cells, "y", range(11))[0].inputs == (Category("a", ("x", "y"), True),)  # once is rare


def test_texts_are_encoded_as_scikit_learn_does() -> None:
    cells, new = [*"aabbbacccc", "", "", "", "rare", "rarer"], ["a", "rare", "", "never seen", "c"]
    theirs = OneHotEncoder(min_frequency=3, handle_unknown="infrequent_if_exist", sparse_output=False)
    theirs.fit(np.array(cells)[:, None])
    columns = fit(a=cells)
    assert columns.inputs == (Category("a", ("", "a", "b", "c"), True),)
    np.testing.assert_array_equal(columns.encode(table(a=new)).numpy(), theirs.transform(np.array(new)[:, None]))
    assert columns.surprises(table(a=new)) == ()
    many = ["u"] * 1000 + ["v"] * 6 + ["w"] * 4  # below half a percent is rare, too
    assert fit(a=many).inputs == (Category("a", ("u", "v"), True),)


@pytest.mark.parametrize(
    ("cells", "numbers", "facts"),
    [
        (["w", "v", "w"], [[0, 0], [0, 1], [0, 0]], ("2 of 3 rows", "'a'", "'w'")),
        (["", "v", ""], [[0, 0], [0, 1], [0, 0]], ("2 of 3 rows", "an empty 'a'")),
        (["", "w"], [[0, 0], [0, 0]], ("1 of 2 rows", "'w'", "1 of 2 rows have an empty 'a'")),
    ],
)
def test_a_new_value_is_encoded_as_unknown_with_a_note(
    cells: list[str], numbers: list[list[int]], facts: tuple[str, ...]
) -> None:
    columns = fit(a=["u", "v"] * 3)
    assert columns.encode(table(a=cells)).tolist() == numbers
    said = columns.surprises(table(a=cells))
    assert len(said) == len({bool(cell) for cell in cells if cell != "v"})  # a note for words, one for empty cells
    assert all(fact in " ".join(said) for fact in facts)


def test_empty_texts_of_a_table_are_counted_in_a_note() -> None:
    columns = Columns("y", (Text("a", 8),))
    assert columns.surprises(table(a=["a word", "other words"])) == ()
    [said] = columns.surprises(table(a=["a word", "", " \t"]))
    assert "2 of 3 texts are empty" in said


def test_columns_with_nothing_in_them_are_left_out_and_named() -> None:
    rows = [str(row) for row in range(8)]
    nothing = {"same": ["7"] * 8, "void": [""] * 8, "word": ["x"] * 8, "name": [f"n{row}" for row in rows]}
    columns, [note] = learn(a=rows, **nothing)
    assert [column.name for column in columns.inputs] == ["a"]
    assert "'same', 'void', 'word', 'name'" in note


@pytest.mark.parametrize(
    ("cells", "values", "facts"),
    [
        (["1", "1", "1", "O"], ("1",), ("'a'", "'O' in line 5", "number")),
        (["2024-01-01"] * 4 + ["2024-13-01"], ("2024-01-01",), ("'a'", "'2024-13-01' in line 6", "date")),
    ],
)
def test_a_typing_error_makes_texts_and_is_noticed(
    cells: list[str], values: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    columns, [note] = learn(a=cells)
    assert columns.inputs == (Category("a", values, True),)
    assert all(fact in note for fact in facts)


INCOMES = [str(row * 17 % 400 + 0.5) for row in range(400)]
DAYS = [str(date(2024, 1, 1) + timedelta(days=row)) for row in range(400)]


@pytest.mark.parametrize("odd", ["n/k", "-", "unknown", "12 kg", ">100", "inf", "1e400"])
@pytest.mark.parametrize(("cells", "kind"), [(INCOMES, Number), (DAYS, Date)])
def test_one_odd_cell_is_missing_wherever_it_is(odd: str, cells: list[str], kind: type) -> None:
    """It made a column of texts, dropped as such with a reason that was not true; among other rows than those of
    training it refused the table."""
    training = range(300)
    for row in (7, 350):
        gap, mistaken = [*cells], [*cells]
        gap[row], mistaken[row] = "", odd
        columns, _ = fit_columns(table(a=mistaken), "y", training)
        [column] = columns.inputs
        assert (replace(column, gaps=()),) == fit_columns(table(a=gap), "y", training)[0].inputs
        assert column.gaps == (odd,)
        assert type(columns.inputs[0]) is kind
        assert torch.equal(columns.encode(table(a=mistaken)), columns.encode(table(a=gap)))
        [note] = columns.odd_cells(table(a=mistaken))
        assert all(fact in note for fact in ("'a'", f"{odd!r} in line {row + 2}", "1 of its 400 cells", "missing"))
        assert columns.surprises(table(a=mistaken)) == (f"my.csv: c{note[1:]}",)
        assert columns.odd_cells(table(a=gap)) == ()


def test_more_than_one_cell_in_twenty_makes_texts() -> None:
    def with_odd(count: int) -> list[str]:
        return [*["-"] * count, *INCOMES[count:380], *[""] * 20]

    few, many = with_odd(19), with_odd(20)  # of 380 that are not missing
    assert isinstance(fit(a=few).inputs[0], Number)
    assert fit(a=many).inputs == (Category("a", ("", "-"), True),)
    assert torch.equal(fit(a=few).encode(table(a=["-"] * 3)), fit(a=few).encode(table(a=[""] * 3)))


ODD_CELLS = st.sampled_from(["1.5", "", "NA", "n/k", "> 100", "unknown", "2024-02-29", "soon", "1e400", "u"])


@given(st.lists(st.tuples(ODD_CELLS, ODD_CELLS, ODD_CELLS), min_size=1, max_size=40))
def test_whether_a_row_is_valid_does_not_depend_on_its_batch(rows: list[tuple[str, str, str]]) -> None:
    """ "n/k" was refused alone and accepted among 30 rows. What is kept of the columns decides, cell by cell."""
    learned = fit(a=["n/k", *INCOMES[1:]], b=["soon", *DAYS[1:]], c=["u", "v"] * 200)
    columns = columns_from_json(json.loads(json.dumps(learned.to_json())), "config.json")
    batch = table(**dict(zip("abc", map(list, zip(*rows, strict=True)), strict=True)))

    def outcome(some: Table) -> list[list[float]] | str:
        try:
            return columns.encode(some).tolist()
        except TableError as refused:
            return str(refused)

    alone = [outcome(batch.take([row])) for row in range(len(rows))]
    together = outcome(batch)
    refused = [answer for answer in alone if isinstance(answer, str)]
    if refused:
        assert together in refused
    else:
        assert together == [answer[0] for answer in alone]
    kept = [row for row, answer in enumerate(alone) if not isinstance(answer, str)]
    if kept:
        assert outcome(batch.take(kept)) == [alone[row][0] for row in kept]


def test_a_json_row_may_lack_columns_whatever_the_rows_beside_it_have() -> None:
    """A key that a line lacks was a gap only if another line had it."""
    columns = fit(a=["1", "", "3"] * 4, b=["u", "v", ""] * 4)
    line, full, void = '{"a": 3}\n', '{"a": 3, "b": "u"}\n', '{"c": 1}\n'
    [alone] = columns.encode(read_json_lines(io.StringIO(line), "my.jsonl")).tolist()
    assert columns.encode(read_json_lines(io.StringIO(full + line), "my.jsonl"))[1].tolist() == alone
    assert columns.surprises(read_json_lines(io.StringIO(line), "my.jsonl")) == (
        "my.jsonl: no row has 'b'; counted as missing.",
    )
    for text in (void, full + void):
        with refusal("my.jsonl, line", "none of the columns", "'a', 'b'"):
            columns.encode(read_json_lines(io.StringIO(text), "my.jsonl"))


@pytest.mark.parametrize("odd", ["02139", "unknown", ""])
def test_leading_zeros_make_codes(odd: str) -> None:
    """00109 was the number 109."""
    columns, [note] = learn(zip=[*["00109", "10115"] * 20, odd])
    assert columns.inputs == (Category("zip", ("00109", "10115"), True),)
    assert all(fact in note for fact in ("'zip'", "'00109' in line 2", "leading zeros"))
    rare = [f"{row * 7919 % 100_000:05}" for row in range(400)]
    columns, [note] = learn(sure=INCOMES, zip=rare)
    assert [column.name for column in columns.inputs] == ["sure"]
    assert all(fact in note for fact in ("'zip'", "left out", "'00000' in line 2", "leading zeros"))


@pytest.mark.parametrize("cells", [["012", "7", "30"], ["0.5", "1.5"], ["0", "1"], ["00.5", "0011"]])
def test_other_zeros_make_none(cells: list[str]) -> None:
    columns, notes = learn(a=cells * 10)
    assert isinstance(columns.inputs[0], Number)
    assert notes == ()


ODD = [f"{row} kg" if row % 10 == 0 else cell for row, cell in enumerate(INCOMES)]


def test_why_a_column_was_left_out_is_true() -> None:
    assert "the same in all rows" in learn(sure=INCOMES, a=["007"] * 400)[1][0]
    columns, notes = learn(sure=INCOMES, a=ODD)
    assert [column.name for column in columns.inputs] == ["sure"]
    [note] = notes
    assert all(fact in note for fact in ("'a'", "left out", "'0 kg' in line 2", "not a number", "39 more", "400 cells"))


def test_numbers_of_rows_are_known_in_spite_of_an_odd_one() -> None:
    columns, notes = learn(sure=INCOMES, id=["x", *map(str, range(1, 400))])
    assert [column.name for column in columns.inputs] == ["sure"]
    assert "identifiers" in notes[0]


ROWS = [str(row) for row in range(40)]


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "ID",
        "PassengerId",
        "user_id",
        "customerid",
        "uuid",
        "Row-Number",
        "row",
        "record key",
        "index",
        "No",
        "nr",
    ],
)
def test_a_column_is_left_out_as_an_identifier_by_its_name_and_its_values(name: str) -> None:
    for values in (ROWS, [str(row * row * 1000) for row in range(40)], [f"{row:x}-{row % 7}" for row in range(40)]):
        columns, [note] = learn(sure=INCOMES[:40], **{name: values})
        assert [column.name for column in columns.inputs] == ["sure"]
        assert repr(name) in note
    for values in (["0", *ROWS[:-1]], ["", *ROWS[1:]], [f"{row}.5" for row in ROWS]):
        assert [column.name for column in fit(sure=INCOMES[:40], **{name: values}).inputs] == ["sure", name]
    assert [column.name for column in fit(sure=INCOMES[:20], **{name: ROWS[:20]}).inputs] == ["sure", name]


@pytest.mark.parametrize(
    "name", ["rank", "mileage", "days since", "paid", "acid", "idle", "number", "monkey", "keyword"]
)
def test_numbers_that_differ_in_all_rows_are_learned_from_unless_they_are_called_an_identifier(name: str) -> None:
    assert [column.name for column in fit(sure=INCOMES[:40], **{name: ROWS}).inputs] == ["sure", name]


def test_all_columns_are_kept_where_that_is_asked_for() -> None:
    cells = {"id": ROWS, "same": ["7"] * 40, "void": [""] * 40, "name": [f"n{row}" for row in ROWS]}
    columns, [note] = fit_columns(table(**cells), "", keep_all=True)
    assert [column.name for column in columns.inputs] == list(cells)
    assert "left out" not in note
    numbers = columns.encode(table(**cells))
    assert numbers.shape == (40, 4)
    assert torch.equal(numbers[:, 1:], numbers[:1, 1:].expand(40, -1))
    assert columns_from_json(columns.to_json(), "config.json") == columns


def test_the_format_that_reads_most_dates_is_taken() -> None:
    """Nineteen in twenty days of this column could also be months."""
    cells = [*["03/04/2024"] * 39, "30/04/2024"]
    assert Cells(cells).formats == ["%d/%m/%Y"]
    assert Cells([*cells, "soon"]).formats == ["%d/%m/%Y"]


def test_a_column_of_many_different_times_is_read_in_time_that_grows_with_it() -> None:
    """A log of 50,000 seconds takes a tenth of one; it once took twenty, and a million would have taken hours."""
    first = datetime(2024, 1, 1)
    cells = [(first + timedelta(seconds=second)).isoformat(" ") for second in range(50_000)]
    start = time.process_time()
    assert Cells(cells).formats == ["iso"]
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"b": ["1"]}, ("my.csv", "'a', 'c'", "'b'")),
        ({"a": ["1", "old"], "c": ["u", "u"]}, ("line 3", "'a'", "'old'")),
        ({"a": ["1", "1e300"], "c": ["u", "u"]}, ("line 3",)),
    ],
)
def test_rows_that_do_not_fit_are_refused(columns: dict[str, list[str]], named: tuple[str, ...]) -> None:
    trained = fit(a=[*"123456"], c=["u", "v"] * 3)
    with refusal(*named):
        trained.encode(table(**columns))


@pytest.mark.parametrize(
    ("cells", "named"),
    cases(
        {
            "the same in all rows": (["7"] * 8, ("my.csv", "'y'")),
            "numbers with units": (ODD, "'0 kg' in line 2"),
            "too large": (["1e308", "-1e308"] * 3, "'a'"),
        }
    ),
)
def test_a_table_without_a_column_to_learn_from_is_refused(cells: list[str], named: Any) -> None:
    with refusal(named):
        fit(a=cells)


CELLS = st.lists(st.sampled_from(["", "?", "1", "2.5", "-7", "u", "v"]), min_size=12, max_size=12)


@given(CELLS, CELLS)
def test_what_is_saved_encodes_the_same_and_each_row_by_itself(a: list[str], b: list[str]) -> None:
    cells = {"a": a, "b": b, "sure": [str(row) for row in range(12)]}
    columns, rows = fit(**cells), table(**cells)
    again = columns_from_json(json.loads(json.dumps(columns.to_json(), allow_nan=False)), "config.json")
    assert again == columns
    assert again.to_json() == columns.to_json()
    encoded, picked = again.encode(rows), [7, 0, 7]
    assert encoded.shape == (12, columns.width)
    torch.testing.assert_close(again.encode(rows.take(picked)), encoded[picked])


NUMBER = {"kind": "number", "name": "a", "mean": 0, "std": 1, "flagged": False}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {"target": "y", "inputs": []},
        {"target": 3, "inputs": [NUMBER]},
        {"target": "y", "inputs": [NUMBER | {"std": 0}]},
        {"target": "y", "inputs": [NUMBER | {"mean": "x"}]},
        {"target": "y", "inputs": [{"kind": "category", "name": "a", "values": [1], "other": False}]},
        {"target": "y", "inputs": [{"kind": "category", "name": "a", "values": [], "other": False}]},
        {"target": "y", "inputs": [{"kind": "date", "name": "a"}]},
        {"target": "y", "inputs": [NUMBER | {"kind": "date", "format": "%Q"}]},
        {"target": "y", "inputs": [NUMBER | {"notation": "1 234"}]},
        {"target": "y", "inputs": [NUMBER | {"unit": 3}]},
        {"target": "y", "inputs": [NUMBER | {"unit": "\n"}]},
    ],
)
def test_damaged_columns_are_refused(entry: Any) -> None:
    with refusal("config.json"):
        columns_from_json(entry, "config.json")


def test_many_values_take_no_more_room_than_their_rows() -> None:
    """A table of all values against all would need 80 GB."""
    column = Category("colour", tuple(str(i) for i in range(100_000)), other=True)
    numbers = column.encode(table(colour=["7", "red"]))
    assert (numbers.shape, numbers.sum(axis=1).tolist()) == ((2, 100_001), [1, 1])
    assert (numbers[0, 7], numbers[1, -1]) == (1, 1)


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
    formats = {"03/04/2024": ["%m/%d/%Y", "%d/%m/%Y"], "31/04/2024": [], "30/04/2024": ["%d/%m/%Y"]}
    assert {cell: Cells(["01/02/2024", cell]).formats for cell in formats} == formats
    assert Cells([]).formats == []


def test_a_column_of_dates_is_one_of_numbers() -> None:
    """A date became a category for each day."""
    columns, [note] = learn(joined=["2024-02-28", "", "2024-03-01"])
    assert columns.inputs == (Date("joined", DAY, 1.0, True, "iso"),)
    assert "'joined'" in note
    assert columns.encode(table(joined=["2024-03-02", "NA"])).tolist() == [[2, 0], [0, 1]]
    assert columns_from_json(columns.to_json(), "config.json") == columns
    with refusal("my.csv, line 2", "'joined'", "'soon'", "1999-12-31"):
        columns.encode(table(joined=["soon"]))


def test_month_first_dates_get_a_note_and_mixed_forms_are_texts() -> None:
    _, notes = learn(a=["01/02/2024", "03/04/2024"])
    assert "12/31/1999" in notes[1]
    columns, notes = learn(a=["2024-01-01", "01/02/2024"] * 4)
    assert columns.inputs == (Category("a", ("01/02/2024", "2024-01-01"), False),)
    assert notes == ()


def test_unambiguous_dates_may_be_mixed() -> None:
    """They became a category whose values were nearly all rare."""
    cells = ["2024-02-29", "27.11.2024", "2024-02-28", "2024/03/01"]
    columns, notes = learn(a=cells)
    [date_column] = columns.inputs
    assert isinstance(date_column, Date)
    assert (date_column.format, date_column.gaps) == ("iso", ())
    values = date_column.read(Cells(cells)).values
    assert values.tolist() == [DAY, DAY + 272, DAY - 1, DAY + 1]
    assert any("several formats" in note and "'27.11.2024'" in note for note in notes)
    assert len(learn(a=cells[::2])[1]) == 1


def test_new_dates_may_have_any_unambiguous_form() -> None:
    for cells in (["2024-02-28", "2024-03-01"], ["28.02.2024", "01.03.2024"], ["02/28/2024", "03/01/2024"]):
        encoded = fit(a=cells).encode(table(a=[cells[0], "2024-02-28", "28.02.2024", "2024/02/28"]))
        assert encoded.tolist() == [[-1]] * 4
    with refusal("'28/02/2024'"):
        fit(a=["2024-02-28", "2024-03-01"]).encode(table(a=["28/02/2024"]))


def read(text: str) -> tuple[Columns, Table, tuple[str, ...]]:
    """Columns learned from a file without a target, its table, and the notes."""
    parsed = parse_table(text, "my.csv")
    columns, notes = fit_columns(parsed, "y")
    return columns, parsed, notes


def values(text: str, column: int = 0) -> list[float]:
    columns, parsed, _ = read(text)
    reader = columns.inputs[column]
    assert isinstance(reader, Number)
    return reader.read(parsed.columns[reader.name]).values.tolist()


def named(notes: tuple[str, ...], *facts: str) -> bool:
    return any(all(fact in note for fact in facts) for note in notes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;z\n1.842;-1,5\n987;0,5\n12.345.678;1\n", [1842, 987, 12_345_678]),  # decimal commas in z
        ("a;z\n1.842;1\n987,5;2\n12;3\n", [1842, 987.5, 12]),  # in the column itself
        ("a;z\n23.154,68;1\n63,2;2\n7;3\n", [23154.68, 63.2, 7]),
        ("a;z\n1.842;-1.5\n987;0.5\n12.345;1\n", [1.842, 987, 12.345]),  # no decimal comma
        ("\n".join(["a;z", "1.842;x, y", *["987;0"] * 20]), [1.842, *[987] * 20]),  # a comma, but not in a number
        ("a;z\n1.842;-1,5\n0.5;0,5\n12.345;1\n", [1.842, 0.5, 12.345]),  # 0.5 has a decimal point
        ("a;z\n1,842;1\n987;2\n12,345;3\n", [1.842, 987, 12.345]),  # a file with semicolons
        ("a;z\n1,234.5;1\n987;2\n12,345;3\n", [1234.5, 987, 12345]),
        ('a,z\n"1,842",1.5\n987,2\n"12,345.5",3\n', [1842, 987, 12345.5]),
        ('a,z\n"1,842",1.5\n987,2\n"12,345",3\n', [1842, 987, 12345]),
        ('a,z\n"1,842","1,5"\n987,2\n"12,345",3\n', [1.842, 987, 12.345]),  # decimal commas in z
        ('a,z\n"63,2",1\n987,2\n"12,345",3\n', [63.2, 987, 12.345]),
        ('a,z\n1.842,"1,5"\n987,2\n3,3\n', [1842, 987, 3]),
        ("a,z\n1.842,1\n12.345.678,2\n3,3\n", [1842, 12_345_678, 3]),  # two points
        ("a,z\n5.1 %,1\n7%,2\n-3 %,3\n", [5.1, 7, -3]),
        ("a;z\n5.125 %;1,5\n7.1 %;2,5\n", [5.125, 7.1]),
        ('a,z\n"€ 1.842,5",1\n€ 7,2\n€ 12.345,3\n', [1842.5, 7, 12345]),
    ],
)
def test_the_whole_table_says_what_points_and_commas_mean(text: str, expected: list[float]) -> None:
    """1.234 beside 987 was 1.234 in a German file; numbers with commas or units became texts and were left out."""
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a;z\n987;-1,5\n1.842;0,5\n", ("'a'", "'1.842' as 1842")),
        ('a,z\n987,1\n"1,842.5",2\n', ("'a'", "'1,842.5' as 1842.5")),
        ('a,z\n987,1\n"63,2",2\n', ("'a'", "'63,2' as 63.2")),
        ("a,z\n5.1 %,1\n7 %,2\n", ("'a'", "'5.1 %' as 5.1")),
    ],
)
def test_numbers_that_are_written_in_another_way_are_noted_with_an_example(text: str, facts: tuple[str, ...]) -> None:
    _, _, notes = read(text)
    assert len(notes) == 1
    assert named(notes, *facts)


def test_points_that_may_separate_thousands_are_noted() -> None:
    assert named(read("a,z\n1.842,7\n987,5\n")[2], "'a'", "'1.842' is read as 1.842", "write 1842")
    assert named(read("a;z\n1.842;7\n987;5\n")[2], "'a'", "write 1842")
    assert read("\n".join(["a", *map(str, range(40)), "n.a."]))[2] == ()
    for cells in (["1.842", "987.123"], ["1.842", "1500"], ["1.842", "987", "0.5"], ["7", "8"]):
        assert read("\n".join(["a", *cells]))[2] == ()
    assert read("a;z\n63,2;1\n70,5;3\n")[2] == ()  # usual in files with semicolons


def test_new_rows_are_written_as_the_training_rows_or_plainly() -> None:
    columns, _, _ = read("a;z;p\n1.000;-1,0;1 %\n3.000;1,0;3 %\n")
    assert [column.notation for column in columns.inputs if isinstance(column, Number)] == [POINTS] * 3
    again = columns_from_json(json.loads(json.dumps(columns.to_json())), "config.json")
    assert again == columns
    for text in ("a;z;p\n4.000;2,0;4 %\n", 'a,z,p\n4000,"2,0",4\n'):
        assert again.encode(parse_table(text, "new.csv")).tolist() == [[2, 2, 2]]
    for line in ('{"a": 4000, "z": "2,0", "p": "4 %"}', '{"a": "4.000", "z": 2.0, "p": 4}'):
        assert again.encode(read_json_lines(io.StringIO(line), "new.jsonl")).tolist() == [[2, 2, 2]]
    [[typed, *_]] = again.encode(read_json_lines(io.StringIO('{"a": 4.125, "z": 0, "p": 2}'), "new.jsonl")).tolist()
    assert typed == pytest.approx((4.125 - 2000) / 1000)  # a number of JSON has no thousands separators
    with refusal("'1,234.5'", "numbers such as 1.234,5"):
        again.encode(parse_table('a,z,p\n"1,234.5",0,2\n', "new.csv"))


def test_plain_columns_are_stored_as_before_and_read_decimal_commas_of_files_with_semicolons() -> None:
    columns, _, _ = read("a,z\n1,5\n3,7.5\n")
    assert set(columns.to_json()["inputs"][0]) == {"kind", "name", "mean", "std", "flagged", "gaps"}
    assert columns.encode(parse_table("a;z\n2,0;6,25\n", "new.csv")).tolist() == [[0, 0]]
    with refusal("'2,0'"):
        columns.encode(parse_table('a,z\n"2,0",6\n', "new.csv"))
    assert [read(f"a,z\n{cell},1\n5,2\n")[0].inputs[0].notation for cell in ("3", '"3,000.5"')] == [PLAIN, ENGLISH]


def test_a_unit_must_be_that_of_nineteen_cells_in_twenty() -> None:
    def with_bare(count: int) -> list[str]:
        return [f"{row}.5" if row < count else f"{row}.5 %" for row in range(100)]

    few, many = fit(sure=INCOMES[:100], a=with_bare(5)), fit(sure=INCOMES[:100], a=with_bare(6))
    assert [column.unit for column in few.inputs if isinstance(column, Number)] == ["", "%"]
    assert [column.name for column in many.inputs] == ["sure"]
    assert isinstance(fit(a=["12 kg", "13 lb"] * 4).inputs[0], Category)


def test_a_column_without_a_name_is_read_or_left_out_with_a_note() -> None:
    columns, _, notes = read("b,\n1,0.5\n2,-3\n")
    assert [column.name for column in columns.inputs] == ["b", "Unnamed: 1"]
    assert named(notes, "Column 2 has no name", "'Unnamed: 1'")
    for cells in (["0", "1", "2"], ["7", "3", "12"]):
        columns, _, notes = read("\n".join([",b", *(f"{cell},{row % 2}" for row, cell in enumerate(cells))]))
        assert [column.name for column in columns.inputs] == ["b"]
        assert notes == ("Column 1 has no name and numbers the rows, so it was left out.",)


@pytest.mark.parametrize("cell", ["{0}:{0}", "~{0}.5", "{0} x {0}", "{0}/{0}"])
def test_lost_cells_that_look_like_numbers_are_noted(cell: str) -> None:
    columns, notes = learn(sure=INCOMES, a=[cell.format(row) for row in range(400)])
    assert [column.name for column in columns.inputs] == ["sure"]
    assert named(notes, "'a'", "left out", "look like numbers", repr(cell.format(0)), "23154.68")
    some = [cell.format(row // 4 if row < 20 else row) for row in range(400)]
    columns, notes = learn(sure=INCOMES, a=some)
    assert isinstance(columns.inputs[1], Category)
    assert named(notes, "'a' is read as text", "look like numbers")


def test_other_texts_are_not_called_numbers() -> None:
    for cells in ([f"K{row:05}" for row in range(400)], [f"{row % 3}:1" for row in range(400)]):
        assert not named(learn(sure=INCOMES, a=cells)[1], "look like numbers")


def test_a_frame_of_numbers_without_gaps_is_plain() -> None:
    numbers = pd.DataFrame({"size": np.linspace(0, 1, 40), "count": [1, 2] * 20, "id": range(100, 140)})
    assert is_plain(numbers)
    for other in ({"size": [None, *range(39)]}, {"word": "x"}):
        assert not is_plain(numbers.assign(**other))
