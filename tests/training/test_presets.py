from typing import Any

import pytest

from ricnet.errors import RicnetError
from ricnet.training.presets import TYPICAL, preset, small_table


@pytest.mark.parametrize(
    ("rows", "batch_size", "updates", "changes"),
    [
        (142, None, 25 * 4, {"batch_size": 32, "width": 0.5, "weight_decay": 3.0}),
        (1437, None, 20 * 44, {"batch_size": 32, "width": 1.0, "weight_decay": 1.0}),
        (1437, 400, 34 * 3, {"batch_size": 400}),
        (5, None, 100, {"batch_size": 5}),
    ],
)
def test_small_tables_get_small_batches_and_at_least_a_hundred_updates(
    rows: int, batch_size: int | None, updates: int, changes: dict[str, Any]
) -> None:
    settings = small_table(rows, batch_size)
    assert settings["epochs"] * (rows // settings["batch_size"]) == updates
    assert settings.items() >= changes.items()
    assert small_table(5_000, batch_size) == {}


def test_an_unknown_name_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(RicnetError, match="--method Supervized is unknown; did you mean supervised"):
        preset("fast", "Supervized", TYPICAL)
    with pytest.raises(RicnetError, match="--preset papr is unknown; did you mean paper"):
        preset("papr", "ric", TYPICAL)
