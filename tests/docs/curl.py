"""The flags of curl that the documentation uses, for a server in this process."""

import argparse
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

STATUS = re.compile(r"#.*?\b([1-5]\d\d)\b")

parser = argparse.ArgumentParser(exit_on_error=False)
parser.add_argument("url")
parser.add_argument("-s", "--silent", action="store_true")
parser.add_argument("-F", "--form", action="append", default=[])
parser.add_argument("--json")


def ask(client: httpx.Client, command: str) -> Any:
    """The JSON of the answer, whose status must be that of the line's comment, or 200."""
    options = parser.parse_args(shlex.split(command, comments=True)[1:])
    place = urlsplit(options.url).path
    if options.json is not None:
        answer = client.post(place, content=_content(options.json), headers={"content-type": "application/json"})
    elif options.form:
        answer = client.post(place, **_form(options.form))
    else:
        answer = client.get(place)
    said = STATUS.search(command)
    assert answer.status_code == (int(said[1]) if said else 200), f"{command}: {answer.text}"
    return answer.json()


def _content(text: str) -> bytes:
    return Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()


def _form(entries: list[str]) -> dict[str, Any]:
    """name=@file sends a file, name=value a field."""
    pairs = [entry.split("=", 1) for entry in entries]
    files = [(name, (Path(value[1:]).name, _content(value))) for name, value in pairs if value.startswith("@")]
    return {"files": files, "data": {name: value for name, value in pairs if not value.startswith("@")}}
