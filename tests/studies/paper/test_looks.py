from ricnet.studies.paper.ablation import SYSTEMS as ABLATIONS
from ricnet.studies.paper.looks import NAMES, look_of, name_of
from ricnet.studies.paper.results import SYSTEMS
from ricnet.studies.systems import SYSTEMS as KNOWN


def test_names_are_of_systems_that_exist() -> None:
    assert set(NAMES) <= set(KNOWN)
    assert name_of("ric:gamma=0.9") == "ric:gamma=0.9"


def test_systems_of_one_figure_differ_in_colour_and_marker() -> None:
    for together in (SYSTEMS, ABLATIONS):
        looks = [look_of(name_of(system)) for system in together]
        assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(together)
