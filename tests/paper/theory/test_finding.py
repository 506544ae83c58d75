import csv
import io
import math
from functools import cache

import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from ricnet.report.figures import house_style
from ricnet_paper import theory
from ricnet_paper.theory.finding import Finding, compare, compare_pairs, use_log_scale

SMALL = {
    "lemma1": {"draws": 200},
    "lemma2": {"draws": 200},
    "decomposition": {"updates": 1, "rollouts": 50},
    "proposition1": {"updates": 1, "rollouts": 50},
    "proposition2": {"updates": 100},
}


def test_every_experiment_but_the_premise_is_here() -> None:
    assert [*SMALL, "premise"] == list(theory.CLAIMS)


@cache
def found(name: str) -> Finding:
    return theory.CLAIMS[name](**SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_findings_are_ready_for_files(name: str) -> None:
    finding = found(name)
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


@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize("name", SMALL)
def test_findings_repeat_and_leave_the_random_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    assert theory.CLAIMS[name](**SMALL[name]).rows == found(name).rows
    assert torch.equal(torch.get_rng_state(), before)
    assert name == "proposition2" or theory.CLAIMS[name](**SMALL[name], seed=1).rows != found(name).rows


def test_deviation_is_in_standard_errors_of_the_mean() -> None:
    samples = torch.tensor([[1.0], [2.0], [3.0], [6.0]], dtype=torch.float64)
    found = compare(samples, torch.tensor([2.0], dtype=torch.float64))
    error = math.sqrt((4 + 1 + 0 + 9) / 3) / 2
    assert found.sampled.item() == 3
    assert found.standard_error.item() == pytest.approx(error)
    assert found.largest == pytest.approx(1 / error)
    assert found.holds
    assert not compare(samples, torch.tensor([-2.0], dtype=torch.float64)).holds


def test_pairs_count_only_what_their_expectations_leave() -> None:
    expected = torch.tensor([[0.0], [100.0]], dtype=torch.float64)
    found = compare_pairs(expected + torch.tensor([[0.5], [1.5]], dtype=torch.float64), expected)
    assert found.deviation.item() == pytest.approx(1 / (math.sqrt(0.5) / math.sqrt(2)))
    assert not compare(torch.tensor([[1.0], [math.nan]]), torch.tensor([1.0])).holds


def test_powers_of_ten_are_plain_numbers() -> None:
    with house_style():
        figure = Figure()
        ax = figure.subplots()
        ax.plot([1, 1000], [1e-3, 1e-1])
        use_log_scale(ax, "x")
        use_log_scale(ax, "y")
        figure.draw_without_rendering()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    labels = {text.get_text() for axis in (ax.xaxis, ax.yaxis) for text in axis.get_ticklabels()}
    assert {"1", "10", "100", "1000", "0.001", "0.01", "0.1"} <= labels
