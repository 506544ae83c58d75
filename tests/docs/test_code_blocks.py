"""Every code block of README.md and docs/ is run, in order, in a folder of its page's own, with tiny settings.

Python blocks run as they stand. Of shell blocks each `ric` line runs; other programs (pip, make) do not. Epochs are cut
to one, and networks to a tenth of their width. A block that cannot be run here says why:

    <!-- not run: needs the Hub -->

Its Python must still compile, and its `ric` lines must still be ones that the command understands, unless words in
capitals stand for the reader's own.
"""

import importlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ricnet.apps.cli import main
from ricnet.training import presets

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}\S.*\n)+)")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\s*\Z")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
EPOCHS = re.compile(r"(epochs[ =])\d+")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    reason: str | None
    """Why it is not run, if it is not."""

    @property
    def commands(self) -> list[str]:
        """The `ric` lines of a shell block, with those that a backslash continues made one."""
        return [line.strip() for line in self.text.replace("\\\n", " ").splitlines() if line.strip().startswith("ric ")]


def blocks_of(page: str) -> list[Block]:
    """Fenced blocks in their language, indented ones as shell."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [(match.start(), match[1], match[2]) for match in FENCED.finditer(text)]
    prose = FENCED.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    found += [(match.start(), "sh", match[1]) for match in INDENTED.finditer(prose)]
    return [
        Block(
            language,
            code,
            text[:start].count("\n") + 1,
            marker[1] if (marker := NOT_RUN.search(text[:start])) else None,
        )
        for start, language, code in sorted(found)
    ]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no block sets: a narrow network, four steps, one epoch."""
    fast: Callable[..., Any] = presets._fast

    def smaller(method: str, facts: presets.Facts) -> Any:
        config = fast(method, facts)
        steps = {"horizon": 4} if hasattr(config.method, "horizon") else {}
        return replace(
            config,
            method=replace(config.method, **steps),
            network=replace(config.network, width=0.1),
            optimization=replace(config.optimization, epochs=1),
        )

    monkeypatch.setattr(presets, "_fast", smaller)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("tiny", "workspace")
def test_blocks_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        code = EPOCHS.sub(r"\g<1>1", block.text)
        if block.language == "python":
            compiled = compile(code, f"{page}, line {block.line}", "exec")
            if block.reason is None:
                exec(compiled, names)
        for command in replace(block, text=code).commands if block.language != "python" else []:
            run(command) if block.reason is None else understand(command, monkeypatch)


def run(command: str) -> None:
    main(shlex.split(command, comments=True)[1:])


class Understood(Exception):
    """The flags were read; what they ask for is not done."""


def understand(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = shlex.split(command, comments=True)[1:]
    if any(PLACEHOLDER.search(argument) for argument in arguments):
        return
    module = importlib.import_module(f"ricnet.apps.commands.{arguments[0]}")
    parse = module.parse

    def stop(*args: Any, **kwargs: Any) -> None:
        parse(*args, **kwargs)
        raise Understood

    with monkeypatch.context() as patch:
        patch.setattr(module, "parse", stop)
        with pytest.raises(Understood):
            main(arguments)


def test_blocks_are_found_with_their_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = "# Title\n\n    ric data list  # names\n    pip install x\n\n"
    slow = "<!-- not run: slow -->\n```sh\nric sweep \\\n  digits\n```\n"
    (tmp_path / "page.md").write_text(f"{shell}{slow}\n- item\n\n  more\n\n```python\nx = 1\n```\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    first, second, third = blocks_of("page.md")
    assert (first.line, first.commands, first.reason) == (3, ["ric data list  # names"], None)
    assert (second.commands, second.reason) == (["ric sweep    digits"], "slow")
    assert (third.language, third.text, third.reason) == ("python", "x = 1\n", None)


def test_a_command_that_is_not_run_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    understand("ric train digits --epochs 3", monkeypatch)
    understand("ric train --config results/NAME/FILE.json", monkeypatch)
    with pytest.raises(SystemExit):
        understand("ric train digits --epoks 3", monkeypatch)
