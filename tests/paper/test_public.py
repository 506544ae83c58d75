"""The paper uses only public names of the library: those of `import ricnet` and those that docs/api.md lists."""

import ast
import re
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import ricnet
import ricnet_paper
from refusals import refusal
from ricnet.apps.commands import report
from ricnet.apps.commands.options import Reproduce

ROOT = Path(__file__).parents[2]
Names = dict[str, set[str]]


def imported(source: str) -> Names:
    """Names of ricnet by module: `from module import name`, and `module.name` of an imported module."""
    found, modules = defaultdict(set), {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "ricnet":
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                if node.module != "ricnet" and hasattr(import_module(node.module), "__path__") and find_spec(path):
                    modules[alias.asname or alias.name] = path
                else:
                    found[node.module].add(alias.name)
        elif isinstance(node, ast.Import):
            modules |= {str(a.asname or a.name): a.name for a in node.names if a.name.split(".")[0] == "ricnet"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            found[modules[ast.unparse(node.value)]].add(node.attr)
    return found


def documented() -> Names:
    """The table of docs/api.md."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(ricnet[\w.]*)` \| ([^|]*) \|", page, re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


def test_the_paper_imports_what_the_docs_list_and_nothing_else() -> None:
    used: Names = defaultdict(set)
    for path in Path(ricnet_paper.__path__[0]).rglob("*.py"):
        for module, names in imported(path.read_text(encoding="utf-8")).items():
            used[module] |= names
    assert used.pop("ricnet") <= set(ricnet.__all__)
    assert dict(used) == documented()


@pytest.mark.parametrize(("module", "names"), documented().items(), ids=documented())
def test_documented_names_exist_and_none_is_private(module: str, names: set[str]) -> None:
    assert all(hasattr(import_module(module), name) and not name.startswith("_") for name in names)


def test_every_way_to_import_is_seen() -> None:
    source = (
        "import ricnet.io\nfrom ricnet.core import mdp as m\nfrom ricnet.errors import _x\nm._gain; ricnet.io.short"
    )
    expected = {"ricnet.errors": {"_x"}, "ricnet.core.mdp": {"_gain"}, "ricnet.io": {"short"}}
    assert imported(source) == expected


def test_the_library_says_so_where_the_paper_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(name="ricnet_paper")

    monkeypatch.setattr(report, "import_module", fail)
    with refusal("ric reproduce needs the package ricnet_paper"):
        report.reproduce(Reproduce(("fig1",)))
