"""Test rows from a separate file, from the data, or none."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ricnet
from refusals import cases, refusal
from ricnet.report.page import write_page
from ricnet.report.runs import read_run

from .conftest import Refused, RunRic

SHORT = ["--target", "kind", "--epochs", "2", "--width", "0.1", "--device", "cpu"]


def made(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size = rng.normal(size=rows)
    kind = np.where(size + 0.3 * rng.normal(size=rows) > 0, "large", "small")
    return pd.DataFrame({"size": size, "noise": rng.normal(size=rows), "colour": ["red", "blue"] * (rows // 2)}).assign(
        kind=kind
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made(120).to_csv(tmp_path / "my.csv", index=False)
    return tmp_path / "my.csv"


def write(frame: pd.DataFrame, path: Path) -> Path:
    if ".jsonl" in path.name:
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


@pytest.mark.parametrize("name", ["test.csv", "test.tsv", "test.csv.gz", "test.jsonl", "test.jsonl.gz", "test.parquet"])
def test_a_table_may_have_its_own_test_file(name: str, table: Path, tmp_path: Path, run_ric: RunRic) -> None:
    test = write(made(30, seed=1), tmp_path / name)
    out = tmp_path / "run"
    assert run_ric("train", table, "--test", test, "--out", out, *SHORT).code == 0
    kept = json.loads((out / "config.json").read_text())
    assert kept["config"]["test"] == str(test.resolve())
    assert kept["data"]["rows"] == {"train": 108, "val": 12, "test": 30}
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert evaluation["test"]["n"] == 30
    again = json.loads(run_ric("evaluate", out, "--json").out)
    assert again["test"]["nll"] == pytest.approx(evaluation["test"]["nll"], abs=1e-5)
    (out / "evaluation.json").unlink()
    assert run_ric("train", "--out", out, "--resume").code == 0
    assert json.loads((out / "evaluation.json").read_text())["test"] == evaluation["test"]


def test_of_a_test_file_nothing_is_learned_and_a_data_frame_does_as_well(table: Path, tmp_path: Path) -> None:
    frame, test = pd.read_csv(table), made(30, seed=1).assign(size=1e6)
    how = {"target": "kind", "epochs": 2, "width": 0.1, "device": "cpu"}
    of_frame = ricnet.train(frame, test=test, out=tmp_path / "frame", **how)
    of_file = ricnet.train(table, test=write(test, tmp_path / "test.csv"), out=tmp_path / "file", **how)
    assert of_frame.columns == of_file.columns
    assert abs(of_frame.columns.inputs[0].mean) < 1
    rows = [json.loads((tmp_path / name / "config.json").read_text())["data"] for name in ("frame", "file")]
    assert rows[0] == rows[1]
    assert rows[0]["rows"]["test"] == 30
    with refusal("test is a data frame, but the data is not"):
        ricnet.train(table, test=test, out=tmp_path / "x", **how)
    with refusal("test is a list"):
        ricnet.train(frame, test=[1, 2], out=tmp_path / "x", **how)


def test_test_rows_that_were_learned_from_are_counted(table: Path, tmp_path: Path, run_ric: RunRic) -> None:
    said = run_ric("train", table, "--test", table, "--out", tmp_path / "run", *SHORT)
    assert "note: 108 of 120 test rows are exact copies of training rows in the columns that are read" in said.err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"columns": {"size": "length"}}, ("test.csv", "lacks", "'size'")),
        ({"columns": {"kind": "sort"}}, ("test.csv", "no column 'kind'")),
        ({"index": {}, "kind": "huge"}, ("test.csv, line 2", "'huge'", "large, small")),
        ({"index": {}, "size": "soon"}, ("test.csv, line 2", "'size'", "'soon'")),
    ],
)
def test_a_test_file_that_does_not_fit_is_one_sentence(
    change: dict[str, object], named: tuple[str, ...], table: Path, tmp_path: Path, refused: Refused
) -> None:
    test = made(30, seed=1)
    test = test.rename(columns=change["columns"]) if "columns" in change else test.assign(**{**change, "index": 0})
    path = write(test, tmp_path / "test.csv")
    refused(named, "train", table, "--test", path, "--out", tmp_path / "run", *SHORT)


@pytest.mark.parametrize(
    ("data", "given", "named"),
    cases(
        {
            "a file and a share": ("table", "--test test.csv --test-fraction 0.2", ("--test", "--test-fraction")),
            "a share of digits": ("digits", "--test-fraction 0.2", ("digits", "--test-fraction")),
            "a file for digits": ("digits", "--test test.csv", ("digits", "is for tables")),
            "all rows": ("table", "--test-fraction 1", ("--test-fraction 1.0", "below 1")),
            "a missing file": ("table", "--test nothing.csv", "nothing.csv does not exist"),
            "a folder": ("table", "--test .", "is not a table"),
        }
    ),
)
def test_conflicting_or_useless_settings_are_refused(
    data: str,
    given: str,
    named: object,
    table: Path,
    tmp_path: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(made(30, seed=1), tmp_path / "test.csv")
    monkeypatch.chdir(tmp_path)
    refused(named, "train", *(["digits"] if data == "digits" else [table, *SHORT]), *given.split())


def test_another_share_may_be_held_out_of_anything_that_is_cut(tmp_path: Path, run_ric: RunRic) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(100, 3)), y=np.arange(100) % 2)
    run_ric("train", tmp_path / "x.npz", "--test-fraction", 0.4, "--out", tmp_path / "run", *SHORT[2:])
    assert read_run(tmp_path / "run").data["rows"] == {"train": 54, "val": 6, "test": 40}


def test_everything_works_without_test_rows(
    table: Path, tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    said = run_ric("train", table, "--test-fraction", 0, "--measure-all", "--out", out, *SHORT)
    assert said.code == 0
    assert "note: Nothing is held out for testing (--test-fraction 0)." in said.err
    assert "Nothing was held out for testing" in said.out
    assert "Test" not in said.out
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert (evaluation["test"], evaluation["val"]["n"], evaluation["train"]["n"]) == (None, 12, 108)
    with np.load(out / "predictions.npz") as kept:
        assert not [name for name in kept if name.startswith("test")]
    measured = run_ric("evaluate", out)
    assert (measured.code, "val recall, lowest first" in measured.out) == (0, True)
    assert set(json.loads(run_ric("evaluate", out, "--json").out)) == {"train", "val"}
    copy = tmp_path / "copy.csv"
    copy.write_bytes(table.read_bytes())  # recognised, and divided as it was
    assert json.loads(run_ric("evaluate", out, "--data", copy, "--json").out)["val"]["n"] == 12
    assert len(run_ric("predict", out, out / "examples.npz", "--json").records) > 0
    page = write_page([read_run(out)], out / "report.html").read_text()
    assert "Nothing was held out for testing" in page
    assert "on 12 validation examples" in page
    for text in (said.out, said.err, measured.out, re.sub(r"<[^>]*>", "", page)):
        assert "nan" not in text.lower().split()
    (out / "evaluation.json").unlink()
    assert run_ric("train", "--out", out, "--resume").code == 0
    compared = run_ric(
        *("compare", table, "--test-fraction", 0, "--methods", "ric", "supervised", "--seeds", 2, "--jobs", 1), *SHORT
    )
    assert compared.code == 0
    assert "Nothing was held out for testing" in compared.out
    assert "Validation" in compared.out
    assert "Test accuracy" not in (tmp_path / "comparison-my-kind" / "comparison.md").read_text()
