import pytest
import torch

from ricnet.training.classifier import start_clock

CPU = torch.device("cpu")


def answers(monkeypatch: pytest.MonkeyPatch, milliseconds: float, *moments: float) -> list[bool]:
    """What a clock started at 0 says at each of these moments, in milliseconds."""
    times = iter([0.0, *(moment / 1000 for moment in moments)])
    with monkeypatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: next(times))
        time_left = start_clock(milliseconds, CPU)
        return [time_left() for _ in moments]


def test_a_step_begins_only_if_one_like_the_last_would_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(monkeypatch, 10.0, 4, 6, 7.9, 9) == [True, True, True, False]
    assert answers(monkeypatch, 10.0, 4, 8) == [True, False]


def test_before_any_step_has_been_timed_only_the_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(monkeypatch, 10.0, 9.9) == [True]
    assert answers(monkeypatch, 10.0, 10.1) == [False]
