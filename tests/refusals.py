"""Check that an error is a RicnetError of one sentence that names the cause; tables of such cases."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from _pytest.mark import ParameterSet

from ricnet.errors import RicnetError


@contextmanager
def refusal(*names: object, kind: type[Exception] = RicnetError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The sentence contains each name (a file, a setting, a value, what to do); its wording is free. A tuple is several
    names."""
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    assert "\n" not in text.strip(), text
    for name in (str(each) for entry in names for each in (entry if isinstance(entry, tuple) else (entry,))):
        assert name in text or name in getattr(caught.value, "settings", ()), f"{name!r} is not named in: {text}"


def cases(table: Mapping[str, object]) -> list[ParameterSet]:
    """Rows of `parametrize`: what the user did, which is the test's id, and the values for it, a tuple if several."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), id=what) for what, row in table.items()]
