"""`ric report`: the table it prints, and the files it writes."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from ricnet.report.runs import RunGroup

from .conftest import Refused, RunRic


def test_seeds_are_summed_up_and_single_runs_printed_as_they_are(
    systems: list[RunGroup], tmp_path: Path, run_ric: RunRic
) -> None:
    sl = systems[1]
    out = tmp_path / "deep" / "report.html"
    first = run_ric("report", *(run.path for run in sl.runs), "--out", out, "--markdown")
    assert "| SL | digits | 3 |" in first.out
    assert "replaced" not in first.err
    assert "One system, 3 seeds" in out.read_text()
    figures = tmp_path / "figures"
    again = run_ric("report", sl.first.path, "--out", out.parent, "--markdown", "--figures", figures)
    assert f"{out} (replaced" in again.err
    assert f"| SL | digits | {100 * sl.first.test['accuracy']:.2f} |" in again.out
    assert {path.suffix for path in figures.iterdir()} == {".png", ".pdf"}


def test_a_missing_run_is_refused_as_by_other_commands(tmp_path: Path, refused: Refused) -> None:
    for run in (tmp_path / "nosuch", tmp_path / "nosuch.json"):
        for command in ("report", "evaluate"):
            refused(f"there is no run at {run}; give the folder that ric train wrote.", command, run)


def test_the_page_is_written_before_the_table_is_printed(
    systems: list[RunGroup], tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Mock()
    monkeypatch.setattr("ricnet.apps.commands.report.write_page", written)
    monkeypatch.setattr("ricnet.apps.commands.report.terminal_table", Mock(side_effect=SystemExit(1)))  # as rich does
    assert run_ric("report", systems[1].first.path, "--out", tmp_path / "report.html").code == 1
    written.assert_called_once()
