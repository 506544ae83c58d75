from pathlib import Path

import pytest

from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES, Scale
from ricnet_paper.table1_results import experiments

from .conftest import MakeRuns, pick, scored, through_csv


@pytest.fixture(scope="module")
def tables(scale: Scale, make_runs: MakeRuns, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """SL over three seeds, RIC over two of three, the rest on the first benchmark alike, nothing on the third."""
    runs = make_runs(experiments(scale)[:8])
    sl, act, ponder, ric = experiments(scale)[:4]
    runs[sl] = [
        scored(run, 0.999, accuracy=a, ece=0.059, n=10_000) for run, a in zip(runs[sl], (0.90, 0.92, 0.94), strict=True)
    ]
    runs[act] = [scored(run, accuracy=0.93001, ece=0.0591, n=10_000) for run in runs[act]]
    runs[ponder] = [scored(run, accuracy=0.93, ece=0.0592, n=10_000) for run in runs[ponder]]
    runs[ric] = [scored(run, 1.0, accuracy=0.91, ece=0.035, n=10_000) for run in runs[ric][:2]]
    rows = through_csv(ITEMS["table1"].tabulate(scale, runs), tmp_path_factory.mktemp("tables"))
    assert pick(rows, system="SL", benchmark="digits", quantity="test accuracy")["n"].tolist() == [3]
    return {name: write(rows) for name in ("table1", "table3") if (write := ITEMS[name].write)}


def cells_of(markdown: str, system: str) -> list[str]:
    line = next(line for line in markdown.splitlines() if line.startswith(f"| {system} "))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_means_as_in_table_1_and_intervals_as_in_table_3(tables: dict[str, dict[str, str]]) -> None:
    means, intervals = tables["table1"]["md"], tables["table3"]["md"]
    assert cells_of(means, "SL")[:3] == ["99.90", "92.00", "0.059"]
    assert cells_of(means, "RIC")[:3] == ["100.00", "91.00", "**0.035**"]
    assert [cells_of(means, system)[1] for system in ("ACT", "PonderNet")] == ["**93.00**"] * 2  # they print alike
    assert cells_of(intervals, "SL")[:3] == ["99.90 ± 0.00", "92.00 ± 4.97", "0.059 ± 0.000"]
    assert r"92.00 $\pm$ 4.97" in tables["table3"]["tex"]


def test_systems_without_any_run_have_their_titles(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(experiments(scale)[:1])
    write = ITEMS["table1"].write
    assert write is not None
    text = write(through_csv(ITEMS["table1"].tabulate(scale, runs), tmp_path))["md"]
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:] == [
        *("SL", "ACT", "PonderNet", "RIC")
    ]


def test_the_scale_and_what_is_missing_are_said(tables: dict[str, dict[str, str]]) -> None:
    text = tables["table3"]["md"]
    assert cells_of(text, "SL")[6:] == ["–"] * 3
    for said in (
        "SL, ACT, PonderNet and RIC on digits, 40 % flipped: no run finished.",
        "RIC on digits: 2 of 3 seeds finished.",
        "digits, n = 10,000",
        "15 bins",
    ):
        assert said in text
    for table in tables.values():
        assert (
            "Scale smoke: conv, inputs 1 × 8 × 8, 12 epochs, preset fast, epoch by validation accuracy." in table["md"]
        )


def test_latex_spans_the_benchmarks(tables: dict[str, dict[str, str]]) -> None:
    text = tables["table1"]["tex"]
    assert r"\multicolumn{3}{c}{digits, 9 \% flipped}" in text
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-7} \cmidrule(lr){8-10}" in text
    body = [line for line in text.splitlines() if line.startswith(("SL &", "RIC &"))]
    assert [line.count("&") for line in body] == [9, 9]


def test_both_tables_need_the_same_runs() -> None:
    for scale in SCALES.values():
        assert ITEMS["table1"].experiments(scale) == ITEMS["table3"].experiments(scale)
        assert len(ITEMS["table1"].experiments(scale)) == 12
