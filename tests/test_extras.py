import sys

import pytest

from ricnet.errors import RicnetError
from ricnet.extras import require_extra


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("ric sing", "song", "json", "csv")
    monkeypatch.setitem(sys.modules, "csv", None)
    with pytest.raises(RicnetError) as refusal:
        require_extra("ric sing", "song", "json", "csv", "no_such_library")
    assert str(refusal.value) == "ric sing needs csv, no_such_library; install with: pip install 'ricnet[song]'."
