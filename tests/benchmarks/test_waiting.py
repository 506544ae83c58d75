import os
import time

from waiting import spinning, table


def test_every_way_stands_beside_the_first() -> None:
    rows = table({"spin": [100.0, 90.0, 500.0], "wait": [240.0, 250.0, 260.0]})
    assert rows == [
        {"way": "spin", "images/s": 100, "ratio": 1.0},
        {"way": "wait", "images/s": 250, "ratio": 2.5},
    ]


def test_the_other_work_ends_with_the_measurement() -> None:
    with spinning(1):
        time.sleep(0.2)
    waited = os.times().children_user
    time.sleep(0.2)
    assert os.times().children_user == waited
