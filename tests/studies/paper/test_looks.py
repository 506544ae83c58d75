from pathlib import Path

from ricnet.studies.paper.ablation import SYSTEMS as ABLATIONS
from ricnet.studies.paper.looks import _LOOKS, look_of
from ricnet.studies.paper.results import SYSTEMS

from .conftest import record


def test_systems_of_one_figure_have_looks_of_their_own(tmp_path: Path) -> None:
    """Under the names that the report gives their runs: a name it changes would lose its colour."""
    for together in (SYSTEMS, ABLATIONS):
        names = [record(tmp_path, system).method for system in together]
        assert set(names) <= set(_LOOKS)
        looks = [look_of(name) for name in names]
        assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(together)


def test_a_stranger_has_a_look_too() -> None:
    assert look_of("ric:gamma=0.9") not in _LOOKS.values()
