import pytest
import torch

from common import Scale
from gain import measure


def test_plain_updates_are_measured_in_updates_of_ricnet() -> None:
    rows = measure(torch.device("cpu"), Scale("mlp", 0.125, side=4, batch=8, turns=1, calls=1))
    times = {row["update"]: row["ms"] for row in rows}
    assert set(times) == {"plain", "plain, batch on the device", "ricnet"}
    assert [row["× ricnet"] for row in rows] == pytest.approx([ms / times["ricnet"] for ms in times.values()])
