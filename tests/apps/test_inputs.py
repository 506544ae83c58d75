"""From files, patterns, tables and standard input to answers."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image

import ricnet
from ricnet.apps.cli import main
from ricnet.data import columns_from_json
from ricnet.data.inputs import read_inputs
from ricnet.errors import RicnetError
from ricnet.training.config import Config
from ricnet.training.run import RunFolder, describe_data, read_config

from .conftest import TINY
from .test_cli import refused
from .test_predict import lines


@pytest.fixture(scope="session")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learned from my.csv beside it, where height and colour tell the kinds apart."""
    folder = tmp_path_factory.mktemp("table")
    random = np.random.default_rng(0)
    rows = ["height,colour,note,kind"]
    for row in range(120):
        tall = row % 2
        height = "" if row % 12 == 0 else f"{random.normal(10 + 30 * tall):.2f}"
        rows.append(f"{height},{('red', 'blue')[tall]},n{row},{('small', 'tall')[tall]}")
    (folder / "my.csv").write_text("\n".join(rows))
    tiny = ["--epochs", "40", "--batch-size", "16", *TINY[2:]]
    main(["train", str(folder / "my.csv"), "--target", "kind", "--out", str(folder / "run"), *tiny])
    return folder / "run"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Three 8 × 8 images, of which one is broken, and a table that is none."""
    for i in range(2):
        Image.new("L", (8, 8), 100 * i).save(tmp_path / f"{i}.png")
    (tmp_path / "2.png").write_text("broken")
    return tmp_path


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_pattern_is_what_it_matches(digits_run: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pictures / "folder").mkdir()
    Image.new("L", (8, 8), 7).save(pictures / "folder" / "in.png")
    main(["predict", str(digits_run), str(pictures / "*"), "--json", "--device", "cpu"])
    captured = capsys.readouterr()
    found = [Path(json.loads(line)["input"]).name for line in captured.out.splitlines()]
    assert found == ["0.png", "1.png", "in.png"]
    assert "skipped: " in captured.err
    deep = lines(capsys, "predict", digits_run, pictures / "**" / "i*.png", "--json")
    assert [Path(record["input"]).name for record in deep] == ["in.png"]
    assert "x*.png matches no file" in refused(capsys, "predict", digits_run, pictures / "x*.png")
    (pictures / "bad").mkdir()
    (pictures / "2.png").rename(pictures / "bad" / "2.png")
    said = refused(capsys, "predict", digits_run, pictures / "bad")
    assert "bad holds no images that can be classified." in said
    assert "2.png is no image" in said


def test_what_cannot_be_read_keeps_no_other_input_from_its_answer(
    digits_run: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(pictures / name) for name in ("2.png", "0.png", "absent.png", "1.png")]
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(digits_run), *named, "--json", "--device", "cpu"])
    captured = capsys.readouterr()
    assert ended.value.code == 1
    assert [Path(json.loads(line)["input"]).name for line in captured.out.splitlines()] == ["0.png", "1.png"]
    assert [line.partition(" is ")[0].partition(" does ")[0] for line in captured.err.splitlines()] == [
        f"skipped: {pictures / name}" for name in ("2.png", "absent.png")
    ]
    assert "2.png is no image" in refused(capsys, "predict", digits_run, pictures / "2.png", pictures / "absent.png")


def test_only_what_was_named_and_cannot_be_read_ends_with_1(
    digits_run: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "labels.csv").write_text("no image")
    for spec in (pictures, pictures / "*.png", pictures / "*"):
        main(["predict", str(digits_run), str(spec), "--json", "--device", "cpu"])
        captured = capsys.readouterr()
        assert (len(captured.out.splitlines()), "skipped: " in captured.err) == (2, True)
    model = ricnet.load(digits_run)
    with pytest.warns(UserWarning, match="^skipped: ") as told:
        assert len(model.read(pictures / "*")) == 2
    assert [Path(str(warning.message).split()[1]).name for warning in told] == ["2.png", "labels.csv"]


def test_an_image_on_standard_input(
    digits_run: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give(monkeypatch, (pictures / "1.png").read_bytes())
    [piped] = lines(capsys, "predict", digits_run, "-", "--json")
    [named] = lines(capsys, "predict", digits_run, pictures / "1.png", "--json")
    assert piped == named | {"input": "-"}
    give(monkeypatch, b"text")
    assert "standard input is no image" in refused(capsys, "predict", digits_run, "-")


def test_a_table_is_read_as_the_training_rows_were(table_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = table_run.parent / "my.csv"
    records = lines(capsys, "predict", table_run, table, "--json")
    assert [record["input"] for record in records[:2]] == [f"{table}:2", f"{table}:3"]
    answers = [record["answer"] for record in records]
    assert np.mean([answer == kind for answer, kind in zip(answers, ["small", "tall"] * 60, strict=True)]) > 0.9
    model = ricnet.load(table_run)
    assert model.columns is not None
    assert [column.name for column in model.columns.inputs] == ["height", "colour"]
    names, inputs, notes, problems = read_inputs([str(table)], model.input_shape, model.columns)
    assert (len(names), inputs.shape, notes, problems) == (120, (120, 4), [], [])
    whole = ricnet.data.load(f"{table}#kind")
    stored = {tuple(row) for row in whole.train.inputs.tolist()}
    assert stored <= {tuple(row) for row in inputs.tolist()}


def test_a_classifier_reads_files_for_refine(
    table_run: Path, digits_run: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits, table = ricnet.load(digits_run), ricnet.load(table_run)
    both = digits.read([pictures / "0.png", str(pictures / "1.png")])
    with pytest.warns(UserWarning, match=r"skipped: .*2\.png is no image"):
        assert torch.equal(digits.read(pictures), both)
    assert digits.refine(both).final.shape == (2, 10)
    monkeypatch.chdir(table_run.parent)
    assert table.refine(table.read("my.csv")).final.shape == (120, 2)
    with pytest.raises(RicnetError, match=r"2\.png is no image"):
        digits.read([pictures / "0.png", pictures / "2.png"])
    assert torch.equal(digits.read(np.array([str(pictures / "0.png"), str(pictures / "1.png")])), both)
    assert torch.equal(digits.read(path for path in sorted(pictures.glob("[01].png"))), both)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "nothing to read"),
        (Path().glob("*.nope"), "nothing to read"),
        (b"x.png", "not as bytes"),
        ([b"x.png"], "not as bytes"),
        (np.zeros((2, 8, 8)), "read takes the paths .* arrays go to refine"),
        (None, "read takes the paths"),
    ],
)
def test_a_classifier_reads_paths_only(
    digits_run: Path, given: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse them before
    with pytest.raises(RicnetError, match=said):
        ricnet.load(digits_run).read(given)


def test_rows_on_standard_input_in_another_order(
    table_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give(monkeypatch, b"colour\theight\tmore\nred\t9.5\t1\ngreen\t\t2\n")
    main(["predict", str(table_run), "-", "--json", "--device", "cpu"])
    captured = capsys.readouterr()
    first, second = (json.loads(line) for line in captured.out.splitlines())
    assert (first["input"], first["answer"], second["input"]) == ("-:2", "small", "-:3")
    assert "1 of 2 rows have a value of 'colour' that training had not, such as 'green'" in captured.err
    give(monkeypatch, b"colour,height\nred,9\n,\nblue,40\n")
    main(["predict", str(table_run), "-", "--json", "--device", "cpu"])
    captured = capsys.readouterr()
    assert [json.loads(line)["input"] for line in captured.out.splitlines()] == ["-:2", "-:3", "-:4"]
    assert "1 of 3 rows have an empty 'colour', which no training row had" in captured.err
    give(monkeypatch, b"height\n1\n")
    assert "standard input lacks columns" in refused(capsys, "predict", table_run, "-")
    give(monkeypatch, b"\xff\xfe")
    assert "standard input is no text in UTF-8" in refused(capsys, "predict", table_run, "-")


def test_what_a_model_cannot_read_is_said(
    table_run: Path, digits_run: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_run.parent / "my.csv"
    assert "is a table, but this model reads images" in refused(capsys, "predict", digits_run, table)
    assert "0.png: this model reads tables" in refused(capsys, "predict", table_run, pictures / "0.png")
    assert "this model reads tables" in refused(capsys, "predict", table_run, pictures / "*.png")
    (pictures / "old.csv").write_text("height,colour\nold,red\n")
    assert "line 2: 'height' is 'old'" in refused(capsys, "predict", table_run, pictures / "old.csv")


def test_a_table_can_be_evaluated_and_a_run_on_it_repeated(
    table_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads((table_run / "evaluation.json").read_text())["test"]["nll"]
    for data in ([], ["--data", table_run.parent / "my.csv"], ["--data", f"{table_run.parent}/my.csv#kind"]):
        [*_] = capsys.readouterr()
        main(["evaluate", str(table_run), *map(str, data), "--json", "--device", "cpu"])
        assert json.loads(capsys.readouterr().out)["test"]["nll"] == pytest.approx(stored, rel=1e-4)
    main(["train", "--config", str(table_run), "--out", str(tmp_path / "again"), "--device", "cpu"])
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (table_run / "model.safetensors").read_bytes()
    assert "--target x is for tables" in refused(capsys, "train", "digits", "--target", "x")
    assert "which column is the class" in refused(capsys, "train", table_run.parent / "my.csv")


def test_no_data_is_not_the_data_of_the_run(table_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be a path (it is empty)" in refused(capsys, "evaluate", table_run, "--data", "", "--device", "cpu")


def test_data_of_another_kind_is_refused_before_it_is_read(
    table_run: Path,
    digits_run: Path,
    image_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ricnet.apps.commands.evaluate.load_data", None)
    rows = table_run.parent / "other.csv"
    for run, data, said in (
        (
            table_run,
            image_folder,
            "holds images, but the model reads tables; give a file (.csv",
        ),
        (table_run, "cifar10", "cifar10 holds images, but the model reads tables"),
        (digits_run, rows, "is a table, but the model reads images; give image files"),
        (digits_run, "https://example.org/my.csv", "is an address"),
    ):
        assert said in refused(capsys, "evaluate", run, "--data", data, "--device", "cpu")


def test_a_table_that_has_changed_since_is_noted(table_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = table_run.parent / "my.csv"
    before = table.read_text()
    header, *rows = before.splitlines()
    for changed, expected in ((rows, False), (rows[::-1], True)):
        table.write_text("\n".join([header, *changed]))
        try:
            main(["evaluate", str(table_run), "--json", "--device", "cpu"])
        finally:
            table.write_text(before)
        assert ("is not what the run learned from" in capsys.readouterr().err) is expected


def test_another_table_is_measured_as_a_whole(
    table_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluated(data: Path) -> dict[str, Any]:
        capsys.readouterr()
        main(["evaluate", str(table_run), "--data", str(data), "--json", "--device", "cpu"])
        measured: dict[str, Any] = json.loads(capsys.readouterr().out)
        return measured

    header, *rows = (table_run.parent / "my.csv").read_text().splitlines()
    other, copy = tmp_path / "other.csv", tmp_path / "copy.csv"
    other.write_text("\n".join([header, *rows[:7], rows[7].replace("tall", "NA")]))
    entries = evaluated(other)
    assert (list(entries), entries["test"]["n"]) == (["test"], 7)
    other.write_text("\n".join([header, *rows[1:8:2]]))  # of one class, which is the model's second
    entries = evaluated(other)
    assert (entries["test"]["n"], entries["test"]["accuracy"]) == (4, 1)
    copy.write_text("\n".join([header, *rows]))
    stored = json.loads((table_run / "evaluation.json").read_text())
    assert {name: entry["n"] for name, entry in evaluated(copy).items()} == {
        name: stored[name]["n"] for name in ("train", "val", "test")
    }
    copy.write_text("\n".join([header, *reversed(rows)]))  # the same rows, but not in their order
    assert {name: entry["n"] for name, entry in evaluated(copy).items()} == {"test": 120}
    other.write_text("\n".join([header, rows[0], rows[1].replace(",tall", ",huge")]))
    assert "classes that the model does not know: huge" in refused(
        capsys, "evaluate", table_run, "--data", other, "--device", "cpu"
    )


def test_what_a_run_learned_from_must_still_have_its_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, run, other = tmp_path / "my.csv", tmp_path / "run", tmp_path / "other.csv"
    rows = [f"{row % 3},{('none', 'minor', 'major')[row % 3]}" for row in range(24)]
    table.write_text("\n".join(["size,damage", *rows, "1,?"]))
    short = ["--method", "supervised", "--epochs", "1", "--device", "cpu"]
    main(["train", str(table), "--target", "damage", "--out", str(run), *short])
    capsys.readouterr()
    main(["evaluate", str(run), "--json", "--device", "cpu"])
    assert "note: 1 row has no 'damage' (read as gaps: '?'" in capsys.readouterr().err
    other.write_text("\n".join(["size,damage", "0,none", "0,none"]))
    main(["evaluate", str(run), "--data", str(other), "--json", "--device", "cpu"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["test"]["n"] == 2
    assert f"note: {other}#damage lacks classes that the model knows: major, minor." in captured.err
    table.write_text("\n".join(["size,damage", *(row for row in rows if "major" not in row)]))
    for data in ([], ["--data", table]):
        said = refused(capsys, "evaluate", run, *data, "--device", "cpu")
        assert "my.csv#damage has other classes than the model: it lacks major." in said
    table.write_text("\n".join(["size,damage", *rows, *["9,total"] * 3]))
    assert "other classes than the model: it adds total." in refused(capsys, "evaluate", run, "--device", "cpu")


def write_digits(place: Path, names: list[str]) -> Path:
    """Images of 8 × 8 pixels in a folder, or in an .npz file."""
    if place.suffix == ".npz":
        np.savez(place, x=np.zeros((len(names), 8, 8), np.uint8), y=np.array([int(name) for name in names]))
        return place
    for number, name in enumerate(names):
        (place / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 9 * number).save(place / name / f"{number}.png")
    return place


@pytest.mark.parametrize("name", ["other.csv", "other", "other.npz"])
def test_other_data_may_be_of_one_class(
    name: str, table_run: Path, digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / name
    if place.suffix == ".csv":
        place.write_text("height,colour,kind\n40,blue,tall\n41,blue,tall\n")
    else:
        write_digits(place, ["3", "3"])
    run = table_run if place.suffix == ".csv" else digits_run
    capsys.readouterr()
    main(["evaluate", str(run), "--data", str(place), "--json", "--device", "cpu"])
    captured = capsys.readouterr()
    assert {part: entry["n"] for part, entry in json.loads(captured.out).items()} == {"test": 2}
    assert "lacks classes that the model knows: " in captured.err


def test_a_test_part_is_measured_whatever_the_train_part_beside_it_is(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_digits(tmp_path / "folder" / "train", ["3", "5"])
    write_digits(tmp_path / "folder" / "test", ["3", "5", "5"])
    x, y = np.zeros((5, 8, 8), np.uint8), np.array([3, 5, 5, 3, 5])
    np.savez(tmp_path / "arrays.npz", x_train=x[:2], y_train=y[:2], x_test=x[2:], y_test=y[2:])
    for place in (tmp_path / "folder", tmp_path / "arrays.npz"):
        capsys.readouterr()
        main(["evaluate", str(digits_run), "--data", str(place), "--json", "--device", "cpu"])
        measured = json.loads(capsys.readouterr().out)
        assert {part: entry["n"] for part, entry in measured.items()} == {"train": 2, "test": 3}


def test_an_error_on_the_way_to_recognise_a_copy_is_no_secret(
    table_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_once(*given: Any, undivided: bool = False, **how: Any) -> ricnet.data.Dataset:
        if not undivided:
            raise RicnetError("the disk is gone")
        return load(*given, undivided=True, **how)

    load, copy = ricnet.data.load, tmp_path / "copy.csv"
    copy.write_text((table_run.parent / "my.csv").read_text())
    monkeypatch.setattr("ricnet.apps.commands.evaluate.load_data", read_once)
    assert "the disk is gone" in refused(capsys, "evaluate", table_run, "--data", copy, "--device", "cpu")
    lonely = copy.read_text().replace(",small", ",tall").replace(",tall", ",small", 2)  # as many, in parts too small
    copy.write_text(lonely)
    main(["evaluate", str(table_run), "--data", str(copy), "--json", "--device", "cpu"])
    assert json.loads(capsys.readouterr().out)["test"]["n"] == 120


def test_columns_are_kept_with_the_run(tmp_path: Path, table_run: Path) -> None:
    table = ricnet.data.load(f"{table_run.parent}/my.csv#kind")
    RunFolder(tmp_path).begin(Config(), table, torch.device("cpu"))
    assert columns_from_json(read_config(tmp_path)["data"]["columns"], "config.json") == table.columns
    assert json.loads((tmp_path / "config.json").read_text())["data"] == describe_data(table)
    digits = ricnet.data.load("digits")
    RunFolder(tmp_path).begin(Config(), digits, torch.device("cpu"))
    assert "columns" not in read_config(tmp_path)["data"]
