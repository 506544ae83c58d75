"""`ric report` as typed: which table it prints, and what it writes."""

from pathlib import Path

import pytest

from ricnet.apps.commands.report import main
from ricnet.report.runs import RunGroup


def test_seeds_are_summed_up_in_the_terminal(
    systems: list[RunGroup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "report.html"
    main([*(str(run.path) for run in systems[1].runs), "--out", str(out), "--markdown"])
    printed = capsys.readouterr().out
    assert "| SL | digits | 3 |" in printed
    assert "95 % Student-t interval" in printed
    assert "One system, 3 seeds" in out.read_text()


def test_unpaired_seeds_are_told(systems: list[RunGroup], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sl, ric = systems[1], systems[0]
    folders = [str(run.path) for run in (*sl.runs[:2], ric.first)]
    main([*folders, "--out", str(tmp_path / "report.html")])
    assert "Differences are not tested." in capsys.readouterr().out


def test_single_runs_are_printed_as_they_are(
    systems: list[RunGroup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = systems[1].first
    main([str(run.path), "--out", str(tmp_path / "report.html"), "--markdown"])
    assert f"| SL | digits | {100 * run.test['accuracy']:.2f} % |" in capsys.readouterr().out
