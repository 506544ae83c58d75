import io

import pytest
from rich.console import Console

from ricnet.errors import setting
from ricnet.terminal import Narrator, fitted, say

SENTENCE = f"photos/a b.png cannot be read; leave {setting('resolution', 64)} out, or give another file."
SHOWN = "photos/a b.png cannot be read; leave --resolution 64 out, or give another file."


def test_sentences_are_wrapped_at_words_where_the_width_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    piped, terminal = io.StringIO(), io.StringIO()
    say([SENTENCE], Console(file=piped, width=30))
    say([SENTENCE], Console(file=terminal, width=30, force_terminal=True))
    assert piped.getvalue() == f"{SHOWN}\n"
    lines = terminal.getvalue().splitlines()
    assert " ".join(lines) == SHOWN
    assert max(map(len, lines)) <= 30
    monkeypatch.setenv("COLUMNS", "30")
    assert fitted(SENTENCE, Narrator(file=io.StringIO())) == lines
    path = "/a/" + "long/" * 20
    assert fitted(f"report   {path}", Narrator(file=io.StringIO())) == ["report", path]
    command = f"    ric train {'photos' * 10}"
    assert fitted(command, Narrator(file=io.StringIO())) == [command]
