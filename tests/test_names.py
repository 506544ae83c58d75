"""No function uses a name that its module lacks. Ruff and mypy do not check that, because of jaxtyping's axis names."""

import builtins
import dis
import importlib
import pkgutil
from collections.abc import Collection, Iterator
from types import CodeType

import pytest

import ricnet
import ricnet_paper

MODULES = [
    found.name
    for package in (ricnet, ricnet_paper)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if "__main__" not in found.name
]


def undefined(code: CodeType, known: Collection[str]) -> Iterator[str]:
    """`function: name` for each that is found neither in the module nor among Python's own."""
    steps = list(dis.get_instructions(code))
    own = {"__annotations__", *(step.argval for step in steps if step.opname == "STORE_NAME")}  # of a class's body
    for step in steps:
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and not (step.argval in known or step.argval in own):
            yield f"{code.co_qualname}: {step.argval}"
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from undefined(inner, known)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_known(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if error.name and error.name.startswith("ricnet"):
            raise
        pytest.skip(f"needs an extra: {error}")
    source = importlib.util.find_spec(name).loader.get_source(name)
    assert list(undefined(compile(source, name, "exec"), vars(module).keys() | vars(builtins).keys())) == []


def test_a_lost_import_is_found_wherever_it_is() -> None:
    source = "def f():\n def g(): return np.ones(n)\nclass C:\n m = 1; k = m\n def h(self): return [torch for _ in 'x']"
    found = undefined(compile(source, "source", "exec"), {"__name__"})
    assert list(found) == ["f.<locals>.g: np", "f.<locals>.g: n", "C.h.<locals>.<listcomp>: torch"]
