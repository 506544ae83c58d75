import os

import numpy as np

from soak import growth, resident_megabytes, verdict


def test_memory_that_fills_first_and_stays_then_is_flat() -> None:
    sizes = [300, 350, 380, 400, 401, 399, 402, 400, 401]
    assert verdict("server", sizes)[0]
    assert "300 to 402 MB in 9 rounds, 401 MB in the last" in verdict("server", sizes)[1]


def test_memory_that_grows_a_little_each_round_is_not() -> None:
    flat, sentence = verdict("commands", [400 + 3 * n for n in range(30)])
    assert not flat
    assert "NOT flat" in sentence
    assert growth([1.0] * 5) is None
    assert not verdict("commands", [1.0] * 5)[0]


def test_memory_is_counted_in_megabytes() -> None:
    before = resident_megabytes(os.getpid())
    block = np.ones(25_000_000)
    assert 150 < resident_megabytes(os.getpid()) - before < 250
    del block
