import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archive_results import archive_run
from made_runs import collapse, rewrite, write_run
from refusals import refusal
from ricnet.evaluation.metrics import collapses
from write_evidence import read
from write_results import EARLIER, IN_SHORT, TEXTS, archived, block, fill, read_groups, refresh

MakeRun = Callable[..., Path]


ROOT = Path(__file__).parents[2]
MARKS = "before\n<!-- results:{name} -->\nold\n<!-- /results -->\nafter\n"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds each of SL, RIC and RIC's readout mu, which is derived."""
    root = tmp_path_factory.mktemp("archives")

    def derive(header: dict[str, Any]) -> None:
        header["config"]["method"]["readout"] = "mu"
        header["derived_from"] = "ric"

    for seed in range(2):
        for name, method in (("sl", "supervised"), ("ric", "ric"), ("mu", "ric")):
            folder = write_run(root / f"{name}{seed}", method, seed=seed)
            if name == "mu":
                rewrite(folder / "config.json", derive)
            archive_run(folder, root / "results" / "digits")
    return root / "results"


@pytest.fixture
def results(archives: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return Path(shutil.copytree(archives, tmp_path / "results"))


def test_a_row_a_system_in_the_order_of_the_tables(results: Path) -> None:
    text = block(results / "digits")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert [row.split(" | ")[0] for row in rows] == ["| RIC", "| RIC, readout mu", "| SL"]
    ric, mu, _ = rows
    mean = sum(run.test["accuracy"] for run in read_groups(results / "digits")[0].runs) / 2
    assert f"| {100 * mean:.2f} ±" in ric
    assert ric.endswith("| 61 | – |")
    assert mu.endswith("| – | – |")
    assert "**digits**, 1 × 8 × 8" in text
    assert "a CPU, PyTorch 2.13.0, Python 3.11.7, ricnet 0.1.0" in text
    assert "`ric train --config results/digits/ric0.json --out again`" in text
    assert "Nothing is claimed of RIC here" in text


def test_each_data_set_has_its_own_table(make_run: MakeRun, tmp_path: Path) -> None:
    for data in ("cifar10n-worst", "cifar10n-aggregate"):
        archive_run(make_run(data, "ric", data=data), tmp_path / "noise")
    text = block(tmp_path / "noise")
    assert text.count("| RIC |") == 2
    assert "**CIFAR-10N, worst labels**" in text
    assert "**CIFAR-10N, aggregate labels**" in text


def test_only_what_is_between_the_marks_changes(results: Path) -> None:
    text = fill(MARKS.format(name="digits"), results, "README.md")
    assert text == MARKS.format(name="digits").replace("old", block(results / "digits", IN_SHORT))
    assert "| NLL |" in text
    assert "Brier" not in text
    assert fill(text, results, "README.md") == text
    assert fill("no marks", results, "README.md") == "no marks"


def test_all_folders_have_a_heading_and_their_curves(results: Path) -> None:
    (results / "small").mkdir()
    assert archived(results) == ["digits"]
    text = fill(MARKS.format(name="all"), results, "results.md")
    assert "## digits\n" in text
    assert "small" not in text
    assert "curves.png" not in text
    (results / "digits" / "curves.png").write_bytes(b"")
    assert "(../../results/digits/curves.png)" in fill(text, results, "results.md")


def test_the_summary_has_trained_systems_of_todays_recipes(make_run: MakeRun, results: Path) -> None:
    archive_run(make_run("old", "ric"), results / EARLIER[0])
    text = fill(MARKS.format(name="summary"), results, "results.md")
    assert "| digits | RIC | 2 |" in text
    assert "|  | SL | 2 |" in text
    assert "readout mu" not in text
    assert EARLIER[0] not in text


def test_runs_that_are_not_there_are_named(results: Path) -> None:
    with refusal("README.md", "results:cifar"):
        fill(MARKS.format(name="cifar"), results, "README.md")


def test_the_texts_of_this_repository_are_what_its_runs_give() -> None:
    for name in TEXTS:
        assert not refresh(ROOT / name, ROOT / "results", write=False), f"{name}: run scripts/write_results.py"


def test_published_files_are_small_and_name_no_place() -> None:
    for path in (ROOT / "results").glob("*/*.json"):
        text = path.read_text()
        assert len(text) < 200_000, path
        assert "/home/" not in text, path


def test_runs_that_collapsed_are_marked_and_keep_their_place(make_run: MakeRun, results: Path) -> None:
    before = [row.split(" | ")[0] for row in block(results / "digits").splitlines() if row.startswith("| ")]
    archive_run(collapse(make_run("more/ric0", "ric", seed=0)), results / "digits")
    text = block(results / "digits")
    after = [row.split(" | ")[0] for row in text.splitlines() if row.startswith("| ")]
    assert after == [row + " †" * (row == "| RIC") for row in before]
    assert "† Training collapsed: ric0 (epoch 30: training accuracy 65.0 %, 25.0 points below its best; " in text


def test_the_archived_runs_that_collapsed() -> None:
    """On-policy runs with joint credit on ImageWoof and runs that share their weights, none with marginal credit; and
    runs of Algorithm 1 with little data, whose epochs have three updates."""
    found = {path.stem for path in (ROOT / "results").glob("*/*.json") if read(path).collapses}
    kinds = ("", "-temperature", "-fitted", "-implied", "-mu", "-mu-temperature")
    runs = ("ric-snapshots-seed0", *(f"ric-on-policy-seed{seed}" for seed in range(3)))
    woof = {path.stem for path in (ROOT / "results" / "imagewoof-resnet34-fast").glob("*.json")}
    assert found & woof == {run + kind for run in runs[1:] for kind in kinds}
    little = {f"algorithm-1-stopped-10-seed{seed}" for seed in range(3)}
    assert found == {run + kind for run in runs for kind in kinds} | little
    archives = (ROOT / "results").rglob("*.json")
    stored = [path for path in archives if '"collapses"' in path.read_text(encoding="utf-8")]
    for run in (read(path) for path in stored):
        if run.metrics:
            found = {each["epoch"] for each in collapses(run.metrics)}
            assert found <= {each["epoch"] for each in run.collapses}  # not every epoch of a long run is archived
        else:
            assert run.collapses == read(run.path.with_name(f"{run.derived_from}.json")).collapses


def test_figure_6_is_marked() -> None:
    rows = (ROOT / "results" / "figures" / "fig6.csv").read_text(encoding="utf-8").splitlines()
    marked = {tuple(row.split(",")[:2]) for row in rows if "† Training collapsed: ric-on-policy-seed2 (" in row}
    assert len(marked) == 1
    assert {benchmark for benchmark, _ in marked} == {"ImageWoof"}
