"""Data frames of pandas as tables of cells, and the files that pandas reads into one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ricnet.data.delimited import Table
from ricnet.errors import RicnetError
from ricnet.extras import require_extra

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FRAME = "the data frame"
"""What messages call it."""


def is_frame(given: Any) -> "TypeGuard[DataFrame]":
    """Where pandas has not been imported, nobody has made one; `ric` shall not wait for the import."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def is_plain(frame: "DataFrame") -> bool:
    """Whether it holds nothing but numbers, without gaps."""
    return all(dtype.kind in "biuf" for dtype in frame.dtypes) and not frame.isna().any(axis=None)


def frame_table(frame: "DataFrame", name: str = FRAME) -> Table:
    """Cells as a CSV file would have them, so that a model reads both alike; rows are counted from 0."""
    names = [str(column).strip() for column in frame.columns]
    twice = [column for place, column in enumerate(names) if column in names[:place]]
    if twice:
        raise RicnetError(f"{name} has two columns called {twice[0]!r}; give each its own name.")
    if frame.empty:
        raise RicnetError(f"{name} has no rows or no columns; each row is an example.")
    columns = {column: _cells(frame.iloc[:, place]) for place, column in enumerate(names) if column}
    return Table(name, columns, list(range(len(frame))), "row")


def _cells(column: "Series[Any]") -> list[str]:
    missing = column.isna()
    return ["" if gap else str(value).strip() for value, gap in zip(column, missing, strict=True)]


def parquet_table(path: Path) -> Table:
    require_extra(f"{path}: reading Parquet", "parquet", "pyarrow")
    import pandas

    try:
        frame = pandas.read_parquet(path, engine="pyarrow")
    except Exception as error:  # arrow, thrift and the codecs each complain in their own way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RicnetError(f"{path} is no Parquet file that can be read ({reason}); save the table again.") from error
    return frame_table(frame, str(path))
