"""How a test asks for a refusal: by what the sentence names, not by its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ricnet.errors import RicnetError


@contextmanager
def refused(*named: str, kind: type[RicnetError] = RicnetError) -> Iterator[None]:
    """What is done within raises RicnetError, and its sentence names these: settings, files, places, values."""
    with pytest.raises(kind) as caught:
        yield
    said = str(caught.value)
    missing = [name for name in named if name not in caught.value.settings and name not in said]
    assert not missing, f"{missing} not named in: {said}"
