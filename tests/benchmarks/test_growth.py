import pytest
import torch

from common import Scale
from growth import along

CPU = torch.device("cpu")
TINY = Scale("mlp", 0.125, side=4, batch=8, turns=1, calls=1)


def test_every_value_is_compared_with_the_usual_one_and_with_supervised_learning() -> None:
    rows = along("rollouts", (1, 2), CPU, TINY)
    assert [(row["what"], row["value"]) for row in rows] == [("rollouts", 1), ("rollouts", 2)]
    assert rows[1]["× the usual"] == 1
    assert rows[0]["SL, ms"] == rows[1]["SL, ms"]  # it has no roll-outs, and is measured once
    assert rows[0]["× SL"] == pytest.approx(rows[0]["ms"] / rows[0]["SL, ms"])
