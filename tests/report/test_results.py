from dataclasses import replace
from pathlib import Path

import numpy as np

from ricnet.report.results import compare_as_far_as_possible, has_seeds, results_html
from ricnet.report.runs import RunGroup


def test_systems_stand_with_their_intervals(systems: list[RunGroup]) -> None:
    html = results_html(systems)
    shares = [100 * run.test["accuracy"] for run in systems[0].runs]
    half = 4.30265 * np.std(shares, ddof=1) / np.sqrt(3)
    assert f"<td>{np.mean(shares):.2f} ± {half:.2f}</td>" in html
    assert html.count('<th scope="row" class="word">RIC</th>') == 1
    assert "3 systems, 3 seeds each: 9 runs" in html
    assert "Differences from RIC" in html
    assert "too few seeds (3)" in html


def test_one_run_of_each_is_shown_as_it_is(systems: list[RunGroup]) -> None:
    single = [RunGroup(group.label, group.runs[:1]) for group in systems]
    assert has_seeds(systems)
    assert not has_seeds(single)
    html = results_html(single)
    assert f"<td>{100 * systems[0].first.test['accuracy']:.2f} %</td>" in html
    assert "±" not in html
    assert "3 systems: 3 runs" in html


def test_runs_that_cannot_be_paired_are_summed_up(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    uneven = RunGroup("SL", sl.runs[:2])
    found, excuse = compare_as_far_as_possible([ric, uneven])
    assert len(found.systems) == 2
    assert not found.contrasts
    assert excuse.startswith("Differences are not tested. SL (seeds 0 and 1")
    old = RunGroup("SL", tuple(replace(run, path=tmp_path) for run in sl.runs))
    assert "predictions.npz" in results_html([ric, old])


def test_one_system_of_several_seeds(systems: list[RunGroup]) -> None:
    html = results_html(systems[:1])
    assert "One system, 3 seeds: 3 runs" in html
    assert "Differences" not in html


def test_a_derived_run_was_not_trained_in_any_time(systems: list[RunGroup]) -> None:
    run = replace(systems[1].first, derived_from="base")
    assert "trained in" not in results_html([RunGroup("SL", (run,))])
    assert "trained in" in results_html([RunGroup("SL", systems[1].runs[:1])])


def test_repeats_are_named(systems: list[RunGroup]) -> None:
    sl = systems[1]
    for kept in (sl.runs[:1], sl.runs[:2]):
        group = RunGroup("SL", kept, repeats=(replace(sl.first, path=Path("a/again")),))
        assert "those of another run: again." in results_html([group])
