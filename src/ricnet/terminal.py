"""Sentences in a terminal, wrapped at words; without a terminal each is one line."""

import os
import textwrap
from collections.abc import Iterable

from rich.console import Console

from ricnet.errors import in_flags
from ricnet.io import printable


class Narrator(Console):
    """A console that does not end the program if the reader closes the pipe, as in `ric train 2>&1 | head`."""

    def on_broken_pipe(self) -> None:
        """Discard all further output, also what Python flushes at exit."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def say(lines: Iterable[str], console: Console | None = None, wrap: bool = True) -> None:
    """Print lines; `wrap=False` is for paths and commands, which are not wrapped."""
    console = console or Narrator(stderr=True)
    for line in lines:
        for part in fitted(line, console) if wrap else [printable(in_flags(line))]:
            console.print(part, highlight=False, markup=False, soft_wrap=True)


def fitted(line: str, console: Console) -> list[str]:
    """The parts of a line, wrapped if the width is known: in a terminal, or from $COLUMNS. Logs are not wrapped."""
    text = printable(in_flags(line))
    return wrapped(text, console.width) if console.is_terminal or "COLUMNS" in os.environ else [text]


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; longer words, such as paths, and indented commands are kept whole."""
    if text.startswith("    "):
        return [text]
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]
