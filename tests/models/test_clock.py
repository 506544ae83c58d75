import pytest

from problems import CPU
from ricnet.models.clock import start_clock


@pytest.mark.parametrize(
    ("costs", "moments", "answers"),
    [
        ((), (4, 6, 6.9, 8.5), [True, True, True, False]),  # a step like the last and a millisecond must fit in
        ((), (3, 5, 7.1), [True, True, False]),
        ((), (3, 3.1, 9.5, 9.55, 9.7), [True, True, False, True, False]),  # of short steps, three more of them
        ((), (4, 8), [True, False]),
        ((), (9.9,), [True]),  # before any step has been timed only the limit counts
        ((), (10.1,), [False]),
        ((0.1, 0.3, 0.4, 1.0), (0, 1, 3, 3.9), [True, True, True, False]),  # the next is as much longer as it costs
        ((0.1, 0.3, 0.4, 1.0), (0, 1, 3, 3.7), [True, True, True, True]),
        ((0.1, 1.0), (0, 1), [True, False]),
        ((0.1, 1.0), (0, 0.8), [True, True]),
    ],
)
def test_a_clock_of_ten_milliseconds(
    monkeypatch: pytest.MonkeyPatch, costs: tuple[float, ...], moments: tuple[float, ...], answers: list[bool]
) -> None:
    times = iter([0.0, *(moment / 1000 for moment in moments)])
    with monkeypatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: next(times))
        time_left = start_clock(10.0, CPU, costs)
        assert [time_left() for _ in moments] == answers
