"""Check that an error is a RicnetError of one sentence that names the cause."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ricnet.errors import RicnetError


@contextmanager
def refusal(*names: object, kind: type[Exception] = RicnetError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The sentence names each of these: a file, a setting, a value, what to do; how it says it is its own affair."""
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    assert "\n" not in text.strip(), text
    for name in map(str, names):
        assert name in text or name in getattr(caught.value, "settings", ()), f"{name!r} is not named in: {text}"
