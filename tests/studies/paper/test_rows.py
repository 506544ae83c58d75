from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricnet.errors import RicnetError
from ricnet.studies.paper.rows import distinct, floats, number, pick, read_csv, write_csv

names = st.text(min_size=1, max_size=8)
words = names.map(lambda text: f"x{text}")  # text that no number begins with
values = st.none() | st.integers() | st.floats(allow_nan=False) | words
ROWS = [{"system": "SL", "n": 3, "mean": 0.1}, {"system": "RIC", "missing": "svhn is not here", "mean": None}]


@given(st.lists(st.dictionaries(names, values, min_size=1, max_size=4), min_size=1, max_size=5))
def test_rows_survive_csv(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    write_csv(rows, path)
    columns = {name for row in rows for name in row}
    again = read_csv(path)
    assert again == [{name: row.get(name) for name in columns} for row in rows]
    assert [[type(v) for _, v in sorted(row.items())] for row in again] == [
        [type(row.get(name)) for name in sorted(columns)] for row in rows
    ]


@pytest.mark.parametrize("text", ["", "12", "1e3", "nan", "inf", " 7 ", "1_000"])
def test_text_that_would_not_come_back_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="read back"):
        write_csv([{"label": text}], tmp_path / "rows.csv")


@pytest.mark.parametrize("content", ["", "a,b\n1\n", None])
def test_a_damaged_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RicnetError, match=r"rows\.csv cannot be read"):
        read_csv(path)


def test_asking_rows() -> None:
    assert pick(ROWS, system="SL") == ROWS[:1]
    assert pick(ROWS, system="SL", n=4) == []
    assert pick(ROWS, missing=None) == ROWS[:1]
    assert distinct([*ROWS, ROWS[0]], "system") == ["SL", "RIC"]
    assert distinct(ROWS, "missing") == ["svhn is not here"]
    np.testing.assert_array_equal(floats(ROWS, "mean"), [0.1, np.nan])
    assert number(ROWS[::-1], "mean") == 0.1
    assert number(ROWS, "half_width") is None
