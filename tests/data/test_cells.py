import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricnet.data import load
from ricnet.data import tables as cells_module
from ricnet.data.tables import BLOCK, MISSING, Cells, is_missing, parse_number, read_table

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
    parsed, parse = list[int](), cells_module._floats

    def counting(cells: list[str]) -> object:
        parsed.append(len(cells))
        return parse(cells)

    monkeypatch.setattr(cells_module, "_floats", counting)
    alone = list[str]()
    monkeypatch.setattr(cells_module, "parse_number", alone.append)  # returns None, as for a text
    monkeypatch.setattr(cells_module, "SAMPLE", 0)
    rows = 2 * BLOCK
    (tmp_path / "my.csv").write_text("a,b,kind\n" + "".join(f"{row},{row / 7},{row % 2}\n" for row in range(rows)))
    load(tmp_path / "my.csv", target="kind")
    assert sum(parsed) == 2 * rows
    assert alone == []


def test_texts_are_parsed_by_their_distinct_values(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, parse = list[str](), cells_module.parse_number

    def counting(cell: str) -> float | None:
        asked.append(cell)
        return parse(cell)

    monkeypatch.setattr(cells_module, "parse_number", counting)
    reading = Cells(["red", "3", "blue"] * BLOCK).numbers
    assert len(asked) <= cells_module.SAMPLE + 3
    assert (len(reading.odd), reading.values[1]) == (2 * BLOCK, 3)


def test_classes_that_are_the_same_number_keep_one_order(tmp_path: Path) -> None:
    """Their order followed Python's hashes, which differ from process to process."""
    for first, second in (("-0", "0"), ("0", "-0")):
        (tmp_path / "my.csv").write_text("a,kind\n" + "".join(f"{row},{first}\n{row},{second}\n" for row in range(9)))
        assert load(tmp_path / "my.csv", target="kind").class_names == ("-0", "0")
