import contextlib
import gzip
import io
import math
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import cases, refusal
from ricnet.data import load, tables
from ricnet.data.columns import Category, Columns, Number
from ricnet.data.inputs import read_inputs
from ricnet.data.notation import NOTATIONS, POINTS
from ricnet.data.tables import (
    BLOCK,
    MISSING,
    Cells,
    TableError,
    frame_table,
    is_missing,
    parse_number,
    parse_table,
    parse_written,
    read_json_lines,
    read_table,
)
from ricnet.errors import RicnetError
from ricnet.io import is_frame, short_name, split_target, with_target


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_are_found_for_every_delimiter(delimiter: str) -> None:
    table = parse_table("a,b\n1, x y \n\n,z\n".replace(",", delimiter), "it")
    assert (table.columns, list(table.lines)) == ({"a": ["1", ""], "b": ["x y", "z"]}, [2, 4])
    taken = table.take([1, 0])
    assert (taken.columns, list(taken.lines), len(taken)) == ({"a": ["", "1"], "b": ["z", "x y"]}, [4, 2], 2)


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ('a,b\n"1,5","two\nlines"\n3,"say ""it"""\n', {"a": ["1,5", "3"], "b": ["two\nlines", 'say "it"']}, [3, 4]),
        ("a;b\n-1,25;x,y\n", {"a": ["-1,25"], "b": ["x,y"]}, [2]),
        (",a\n0,5\n1,6\n", {"Unnamed: 0": ["0", "1"], "a": ["5", "6"]}, [2, 3]),  # pandas' name of it
        ("a,b\n1,2\n,\n \n\n , \n3,4\n", {"a": ["1", "", "", "3"], "b": ["2", "", "", "4"]}, [2, 3, 6, 7]),
        ('a\n1\n""\n\n2\n', {"a": ["1", "", "2"]}, [2, 3, 5]),
        ('a,b\n1,2\n""\n" "\n4,5\n', {"a": ["1", "4"], "b": ["2", "5"]}, [2, 5]),  # below several names: a blank line
        (",\n\na,b\n1,2\n", {"a": ["1"], "b": ["2"]}, [4]),  # above the names empty cells are passed over
    ],
)
def test_quotes_commas_and_empty_cells(text: str, columns: dict[str, list[str]], lines: list[int]) -> None:
    table = parse_table(text, "it")
    assert (table.columns, list(table.lines)) == (columns, lines)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "it has no rows"),
        ("a,b\n", "it has no rows"),
        ("a,b\n1,2\n1,2,3\n", "it, line 3: 3 cells; 2 columns"),
        ("a,b\n1,2\n1\n", "it, line 3: 1 cell ; 2 columns"),
        ("a\n1\n,\n", "it, line 3: 2 cells; 1 column;"),
        ("a,b,a\n1,2,3\n", "'a'"),
        ("1,2.5,-3\n1,2,3\n", "numbers (1, "),
        ('a,b\n1,"2\n', "it, line 2; quotation mark"),
    ],
)
def test_errors_name_invalid_tables(text: str, named: str) -> None:
    with refusal(*named.split("; "), kind=TableError):
        parse_table(text, "it")


@given(st.text('a1,;"\n\t |\r\x00é\u2028\ufeff', max_size=80))
def test_any_text_is_a_table_or_a_sentence(text: str) -> None:
    with contextlib.suppress(RicnetError):
        table = parse_table(text, "it")
        assert all(len(cells) == len(table) for cells in table.columns.values())


FRAME = pd.DataFrame(
    {
        "size": [1.5, None, 3.0],
        "count": [1, 2, 3],
        "colour": ["red", None, " blue "],
        "seen": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
        "sure": [True, False, True],
    }
)
CELLS = {
    "size": ["1.5", "", "3.0"],
    "count": ["1", "2", "3"],
    "colour": ["red", "", "blue"],
    "seen": ["2024-01-01 00:00:00", "", "2024-01-03 00:00:00"],
    "sure": ["True", "False", "True"],
}


def test_files_and_frames_have_the_same_cells(tmp_path: Path) -> None:
    assert frame_table(FRAME).columns == CELLS
    assert frame_table(FRAME).take([2]).place(0) == "the data frame, row 2"
    for name in ("a.csv", "a.csv.gz"):
        FRAME.to_csv(tmp_path / name, index=False, date_format="%Y-%m-%d %H:%M:%S")
        assert read_table(tmp_path / name).columns == CELLS
    texts = FRAME.assign(seen=FRAME["seen"].astype(str).where(FRAME["seen"].notna()))
    texts.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    assert read_table(tmp_path / "a.jsonl").columns | {"seen": []} == CELLS | {"seen": []}
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n\n{"b": "x\xe2\x80\xa8y", "a": null}\n'))
    table = read_table(tmp_path / "b.jsonl.gz")
    assert (table.columns, list(table.lines)) == ({"a": ["1", ""], "b": ["", "x\u2028y"]}, [1, 3])
    (tmp_path / "a.csv").write_bytes("\ufeffStraße,b\nKöln,2\n".encode())
    assert read_table(tmp_path / "a.csv").columns == {"Straße": ["Köln"], "b": ["2"]}
    with refusal("absent.csv"):
        read_table(tmp_path / "absent.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_table_in_windows_1252_is_read_with_a_note(name: str, tmp_path: Path) -> None:
    content = "Größe;Preis\nKöln;5 €\n".encode("cp1252")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    table = read_table(tmp_path / name)
    assert table.columns == {"Größe": ["Köln"], "Preis": ["5 €"]}
    assert [("Windows-1252" in note, name in note) for note in table.take([0]).notes] == [(True, True)]
    model = Columns("y", (Category("Größe", ("Köln", "Bonn"), False),))
    assert model.surprises(table) == table.notes
    (tmp_path / "utf8.csv").write_text("Größe\nKöln\n", encoding="utf-8")
    assert read_table(tmp_path / "utf8.csv").notes == ()


def test_only_cells_that_were_texts_may_have_thousands_separators() -> None:
    """1.234 is a number of JSON and of a data frame; in a German file it may be 1234."""
    cells = ["1.234", "12.345.678", "63,2", "1.234,5", ""]
    for typed, first in ((False, 1234.0), (True, 1.234)):
        values = Cells(cells, typed=typed).numbers_as(POINTS).values
        np.testing.assert_array_equal(values, [first, 12_345_678, 63.2, 1234.5, np.nan])
        assert Cells(["1.234"], typed=typed).numbers_as(POINTS).values.tolist() == [first]
    rows = '{"a": 1.234, "b": "1.234", "c": 3}\n{"a": "1", "b": null, "c": 4}\n'
    json_table = read_json_lines(io.StringIO(rows), "it")
    assert {name: column.typed for name, column in json_table.columns.items()} == {"a": True, "b": False, "c": False}
    frame = frame_table(pd.DataFrame({"a": [1.234, 2.5], "b": ["1.234", None]}))
    assert {name: column.typed for name, column in frame.columns.items()} == {"a": True, "b": False}
    text = parse_table("a;b\n1.234;2\n", "it").columns["a"]
    assert (text.typed, text.take([0]).typed, text.take([0]).decimal_comma) == (False, False, True)


NUMERALS = [
    "1.234",
    "12.345.678",
    "1,234",
    "1,234.5",
    "1.234,5",
    "63,2",
    "987",
    "-5",
    "0.5",
    "+1.000,25",
    "NA",
    "",
    "x",
]


@given(st.lists(st.sampled_from([*NUMERALS, "5 %", "€ 1.234", "two\nlines", "1_0", "1e3"]), max_size=9), st.booleans())
@pytest.mark.parametrize("notation", sorted(NOTATIONS))
@pytest.mark.parametrize("unit", ["", "%", "€"])
def test_cells_of_a_notation_are_read_one_by_one_whatever_the_others_are(
    notation: str, unit: str, cells: list[str], typed: bool
) -> None:
    one_by_one = [parse_written(cell, notation, unit, typed) for cell in cells]
    found = Cells(cells, typed=typed).numbers_as(notation, unit)
    np.testing.assert_array_equal(found.values, [math.nan if value is None else value for value in one_by_one])
    assert found.odd.tolist() == [row for row, value in enumerate(one_by_one) if value is None]


def test_parquet_is_read_where_its_extra_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    FRAME.to_parquet(path)
    assert read_table(path).columns == CELLS
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with refusal(path, "pyarrow", "'ricnet[parquet]'"):
        read_table(path)
    path.write_bytes(b"PAR1 and nothing else")
    monkeypatch.undo()
    with refusal(path):
        read_table(path)


@pytest.mark.parametrize(
    ("limit", "value", "named"),
    cases(
        {
            "memory": ("free_bytes", lambda _device: 5_000_000, "does not fit into memory"),
            "size": ("MAX_UNPACKED", 100_000, "unpacked"),
        }
    ),
)
def test_parquet_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, limit: str, value: object, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "c.parquet"
    pd.DataFrame({"a": [0] * 100_000}).to_parquet(path)
    assert path.stat().st_size < 10_000
    assert len(read_table(path)) == 100_000
    with refusal(path, "'size'"):
        read_inputs([str(path)], (1,), Columns("kind", (Number("size", 0.0, 1.0, False),)))
    monkeypatch.setattr(tables, limit, value)
    with refusal(path, named, kind=TableError):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.jsonl", '{"a": "Köln"}'.encode("latin-1"), ("UTF-8",)),
        ("a.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", ("UTF-8",)),
        ("a.csv", b"a,b\n\x81,1\n", ("UTF-8",)),  # no letter of Windows-1252 either
        ("a.csv.gz", b"size,kind\n1,a\n", ("gzip",)),
        ("a.csv.gz", gzip.compress(b"size,kind\n1,a\n" * 100, mtime=0)[:-20], ("gzip",)),
        ("a.jsonl", b'{"a": 1}\n{"a": }\n', ("line 2",)),
        ("a.jsonl", b"[1, 2]\n", ("line 1", "list")),
        ("a.jsonl", b'{"a": {"b": 1}}\n', ("line 1", "'a'", "dict")),
        ("a.jsonl", b'{"a": NaN}\n', ("line 1", "NaN")),
        ("a.jsonl", b"\n", ("no rows",)),
        ("a.jsonl", b'{"a": "\\ud800"}', ("line 1", "UTF-8")),
        ("a.jsonl", b"[" * 100_000, ("line 1", "nested")),
    ],
)
def test_errors_name_unreadable_files(name: str, content: bytes, named: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with refusal(name, *named):
        read_table(tmp_path / name)


def test_a_small_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_UNPACKED", 1_000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * 1_000))
    with refusal("a.csv.gz", "unpacked"):
        read_table(tmp_path / "a.csv.gz")


LINE = {"a.csv": b"0,0\n", "a.jsonl": b'{"a": 0, "b": 0}\n'}


def amplifying(path: Path) -> Path:
    """8 MB in some 20 kB, or in a plain file."""
    plain = path.name.removesuffix(".gz")
    content = b"a,b\n" * plain.endswith("csv") + LINE[plain] * (8_000_000 // len(LINE[plain]))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def most_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of each table were unpacked."""
    read, take = [0], tables.Allowance.take

    def counting(room: tables.Allowance, size: int, cells: int) -> None:
        read[-1] = room.size + size
        take(room, size, cells)

    monkeypatch.setattr(tables.Allowance, "take", counting)
    return read


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.jsonl.gz", "a.jsonl"])
def test_columns_are_checked_before_rows_are_read(name: str, tmp_path: Path, most_read: list[int]) -> None:
    """292 kB without the model's columns took 7.3 GB before that was said."""
    path = amplifying(tmp_path / name)
    with refusal(name, "columns", "'size'"):
        read_inputs([str(path)], (1,), Columns("kind", (Number("size", 0.0, 1.0, False),)))
    with refusal(name, "is a table"):
        read_inputs([str(path)], (1,), None)
    if "csv" in name:
        with refusal(name, "'kind'"):
            load(path, target="kind")
    assert most_read[0] <= tables.CHUNK


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.jsonl.gz"])
def test_a_table_takes_no_more_memory_than_is_free(
    name: str, tmp_path: Path, most_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "free_bytes", lambda _device: 2_000_000)
    path = amplifying(tmp_path / name)
    for read in (
        lambda: read_inputs([str(path)], (1,), Columns("kind", (Number("a", 0.0, 1.0, False),))),
        lambda: load(path, target="b"),
        lambda: load(path, target="b", test=path),
    ):
        with refusal(name, "does not fit into memory", "give a part"):
            read()
        assert most_read[0] < 600_000


def test_estimated_memory_is_near_the_real_one(tmp_path: Path) -> None:
    rows = 40_000
    cells = np.random.default_rng(0).normal(size=(rows, 10)).round(6)
    frame = pd.DataFrame(cells, columns=list("abcdefghij")).assign(kind=["u", "v"] * (rows // 2))
    frame.to_csv(tmp_path / "a.csv", index=False)
    tracemalloc.start()
    load(tmp_path / "a.csv", target="kind")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    estimate = tables.MEMORY_PER_BYTE * (tmp_path / "a.csv").stat().st_size + tables.MEMORY_PER_CELL * 11 * rows
    assert 0.7 * estimate < peak < 1.3 * estimate, (peak, estimate)


@pytest.mark.parametrize("name", ["my.csv", "my.tsv", "my.csv.gz", "my.jsonl", "my.jsonl.gz", "My.PARQUET"])
def test_all_of_them_can_name_their_target(name: str) -> None:
    assert split_target(with_target(f"data/{name}", "kind")) == (f"data/{name}", "kind")
    assert short_name(f"data/{name}#kind").lower() == "my-kind"


def test_frames_are_known_without_importing_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_frame(FRAME)
    assert not is_frame({"a": [1]})
    monkeypatch.delitem(sys.modules, "pandas")
    assert not is_frame(FRAME)


@pytest.mark.parametrize(
    ("frame", "named"), [(pd.DataFrame([[1, 2]], columns=["a", "a "]), "'a'"), (pd.DataFrame({"a": []}), "no rows")]
)
def test_frames_that_are_no_tables_are_a_value_error(frame: pd.DataFrame, named: str) -> None:
    assert issubclass(TableError, ValueError)
    with refusal("the data frame", named, kind=TableError):
        frame_table(frame)


def test_identifiers_are_named_and_left_out(tmp_path: Path) -> None:
    """PassengerId was learned in silence; a measurement or rank that differs in all rows is not one."""
    rows = range(60)
    columns = {
        "PassengerId": [row + 1 for row in rows],
        "Name": [f"{'abcdefghij'[row % 10]}{row}" for row in rows],
        "Weight": [50 + row * 0.37 for row in rows],
        "Distance": [row * row * 10 for row in rows],
        "Rank": [60 - row for row in rows],
        "kind": ["ab"[row % 2] for row in rows],
    }
    pd.DataFrame(columns).to_csv(tmp_path / "my.csv", index=False)
    data = load(tmp_path / "my.csv", target="kind")
    assert [column.name for column in data.columns.inputs] == ["Weight", "Distance", "Rank"]
    assert "'Name'" in data.notes[0]
    assert "identifiers" in data.notes[1]
    assert "'PassengerId'" in data.notes[1]


ANY = st.lists(st.sampled_from(["1", "2.5", "-7e3", "", "NA", "+nan", "inf", "1_0", "x", "two\nlines", "½", "007"]))


@given(ANY)
def test_a_column_is_read_cell_by_cell_whatever_the_others_are(cells: list[str]) -> None:
    column, one_by_one = Cells(cells), [parse_number(cell) for cell in cells]
    assert list(column) == cells == [column[row] for row in range(len(cells))]
    assert column.numbers.odd.tolist() == [row for row, value in enumerate(one_by_one) if value is None]
    np.testing.assert_array_equal(column.numbers.values, [math.nan if v is None else v for v in one_by_one])
    assert column.numbers.few_odd == (one_by_one.count(None) <= 0.05 * sum(not is_missing(cell) for cell in cells))
    codes, texts = column.values
    assert [texts[code] for code in codes] == cells
    assert column.values.counts == {text: cells.count(text) for text in dict.fromkeys(cells)}


@pytest.mark.parametrize("odd", ["", "x", "two\nlines"])
def test_rows_are_found_in_every_block(odd: str) -> None:
    cells = [odd if row % 1000 == 7 else str(row) for row in range(2 * BLOCK + 5)]
    column = Cells(cells)
    assert (len(column), column[-1], column[BLOCK]) == (len(cells), cells[-1], cells[BLOCK])
    assert column.take([BLOCK, 7, 2 * BLOCK]) == [cells[BLOCK], odd, cells[2 * BLOCK]]
    assert column.numbers.odd.tolist() == [row for row, cell in enumerate(cells) if cell in {"x", "two\nlines"}]


def test_missing_cells_are_known_in_any_case() -> None:
    assert all(is_missing(word) and is_missing(word.upper()) and is_missing(word.title()) for word in MISSING)
    assert not is_missing("nano")


@pytest.mark.parametrize("late", ['"7,5"', "", '"8\n8"'], ids=["quoted", "blank", "two lines"])
def test_lines_after_the_first_blocks_are_read_as_the_first_ones(late: str, tmp_path: Path) -> None:
    """Plain lines are split at once; from the first other line on `csv` reads the file."""
    rows = [f"{row},{row % 7}" for row in range(2 * BLOCK)]
    rows[BLOCK + 10] = f"{late},0" if late else ""
    (tmp_path / "my.csv").write_text("\n".join(["a,b", *rows]))
    table = read_table(tmp_path / "my.csv")
    assert len(table) == 2 * BLOCK - (not late)
    assert (table.columns["a"][-1], table.lines[-1]) == (str(2 * BLOCK - 1), 2 * BLOCK + 1 + late.count("\n"))
    assert [table.lines[row] for row in (0, BLOCK + 9)] == [2, BLOCK + 11]
    if late:
        assert table.columns["a"][BLOCK + 10] == late.strip('"')


def test_a_column_of_numbers_is_parsed_once_and_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell was parsed four times, by a call of its own."""
    parsed, parse = list[int](), tables._floats

    def counting(cells: list[str]) -> object:
        parsed.append(len(cells))
        return parse(cells)

    monkeypatch.setattr(tables, "_floats", counting)
    alone = list[str]()
    monkeypatch.setattr(tables, "parse_number", alone.append)  # returns None, as for a text
    monkeypatch.setattr(tables, "SAMPLE", 0)
    rows = 2 * BLOCK
    (tmp_path / "my.csv").write_text("a,b,kind\n" + "".join(f"{row},{row / 7},{row % 2}\n" for row in range(rows)))
    load(tmp_path / "my.csv", target="kind")
    assert sum(parsed) == 2 * rows
    assert alone == []


def test_texts_are_parsed_by_their_distinct_values(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, parse = list[str](), tables.parse_number

    def counting(cell: str) -> float | None:
        asked.append(cell)
        return parse(cell)

    monkeypatch.setattr(tables, "parse_number", counting)
    reading = Cells(["red", "3", "blue"] * BLOCK).numbers
    assert len(asked) <= tables.SAMPLE + 3
    assert (len(reading.odd), reading.values[1]) == (2 * BLOCK, 3)


def test_classes_that_are_the_same_number_keep_one_order(tmp_path: Path) -> None:
    """Their order followed Python's hashes, which differ from process to process."""
    for first, second in (("-0", "0"), ("0", "-0")):
        (tmp_path / "my.csv").write_text("a,kind\n" + "".join(f"{row},{first}\n{row},{second}\n" for row in range(9)))
        assert load(tmp_path / "my.csv", target="kind").class_names == ("-0", "0")
