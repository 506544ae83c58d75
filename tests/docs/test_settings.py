"""docs/settings.md agrees with the code, which documents every setting."""

import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from ricnet.methods import ACT, RIC, Anytime, PonderNet, Supervised
from ricnet.models.config import Config, Optimization
from ricnet.nets.encoders import EncoderOptions

KINDS = (RIC, Supervised, Anytime, ACT, PonderNet, Optimization, EncoderOptions)
TURNS = re.compile(r"\b([Rr]aise|[Ll]ower|[Mm]ore|[Ff]ew|Larger|Near 0)\b")


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "write_settings.py"))


def test_the_page_is_what_the_code_says(tool: dict[str, Any]) -> None:
    written = tool["PAGE"].read_text(encoding="utf-8") == tool["page"]()
    assert written, "docs/settings.md is not what the code says; run scripts/write_settings.py"


def test_every_setting_is_on_it(tool: dict[str, Any]) -> None:
    page = tool["page"]()
    for field in (field for kind in KINDS for field in dataclasses.fields(kind)):
        assert f"| `--{field.name.replace('_', '-')}` |" in page
    assert {field.name for field in dataclasses.fields(Config)} - set(tool["RUN"]) == {
        *("data", "preset", "method", "network", "optimization")
    }


def test_a_dash_stands_for_a_setting_that_an_algorithm_has_not(tool: dict[str, Any]) -> None:
    lines = {line.split(" | ")[0]: line.split(" | ")[1:5] for line in tool["page"]().splitlines() if "| `--" in line}
    assert lines["| `--passes-per-snapshot`"] == ["5", "–", "–", "5"]
    assert lines["| `--head-gain`"] == ["0.01", "1", "1", "0.01"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_number_says_which_way_to_turn_it(kind: type, tool: dict[str, Any]) -> None:
    sentences, hints = tool["docstrings"](kind), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if {int, float} & {hint, *get_args(hint)}:
            assert TURNS.search(sentences[field.name]), field.name


def test_sentences_are_read_with_those_of_the_parents(tool: dict[str, Any]) -> None:
    assert tool["docstrings"](Child) == {"a": "The first | one.", "b": "The second."}
    assert tool["value"](3e-3) == "0.003"


@dataclasses.dataclass
class Parent:
    a: int = 1
    """The first |
    one."""


@dataclasses.dataclass
class Child(Parent):
    bare: int = 0
    b: int = 2
    """The second."""
