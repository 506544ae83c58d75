"""`ric report` as typed: which table it prints, and what it writes."""

from pathlib import Path

from ricnet.report.runs import RunGroup

from .conftest import RunRic


def test_seeds_are_summed_up_and_single_runs_printed_as_they_are(
    systems: list[RunGroup], tmp_path: Path, run_ric: RunRic
) -> None:
    sl = systems[1]
    out = tmp_path / "deep" / "report.html"
    printed = run_ric("report", *(run.path for run in sl.runs), "--out", out, "--markdown").out
    assert "| SL | digits | 3 |" in printed
    assert "One system, 3 seeds" in out.read_text()
    figures = tmp_path / "figures"
    printed = run_ric("report", sl.first.path, "--out", out, "--markdown", "--figures", figures).out
    assert f"| SL | digits | {100 * sl.first.test['accuracy']:.2f} % |" in printed
    assert {path.suffix for path in figures.iterdir()} == {".png", ".pdf"}
