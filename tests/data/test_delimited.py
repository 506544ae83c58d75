import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricnet.data.tables import parse_table, read_table
from ricnet.errors import RicnetError


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
