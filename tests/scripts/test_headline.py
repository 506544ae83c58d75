"""README's table of results: few rows, named by algorithm, with any number of seeds."""

import json
import shutil
from pathlib import Path

import pytest

import write_evidence
from headline import DEVIATIONS, HEADLINE, headline, table1
from refusals import refusal
from ricnet.report.runs import read_run
from ricnet.report.statistics import paired_difference
from write_results import fill

ROOT = Path(__file__).parents[2]
WOOF = "imagewoof-half-resnet18-paper"


@pytest.fixture(scope="module")
def more_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/ with made-up seeds 1 and 2 of Algorithm 1 on ImageWoof: copies of seed 0, a little more accurate."""
    results = tmp_path_factory.mktemp("results")
    for path in (ROOT / "results").iterdir():
        if path.name != WOOF:
            (results / path.name).symlink_to(path)
    shutil.copytree(ROOT / "results" / WOOF, results / WOOF)
    for path in (results / WOOF).glob("*seed0*.json"):
        for seed in range(1, 3):
            run = json.loads(path.read_text())
            run["config"]["seed"] = seed
            better = 0.003 * seed if path.name.startswith("ric") else -0.001 * seed
            run["evaluation"]["test"]["accuracy"] += better
            run["evaluation"]["test"]["ece"] -= better
            run["evaluation"]["test"]["nll"] -= better
            for entry in run["evaluation"]["test"]["per_step"]:
                entry["ece"] *= 1 + 0.01 * seed
            (path.parent / path.name.replace("seed0", f"seed{seed}")).write_text(json.dumps(run))
    return results


def rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]


def test_at_most_ten_rows_each_with_its_algorithm() -> None:
    found = rows(headline(ROOT / "results"))
    assert len(found) == len(HEADLINE) <= 10
    assert all(len(row) <= 8 for row in found)
    assert {row.system for row in HEADLINE} == {
        *("RIC, Algorithm 1", "RIC on-policy", "RIC closed form", "SL", "SL + temperature")
    }


def test_further_seeds_are_taken_with_paired_intervals(more_seeds: Path) -> None:
    text = headline(more_seeds)
    first = next(line for line in text.splitlines() if line.startswith("| ImageWoof"))
    names = ("ric-seed{}", "supervised-2000-seed{}")
    ours, theirs = (
        [read_run(more_seeds / WOOF / f"{name.format(seed)}.json").test["ece"] for seed in range(3)] for name in names
    )
    found = paired_difference(ours, theirs)
    assert found.half_width is not None
    assert f"| {found.mean:+.3f} ± {found.half_width:.3f} |".replace("-", "−") in first
    assert "| RIC, Algorithm 1, 2000 | 3 |" in first
    assert "(3) |" in table1(more_seeds)


def test_the_evidence_takes_further_seeds_too(more_seeds: Path) -> None:
    page = write_evidence.PAGE.read_text(encoding="utf-8")
    text = write_evidence.fill(page, more_seeds)
    line = next(line for line in text.splitlines() if line.startswith("| Accuracy above SL's, ImageWoof"))
    assert "**reproduced** (3 seeds)" in line.split(" | ")[1]
    assert f"`{WOOF}/ric-seed[0-2]`" in line
    cost = next(line for line in text.splitlines() if line.startswith(f"| `{WOOF}` | RIC |"))
    assert f"| `{WOOF}` | RIC | 3 | 2000 |" in cost
    assert "one seed" not in next(line for line in text.splitlines() if line.startswith("| ECE below SL's, ImageWoof"))


def test_the_tables_of_runs_pair_further_seeds(more_seeds: Path) -> None:
    text = fill(f"<!-- results:{WOOF} -->\n<!-- /results -->", more_seeds, "README.md")
    assert "NLL of RIC less that of SL + temperature, 2000 epochs" in text
    assert "over 3 seeds" in text


def test_runs_without_a_temperature_yet_are_no_obstacle(more_seeds: Path, tmp_path: Path) -> None:
    """As while seeds are being archived: a mean over fewer seeds than the row says is not written."""
    for path in more_seeds.iterdir():
        if path.name != WOOF:
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(more_seeds / WOOF, tmp_path / WOOF)
    for path in (tmp_path / WOOF).glob("*seed2-*.json"):
        path.unlink()
    first = next(line for line in headline(tmp_path).splitlines() if line.startswith("| ImageWoof"))
    assert first.count("(2 seeds)") == 1
    assert "| – |" in write_evidence.cost(tmp_path)


def test_the_deviations_of_the_preset_paper_stand_beside_its_tables() -> None:
    marks = "<!-- results:{} -->\n<!-- /results -->"
    for name in ("table1", WOOF, "cifar10-half-resnet18-paper"):
        assert DEVIATIONS in fill(marks.format(name), ROOT / "results", "README.md"), name
    assert "#deviations-of-paper-from-the-text)" in fill(marks.format("headline"), ROOT / "results", "README.md")
    assert DEVIATIONS not in fill(marks.format("cifar10-resnet34-fast"), ROOT / "results", "README.md")


def test_a_row_without_runs_is_refused(tmp_path: Path) -> None:
    with refusal("README.md", HEADLINE[0].folder):
        headline(tmp_path)


def test_readme_is_short_and_readable() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    assert max(len(line) for line in lines if not line.startswith(("|", "!["))) <= 160
