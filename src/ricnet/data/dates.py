"""Dates in the cells of a table, as days since 1970."""

from collections.abc import Sequence
from datetime import UTC, datetime

FORMATS = {
    "iso": "1999-12-31 or 1999-12-31T23:59",
    "%Y/%m/%d": "1999/12/31",
    "%d.%m.%Y": "31.12.1999",
    "%m/%d/%Y": "12/31/1999",
    "%d/%m/%Y": "31/12/1999",
}
"""How dates may be written, with an example of each. All cells of a column must agree; month first wins a draw."""
_DAY = 86_400
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def parse_date(cell: str, form: str) -> float | None:
    """Days since 1970, UTC where no time zone is given; None where it is no such date."""
    if not 8 <= len(cell) <= 40 or not cell[0].isdigit() or cell.isdigit():
        return None
    try:
        found = datetime.fromisoformat(cell) if form == "iso" else datetime.strptime(cell, form)
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return aware.timestamp() / _DAY


def show_date(days: float, form: str) -> str:
    """The day as it would be written in a cell, without the time of day; the nearest one that a calendar has."""
    seconds = min(max(days * _DAY, _EARLIEST), _LATEST)
    day = datetime.fromtimestamp(seconds, UTC)
    return day.date().isoformat() if form == "iso" else day.strftime(form)


def common_formats(cells: Sequence[str]) -> list[str]:
    """In which all these cells can be read; none if there are no cells."""
    fitting = list(FORMATS) if cells else []
    for cell in cells:
        fitting = [form for form in fitting if parse_date(cell, form) is not None]
        if not fitting:
            break
    return fitting
