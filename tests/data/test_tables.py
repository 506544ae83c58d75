import contextlib
import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricnet.data import load, tables
from ricnet.data.tables import TableError, frame_table, is_frame, parse_table, read_table, short_name, with_target
from ricnet.errors import RicnetError
from ricnet.io import split_target


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_are_found_whatever_stands_between_them(delimiter: str) -> None:
    table = parse_table("a,b\n1, x y \n\n,z\n".replace(",", delimiter), "it")
    assert table.columns == {"a": ["1", ""], "b": ["x y", "z"]}
    assert table.lines == [2, 4]


def test_quoted_cells_may_hold_anything() -> None:
    table = parse_table('a,b\n"1,5","two\nlines"\n3,"say ""it"""\n', "it")
    assert table.columns == {"a": ["1,5", "3"], "b": ["two\nlines", 'say "it"']}
    assert table.lines == [3, 4]


def test_with_semicolons_decimals_may_have_a_comma() -> None:
    assert parse_table("a;b\n-1,25;x,y\n", "it").columns == {"a": ["-1.25"], "b": ["x,y"]}


def test_a_column_without_a_name_is_passed_over() -> None:
    """As in pandas' own CSV, whose first column counts the rows."""
    assert parse_table(",a\n0,5\n1,6\n", "it").columns == {"a": ["5", "6"]}


def test_a_row_of_empty_cells_is_a_row() -> None:
    table = parse_table("a,b\n1,2\n,\n \n\n , \n3,4\n", "it")
    assert table.columns == {"a": ["1", "", "", "3"], "b": ["2", "", "", "4"]}
    assert table.lines == [2, 3, 6, 7]
    assert parse_table('a\n1\n""\n\n2\n', "it").columns == {"a": ["1", "", "2"]}


def test_a_single_empty_cell_below_several_names_is_a_blank_line() -> None:
    table = parse_table('a,b,c\n1,2,3\n""\n" "\n4,5,6\n', "it")
    assert (table.columns["a"], table.lines) == (["1", "4"], [2, 5])


def test_above_the_names_of_the_columns_empty_cells_are_passed_over() -> None:
    assert parse_table(",\n\na,b\n1,2\n", "it").columns == {"a": ["1"], "b": ["2"]}


def test_rows_are_taken_with_their_lines() -> None:
    table = parse_table("a\n5\n6\n7\n", "it").take([2, 0])
    assert (table.columns, table.lines, len(table)) == ({"a": ["7", "5"]}, [4, 2], 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no rows"),
        ("a,b\n", "it has no rows"),
        ("a,b\n1,2\n1,2,3\n", "it, line 3: 3 cells where the first line names 2 columns"),
        ("a,b\n1,2\n1\n", "it, line 3: 1 cell where the first line names 2 columns"),
        ("a\n1\n,\n", "it, line 3: 2 cells where the first line names 1 column\\."),
        ("a,b,a\n1,2,3\n", "two columns called 'a'"),
        ("1,2.5,-3\n1,2,3\n", "begins with numbers, 1 first"),
        ('a,b\n1,"2\n', "it, line 2: .*quotation mark"),
    ],
)
def test_what_is_no_table_is_said(text: str, message: str) -> None:
    with pytest.raises(RicnetError, match=message):
        parse_table(text, "it")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_bytes("\ufeffStraße,b\nKöln,2\n".encode())
    assert read_table(path).columns == {"Straße": ["Köln"], "b": ["2"]}
    path.write_bytes("Straße,b\nKöln,2\n".encode("latin-1"))
    with pytest.raises(RicnetError, match=r"my\.csv is no text in UTF-8"):
        read_table(path)
    with pytest.raises(RicnetError, match=r"absent\.csv does not exist"):
        read_table(tmp_path / "absent.csv")


@given(st.text(max_size=80))
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


def test_a_data_frame_has_the_cells_of_its_csv_file(tmp_path: Path) -> None:
    assert frame_table(FRAME).columns == CELLS
    FRAME.to_csv(tmp_path / "a.csv", index=False, date_format="%Y-%m-%d %H:%M:%S")
    assert read_table(tmp_path / "a.csv").columns == CELLS
    assert frame_table(FRAME).take([2]).place(0) == "the data frame, row 2"


def test_packed_and_json_tables_are_read_alike(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv.gz", index=False, date_format="%Y-%m-%d %H:%M:%S")
    assert read_table(tmp_path / "a.csv.gz").columns == CELLS
    texts = FRAME.assign(seen=FRAME["seen"].astype(str).where(FRAME["seen"].notna()))
    texts.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    read = read_table(tmp_path / "a.jsonl").columns
    assert read | {"seen": []} == CELLS | {"seen": []}
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n\n{"b": "x\xe2\x80\xa8y", "a": null}\n'))
    table = read_table(tmp_path / "b.jsonl.gz")
    assert (table.columns, table.lines) == ({"a": ["1", ""], "b": ["", "x\u2028y"]}, [1, 3])


def test_parquet_is_read_where_its_extra_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    FRAME.to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").columns == CELLS
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(RicnetError, match=r"b\.parquet is no Parquet file that can be read"):
        read_table(tmp_path / "b.parquet")


def test_a_missing_extra_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with pytest.raises(RicnetError, match=r"a\.parquet: reading Parquet needs pyarrow; .* 'ricnet\[parquet\]'"):
        read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv.gz", b"size,kind\n1,a\n", "no whole gzip of a text"),
        ("a.csv.gz", gzip.compress(b"size,kind\n1,a\n" * 100, mtime=0)[:-20], "no whole gzip of a text"),
        ("a.jsonl", b'{"a": 1}\n{"a": }\n', "line 2: no JSON"),
        ("a.jsonl", b"[1, 2]\n", "line 1: no JSON object but a list"),
        ("a.jsonl", b'{"a": {"b": 1}}\n', "line 1: 'a' holds a dict, which is no single value"),
        ("a.jsonl", b'{"a": NaN}\n', "line 1: no JSON"),
        ("a.jsonl", b"\n", "has no rows"),
        ("a.jsonl", b'{"a": "\\ud800"}', "line 1: a text in it is none in UTF-8"),
        ("a.jsonl", b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_said(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RicnetError, match=message):
        read_table(tmp_path / name)


def test_a_small_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST", 1_000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * 1_000))
    with pytest.raises(RicnetError, match="once it is unpacked"):
        read_table(tmp_path / "a.csv.gz")


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
    ("make", "message"),
    [
        (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns called 'a'"),
        (lambda: pd.DataFrame({"a": []}), "no rows"),
    ],
)
def test_frames_that_are_no_tables_are_refused(make: Callable[[], pd.DataFrame], message: str) -> None:
    with pytest.raises(RicnetError, match=message):
        frame_table(make())


def test_identifiers_are_named_and_left_out(tmp_path: Path) -> None:
    """PassengerId was learned in silence; a measurement that happens to differ in all rows is not one."""
    rows = 60
    frame = pd.DataFrame(
        {
            "PassengerId": range(1, rows + 1),
            "Name": [f"{'abcdefghij'[row % 10]}{row}" for row in range(rows)],
            "Weight": [50 + row * 0.37 for row in range(rows)],
            "Distance": [row * row * 10 for row in range(rows)],
            "kind": ["a", "b"] * (rows // 2),
        }
    )
    frame.to_csv(tmp_path / "my.csv", index=False)
    data = load(tmp_path / "my.csv", target="kind")
    assert data.columns is not None
    assert [column.name for column in data.columns.inputs] == ["Weight", "Distance"]
    assert "only name the row, different in each, were left out: 'PassengerId', 'Name'" in data.notes[0]


def test_parquet_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": [0] * 100_000}).to_parquet(tmp_path / "a.parquet")
    assert len(read_table(tmp_path / "a.parquet")) == 100_000
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    monkeypatch.setattr(tables, "LARGEST", 100_000)
    with pytest.raises(TableError, match="once it is unpacked"):
        read_table(tmp_path / "a.parquet")


def test_what_is_wrong_with_a_frame_is_a_value_error() -> None:
    for frame in (pd.DataFrame({"a": []}), pd.DataFrame([[1, 2]], columns=["a", "a "])):
        with pytest.raises(ValueError, match="the data frame"):
            frame_table(frame)
