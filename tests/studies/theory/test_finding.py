import csv
import io

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from ricnet.studies import theory
from ricnet.studies.theory.finding import Finding

SMALL = {
    "lemma1": {"draws": 200},
    "lemma2": {"draws": 200},
    "decomposition": {"updates": 1, "rollouts": 50},
    "proposition1": {"updates": 1, "rollouts": 50},
    "proposition2": {"updates": 100},
}


def test_every_experiment_but_the_premise_is_here() -> None:
    assert [*SMALL, "premise"] == list(theory.EXPERIMENTS)


@pytest.mark.parametrize("name", SMALL)
def test_findings_are_ready_for_files(name: str) -> None:
    finding = theory.EXPERIMENTS[name](**SMALL[name])
    assert isinstance(finding, Finding)
    assert finding.name == name
    assert isinstance(finding.passed, bool)
    assert finding.claim.endswith(".")
    assert finding.statement.endswith(".")
    assert all(isinstance(value, str | int | float) for row in finding.rows for value in row.values())
    csv.DictWriter(io.StringIO(), list({key: None for row in finding.rows for key in row})).writerows(finding.rows)
    assert isinstance(finding.figure, Figure)
    assert 3.4 <= finding.figure.get_figwidth() <= 7
    finding.figure.savefig(io.BytesIO(), format="pdf")
    assert pyplot.get_fignums() == []
