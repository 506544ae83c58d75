import re
from dataclasses import replace
from pathlib import Path

from ricnet.report.runs import RunGroup, read_run
from ricnet.report.systems import command, systems_html

from .conftest import MakeRun


def test_the_command_is_safe_to_paste(make_run: MakeRun) -> None:
    run = replace(read_run(make_run()), path=Path("my runs; rm x/a"))
    assert command(run) == "ric train --config 'my runs; rm x/a/config.json' --out a-again"


def test_seeds_are_rows_and_settings_are_said_once(systems: list[RunGroup]) -> None:
    html = systems_html(systems)
    assert html.count("<details") == 3
    assert html.count("<dt>batch_size</dt>") == 3
    assert "<dt>seed</dt>" not in html
    assert html.count("Add --seed for the others, 1 and 2.") == 3
    assert "digits, 3 seeds of about 61 s on a CPU" in html
    for run in systems[0].runs:
        assert f"<td>{100 * run.test['accuracy']:.2f} %</td>" in html


def test_a_derived_system_says_whose_weights_it_has_and_has_no_command(systems: list[RunGroup]) -> None:
    sl = systems[1]
    borrowed = replace(sl, runs=tuple(replace(run, derived_from=f"sl-{k}") for k, run in enumerate(sl.runs)))
    html = systems_html([borrowed])
    assert "The weights of sl-0, sl-1 and sl-2, read out differently." in html
    assert "digits, 3 seeds, not trained" in html
    assert "ric train" not in html
    assert "61" not in re.sub(r"<dd>.*?</dd>", "", html)


def test_one_run_stands_open(systems: list[RunGroup]) -> None:
    html = systems_html([RunGroup("RIC", systems[0].runs[:1])])
    assert '<details class="system" open>' in html
    assert "<dt>seed</dt><dd>0</dd>" in html
    assert "the others" not in html
