"""Random attacks, and what must hold under each: an answer or one sentence, in seconds, in bounded memory.

`make fuzz` runs for FUZZ_SECONDS (default: ten minutes); the default suite makes a few fixed attacks.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

FEW = 10
TARGETS = 22
"""How many tests share the time of `make fuzz`."""
EACH = float(os.environ.get("FUZZ_SECONDS", "60")) / TARGETS
HANG_SECONDS = 20
MOST_MEMORY = 1 << 20
"""KiB that the process may grow by."""

Strike = Callable[[st.DataObject], None]
briefly_and_long = pytest.mark.parametrize("seconds", [None, pytest.param(EACH, marks=pytest.mark.slow)])


def attack(strike: Strike, seconds: float | None, few: int = FEW) -> None:
    """Strike `few` times, the same every time; with `seconds`, until they are over."""
    before, end = _peak_memory(), time.monotonic() + (seconds or 0)

    @settings(
        max_examples=few if seconds is None else 100,
        derandomize=seconds is None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def strike_often(data: st.DataObject) -> None:
        with _no_hang():
            strike(data)

    strike_often()
    while time.monotonic() < end:
        strike_often()
    assert _peak_memory() - before < MOST_MEMORY


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def _no_hang() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AssertionError(f"it hangs: {HANG_SECONDS} seconds were not enough")

    before = signal.signal(signal.SIGPROF, ring), signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)  # of work, for others may share the machine
    signal.alarm(10 * HANG_SECONDS)  # of waiting for what never comes
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])


LETTERS = "ab1.\x1b\n é"  # all of Unicode takes seconds to set up
TEXTS = st.sampled_from(["", "\x00", "\x1b[31m", "<script>", "=1+1", "../..", "~nobody/x", "x" * 300, "\ud800", "é"])
WHOLE = st.sampled_from([0, 1, -1, 2, 255, 2**31, 2**63, 10**30, 10**400]) | st.integers()
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats() | TEXTS | st.text(LETTERS, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""What JSON can hold."""
_SPOTS = (b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"9" * 20, b"\n", b"(", b"-")


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with a few of its bytes changed, cut out, doubled or followed by others."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, max(len(content), 1) - 1)), draw(st.integers(1, 32))
        match draw(st.sampled_from(["write", "insert", "cut", "end", "double", "bit"])):
            case "write":
                spot = draw(st.sampled_from(_SPOTS) | st.binary(min_size=1, max_size=8))
                content[at : at + len(spot)] = spot
            case "insert":
                content[at:at] = draw(st.sampled_from(_SPOTS) | st.binary(max_size=16))
            case "cut":
                del content[at : at + length]
            case "end":
                del content[at:]
            case "double":
                content[at:at] = content[at : at + length]
            case "bit" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


@st.composite
def altered(draw: st.DrawFn, entry: Any) -> Any:
    """JSON with one entry somewhere replaced or left out."""
    if not isinstance(entry, dict | list) or not entry or draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    key = draw(st.sampled_from(list(entry) if isinstance(entry, dict) else list(range(len(entry)))))
    changed = entry.copy()
    if draw(st.integers(0, 5)) == 0:
        del changed[key]
    else:
        changed[key] = draw(altered(entry[key]))
    return changed
