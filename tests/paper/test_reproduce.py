"""All items of `ric reproduce`, from shared runs on tiny data."""

import csv
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from ricnet.studies.experiments import Benchmark
from ricnet.studies.runner import Runner, read_given
from ricnet_paper import ITEMS
from ricnet_paper import reproduce as reproducing
from ricnet_paper.reproduce import CATALOGUE, FAIL, reproduce
from ricnet_paper.scales import SCALES, Scale
from ricnet_paper.theory.finding import Finding

QUIET = Console(quiet=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    labels = np.arange(160) % 3
    x = (2 * np.eye(4)[labels] + np.random.default_rng(0).normal(size=(160, 4))).astype(np.float32)
    np.savez(tmp_path / "blobs.npz", x=x, y=labels)
    return tmp_path / "blobs.npz"


@pytest.fixture
def scale(data: Path) -> Scale:
    noisy = [Benchmark(f"blobs {share:.0%}", str(data), (("label_noise", share),)) for share in (0.1, 0.4)]
    trio = (Benchmark("blobs", str(data)), *noisy)
    settings = (("epochs", 2), ("measure_all", True), ("width", 0.1))
    return Scale("smoke", "fast", (0, 1), trio, trio, settings)


def finding(passed: bool) -> Finding:
    return Finding("lemma1", "A claim.", passed, "A statement.", [{"x": 1, "y": 2.5}], Figure())


@pytest.mark.slow
def test_all_tables_and_figures_are_made_and_none_is_empty(
    scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducing, "CLAIMS", {"lemma1": lambda: finding(True), "premise": premise})
    out = tmp_path / "out"
    made, problems = reproduce(["all"], scale, out, Runner(tmp_path / "runs", jobs=1), QUIET)
    assert problems == []
    assert [item.name for item in made] == [*ITEMS, "theory/lemma1", "theory/premise", "theory"]
    for item in made:
        endings = {path.suffix for path in item.files}
        assert ".csv" in endings or item.name == "theory"
        assert endings & {".md", ".png"}, item
        assert all(path.stat().st_size > 0 for path in item.files)
    for name in ITEMS:
        with (out / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert rows, name
        assert not any(row.get("missing") for row in rows), name
    assert "lemma1: pass" in (out / "theory" / "theory.md").read_text()
    assert {item.name: item.verdict for item in made}["theory/premise"] == "no"
    runs = len(list((tmp_path / "runs").glob("*/evaluation.json")))
    again, _ = reproduce(["fig2", "table1"], scale, out, Runner(tmp_path / "runs", jobs=1), QUIET)
    assert [item.name for item in again] == ["fig2", "table1"]
    assert len(list((tmp_path / "runs").glob("*/evaluation.json"))) == runs


def premise(ric, sl, data_dir, device) -> Finding:
    assert len(ric) == len(sl) == 2
    assert {run.method for run in ric} == {"RIC, on-policy"}
    return finding(False)


def test_data_that_is_missing_leaves_a_marked_panel_or_a_sentence(scale: Scale, tmp_path: Path) -> None:
    absent = Benchmark("SVHN", "svhn")
    partly = Scale(**{**vars(scale), "benchmarks": (scale.benchmarks[0], absent, absent), "seeds": (0,)})
    runner = Runner(tmp_path / "runs", tmp_path / "nothing", jobs=1)
    made, problems = reproduce(["fig6", "fig7"], partly, tmp_path / "out", runner, QUIET)
    assert [item.name for item in made] == ["fig6"]
    assert any("svhn is not here yet" in problem for problem in problems)
    assert any(problem.startswith("fig7: nothing to show") for problem in problems)
    assert not (tmp_path / "out" / "fig7.png").exists()


def test_given_runs_are_shown_as_they_are_without_their_data(scale: Scale, data: Path, tmp_path: Path) -> None:
    runner, out = Runner(tmp_path / "runs", jobs=1), tmp_path / "out"
    reproduce(["fig4"], scale, out, runner, QUIET)
    made_before = sorted(runner.root.iterdir())
    data.unlink()
    given = read_given([runner.root])
    made, problems = reproduce(["fig4", "fig6", "fig8"], SCALES["paper"], out, runner, QUIET, given)
    assert ([item.name for item in made], len(problems)) == ([], 3)  # blobs is no benchmark of the paper
    made, problems = reproduce(["fig4", "fig6", "fig8"], scale, out, runner, QUIET, given)
    assert [item.name for item in made] == ["fig4", "fig6"]
    assert problems == ["fig8: nothing to show: not among the given runs."]
    rows = list(csv.DictReader((out / "fig6.csv").read_text().splitlines()))
    assert {row["benchmark"] for row in rows if row["missing"]} == {"blobs 10%", "blobs 40%"}
    assert {row["seeds"] for row in rows if not row["missing"]} == {"2"}
    assert sorted(runner.root.iterdir()) == made_before


def test_a_claim_that_is_not_found_fails(scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducing, "CLAIMS", {"lemma1": lambda: finding(False), "premise": premise})
    monkeypatch.setattr(reproducing, "_premise_experiments", lambda scale: [])
    monkeypatch.setattr(reproducing, "_claims", lambda *_: {"lemma1": lambda: finding(False)})
    made, _ = reproduce(["theory"], scale, tmp_path / "out", Runner(tmp_path / "runs", jobs=1), QUIET)
    assert [item.verdict for item in made] == [FAIL, ""]


def test_the_catalogue_names_what_the_paper_has() -> None:
    figures = [f"fig{number}" for number in range(1, 10)]
    assert {"table1", "table2", "table3", *figures, "theory"} < set(CATALOGUE)
