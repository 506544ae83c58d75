"""Every code block of README.md and docs/ is run, in order, in a folder of its page's own, with tiny settings.

Python blocks run as they stand. Of shell blocks each `ric` line runs; after `ric serve` so does each `curl` line, which
must be answered with 200 or with the status that its comment says. Other programs (pip, make) do not run. Epochs are
cut to one, networks to a tenth of their width, and no page is drawn. A block of JSON below a `curl` line
must have the form of its answer. A block that cannot be run here says why:

    <!-- not run: needs the Hub -->

Its Python must still compile, and its `ric` lines must still be ones that the command understands, unless words in
capitals stand for the reader's own.
"""

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from made_runs import draw_no_pages
from ricnet.apps.cli import build, main
from ricnet.apps.server import application, connections
from ricnet.methods import METHODS
from ricnet.nets import encoders
from ricnet.training import recipes

from .curl import ask

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}\S.*\n)+)")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\s*\Z")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
EPOCHS = re.compile(r"(epochs[ =])\d+")
LANGUAGES = {"python", "sh", "json", "csv", "text", "toml"}
"""Languages of code blocks; only the first two are run. Other names would be skipped silently."""
Servers = list[httpx.Client]
"""Those that the page has started, as clients of them."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    reason: str | None
    """Why it is not run, if it is not."""

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block that are run, with those that a backslash continues made one."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "sh" else []
        return [line.strip() for line in lines if line.strip().startswith(("ric ", "curl "))]


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
    """What no block sets: a narrow network, four steps, one epoch. And no page."""
    fast: Callable[..., Any] = recipes._fast

    def smaller(*asked: Any, **options: Any) -> Any:
        config = fast(*asked, **options)
        steps = {"horizon": 4} if hasattr(config.method, "horizon") else {}
        return replace(
            config,
            method=replace(config.method, **steps),
            network=replace(config.network, width=0.1),
            optimization=replace(config.optimization, epochs=1),
        )

    monkeypatch.setattr(recipes, "_fast", smaller)
    draw_no_pages(monkeypatch, "train", "compare", "report")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """`ric serve` up to the point where it would wait for clients, on any port that is free."""
    from starlette.testclient import TestClient

    listen = connections.listen
    found: Servers = []
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(connections, "listen", lambda host, port: listen(host, 0))
        monkeypatch.setattr(
            application,
            "run",
            lambda app, *_: found.append(stack.enter_context(TestClient(app, "http://127.0.0.1:8000"))),
        )
        yield found


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page registers is forgotten after it."""
    with patch.dict(METHODS), patch.dict(encoders._BUILDERS):
        yield


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("tiny", "workspace", "registries")
def test_blocks_run(page: str, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    answer = None
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{page}, line {block.line}"
        code = EPOCHS.sub(r"\g<1>1", block.text)
        if block.language == "python":
            compiled = compile(code, f"{page}, line {block.line}", "exec")
            if block.reason is None:
                exec(compiled, names)
        if block.language == "json" and answer is not None:
            assert form(json.loads(block.text)) == form(answer), f"{page}, line {block.line}"
        for command in replace(block, text=code).commands:
            answer = run(command, servers) if block.reason is None else understand(command, monkeypatch)


def run(command: str, servers: Servers) -> Any:
    """What a server answered, if that was asked."""
    words = shlex.split(command, comments=True)
    if words[0] == "curl":
        return ask(servers[-1], command)
    with contextlib.ExitStack() as stack:
        if ">" in words:
            *words, _, file = words
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(file).open("w", encoding="utf-8"))))
        main(words[1:])
    return None


def form(value: Any) -> Any:
    """JSON without what it says: the names, and how they are nested."""
    if isinstance(value, dict):
        return {key: form(entry) for key, entry in value.items()}
    return [form(entry) for entry in value[:1]] if isinstance(value, list) else None


class Understood(Exception):
    """The flags were read; what they ask for is not done."""


def understand(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = shlex.split(command, comments=True)
    if program == "curl" or any(PLACEHOLDER.search(argument) for argument in arguments):
        return

    def stop(*args: Any) -> None:
        build(*args)
        raise Understood

    with monkeypatch.context() as patch:
        for module in ("ricnet.apps.cli", "ricnet.apps.commands.train"):
            patch.setattr(f"{module}.build", stop)
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


def test_curl_lines_are_held_to_their_status(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(413 if request.method == "POST" else 200, json={"said": "so"})

    (tmp_path / "a.png").write_bytes(b"pixels")
    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://here") as client:
        assert ask(client, "curl -s http://127.0.0.1:8000/v1/model") == {"said": "so"}
        ask(client, f"curl -F images=@{tmp_path}/a.png -F max_steps=3 http://x/v1/predict  # 413: too much")
        with pytest.raises(AssertionError, match="so"):
            ask(client, "curl --json '{}' http://x/v1/predict")
    assert [request.url.path for request in asked] == ["/v1/model", "/v1/predict", "/v1/predict"]
    assert all(part in asked[1].content for part in (b'name="images"; filename="a.png"', b"pixels", b'"max_steps"'))


def test_the_form_of_json_is_its_names() -> None:
    shown, given = {"a": [{"b": 1, "c": {}}]}, {"a": [{"b": 0.5, "c": {}}, {}]}
    assert form(shown) == form(given)
    assert form(shown) != form({"a": [{"b": 1}]})
