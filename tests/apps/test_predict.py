"""From files, patterns, tables and standard input to answers."""

import csv
import io
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import ricnet
from refusals import cases, refusal
from ricnet.apps.commands.options import Predict
from ricnet.apps.commands.predict import _coverage
from ricnet.data.inputs import read_inputs
from ricnet.training.recipes import changed

from .conftest import TINY, Refused, RunRic


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three of scikit-learn's digits as PNG files."""
    folder = tmp_path / "some"
    folder.mkdir()
    for i, pixels in enumerate(load_digits().images[:3]):
        Image.fromarray((pixels * 255 / 16).round().astype(np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def broken(images: Path) -> Path:
    """The same, the third of them broken."""
    (images / "2.png").write_text("broken")
    return images


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def names_of(records: list[dict]) -> list[str]:
    return [Path(record["input"]).name for record in records]


def test_files_a_folder_and_an_npz_give_the_same_answers(
    digits_run: Path, images: Path, tmp_path: Path, run_ric: RunRic
) -> None:
    files, arrays = sorted(images.iterdir()), tmp_path / "x.npz"
    np.savez(arrays, x=np.stack([np.asarray(Image.open(f)) for f in files]))
    by_file, by_folder, by_array = (
        run_ric("predict", digits_run, *given, "--json", "--top", 10).records for given in (files, [images], [arrays])
    )
    assert by_file == by_folder
    assert [r["input"] for r in by_array] == [f"{arrays}[{i}]" for i in range(3)]
    assert [r["top"] for r in by_file] == [r["top"] for r in by_array]
    model, pixels = ricnet.load(digits_run), np.load(arrays)["x"][:, None]
    expected = model.refine(torch.from_numpy(pixels))
    torch.testing.assert_close(model.refine(pixels).final, expected.final)
    for row, record in enumerate(by_file):
        assert record["confidence"] == pytest.approx(expected.final[row].exp().max().item(), rel=1e-5)
        assert record["steps"] == expected.halt_step[row].item()
        assert sum(entry["probability"] for entry in record["top"]) == pytest.approx(1, abs=1e-5)
    with refusal("uint8", "float64"):
        model.refine(pixels / 255)


def test_trace_shows_the_belief_after_each_step(digits_run: Path, images: Path, run_ric: RunRic) -> None:
    [record] = run_ric("predict", digits_run, images / "0.png", "--trace", "--json").records
    assert np.allclose(np.sum(record["beliefs"], axis=1), 1, atol=1e-5)
    assert len(record["beliefs"]) == len(record["values"]) == 4
    shown = run_ric("predict", digits_run, images / "0.png", "--trace").out
    assert "◀" in shown
    assert {"1", "2", "3", "4"} <= {line.split()[0] for line in shown.splitlines() if line.split()}


def test_steps_and_time_are_limited(digits_run: Path, images: Path, run_ric: RunRic, refused: Refused) -> None:
    def steps(*flags: object) -> list[int]:
        return [record["steps"] for record in run_ric("predict", digits_run, images, "--json", *flags).records]

    eager = "--halt-threshold=-99"
    assert steps("--max-steps", 1) == steps("--halt-threshold", 99) == [1, 1, 1]
    assert steps(eager) == steps(eager, "--max-ms", "1e6") == [4, 4, 4]
    ask = ("predict", digits_run, images, "--json", eager)
    hurried, one_step = (run_ric(*ask, *flags).records for flags in (["--max-ms", "1e-6"], ["--max-steps", "1"]))
    assert [record["steps"] for record in hurried] == [1, 1, 1]
    assert [r["confidence"] for r in hurried] == pytest.approx([r["confidence"] for r in one_step], rel=1e-5)
    assert [len(r["beliefs"]) for r in run_ric(*ask, "--max-ms", "1e-6", "--trace").records] == [1, 1, 1]
    for flag in ("--max-steps", "--top", "--max-ms"):
        refused(f"{flag} 0", "predict", digits_run, images, flag, "0")


def test_own_images_from_folder_to_answer(image_folder: Path, tmp_path: Path, run_ric: RunRic) -> None:
    """A folder of images trains with no option given but the time it may take, and tells bright from dark."""
    short = ["--epochs", "30", "--width", "0.2", "--horizon", "4", "--device", "cpu"]
    run_ric("train", image_folder, "--out", tmp_path / "run", *short)
    for kind in ("dark", "bright"):
        records = run_ric("predict", tmp_path / "run", image_folder / kind, "--json").records
        assert {record["answer"] for record in records} == {kind}


def test_an_npz_table_with_gaps_from_train_to_answers(tmp_path: Path, run_ric: RunRic) -> None:
    """NaN was refused, though the estimators read it as a missing value."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 90)
    x = np.where(rng.random((90, 3)) < 0.2, np.nan, rng.normal(size=(90, 3)) + 100 * y[:, None])
    np.savez(tmp_path / "my.npz", x=x, y=y)
    run_ric("train", tmp_path / "my.npz", *TINY, "--out", tmp_path / "run")
    model = ricnet.load(tmp_path / "run")
    assert [column.name for column in model.columns.inputs] == ["0", "1", "2"]
    answers = run_ric("predict", tmp_path / "run", tmp_path / "my.npz", "--json").records
    pd.DataFrame(x, columns=list("012")).to_json(
        tmp_path / "my.jsonl", orient="records", lines=True, double_precision=15
    )
    by_cells = run_ric("predict", tmp_path / "run", tmp_path / "my.jsonl", "--json").records
    assert [answer["answer"] for answer in answers] == [answer["answer"] for answer in by_cells]
    own = run_ric("predict", tmp_path / "run", tmp_path / "run" / "examples.npz", "--json").records
    assert 0 < len(own) <= 90
    run_ric("evaluate", tmp_path / "run", "--data", tmp_path / "my.npz")


def test_a_closed_pipe_is_no_error(digits_run: Path) -> None:
    assert os.system(f"ric predict {digits_run} {digits_run / 'examples.npz'} --json | head -n 1 > {os.devnull}") == 0


def test_names_with_brackets_are_shown_as_they_are(
    digits_run: Path, images: Path, tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets mean styles to the library that prints for us; [/b] would even be an error."""
    odd = tmp_path / "o[bold]d"
    odd.mkdir()
    (images / "0.png").rename(odd / "a[red].png")
    (odd / "b.png").write_text("broken")
    monkeypatch.chdir(tmp_path)
    said = run_ric("predict", digits_run, odd.name)
    assert "o[bold]d/a[red].png" in said.out
    assert "skipped: " in said.err
    assert "b.png" in said.err
    table, y = odd / "t[b].npz", np.repeat(["[/bold]", "right"], 40)
    np.savez(table, x=np.random.default_rng(0).normal(size=(80, 3)), y=y)
    run_ric("train", table, "--out", odd / "run", *TINY)
    said = run_ric("predict", odd / "run", table, "--top", 2)
    assert len(said.out.splitlines()) > 80
    assert "[/bold]" in said.out


def test_csv_can_be_read_by_a_spreadsheet(digits_run: Path, images: Path, run_ric: RunRic, refused: Refused) -> None:
    ask = ("predict", digits_run, images)
    records = run_ric(*ask, "--json", "--top", 2).records
    rows = list(csv.DictReader(io.StringIO(run_ric(*ask, "--csv", "--top", 2).out)))
    assert list(rows[0])[4:] == ["class_1", "probability_1", "class_2", "probability_2"]
    for row, record in zip(rows, records, strict=True):
        assert (row["input"], row["answer"], int(row["steps"])) == (record["input"], record["answer"], record["steps"])
        assert float(row["confidence"]) == record["confidence"]
        assert (row["class_2"], float(row["probability_2"])) == tuple(record["top"][1].values())
    assert run_ric(*ask, "--csv").out.splitlines()[0] == "input,answer,confidence,steps"
    for other in ("--json", "--trace"):
        refused(("--csv", other), *ask, "--csv", other)


def test_abstaining_prints_coverage_and_risk(digits_run: Path, images: Path, run_ric: RunRic, refused: Refused) -> None:
    ask = ("predict", digits_run, images)
    sure = run_ric(*ask, "--json").records
    between = float(np.median([record["confidence"] for record in sure]))  # three images: the middle one is answered
    said = run_ric(*ask, "--json", "--abstain-below", between)
    expected = ["unsure" if record["confidence"] < between else record["answer"] for record in sure]
    assert [record["answer"] for record in said.records] == expected
    assert expected.count("unsure") == 1
    with np.load(digits_run / "predictions.npz") as stored:
        beliefs, labels = np.exp(stored["val_log_beliefs"]), stored["val_labels"]
    answered = beliefs.max(1) >= between
    wrong = int((beliefs.argmax(1) != labels)[answered].sum())
    assert f"{answered.sum()} of {len(labels)} answers had a confidence of {between:g} or more" in said.err
    assert f"{wrong} of them w" in said.err
    for more, shown in ((["--top", "2"], "unsure"), (["--trace"], "unsure ("), (["--csv"], ",unsure,")):
        assert shown in run_ric(*ask, "--abstain-below", 1, *more).out
    assert "--max-ms" in run_ric(*ask, "--abstain-below", 0.5, "--max-ms", 50).err  # nobody measured that
    refused("--abstain-below 1.5", *ask, "--abstain-below", "1.5")


def test_without_inputs_the_examples_of_the_run_are_taken(
    digits_run: Path, tmp_path: Path, run_ric: RunRic, refused: Refused
) -> None:
    stored = digits_run / "examples.npz"
    assert run_ric("predict", digits_run, "--json").records == run_ric("predict", digits_run, stored, "--json").records
    shown, count = run_ric("predict", digits_run), len(np.load(stored)["x"])
    assert f"the {count} test images stored with the model" in shown.err
    assert [line.split("  ")[0] for line in shown.out.splitlines()[1:]] == [f"example {row}" for row in range(count)]
    traced = run_ric("predict", digits_run, "--trace")
    assert "this one takes the most steps" in traced.err
    assert traced.out.count(" after ") == 1
    given = run_ric("predict", digits_run, stored, "--csv")
    assert (given.out.splitlines()[5].split(",")[0], given.err) == (f"{stored}[4]", "")
    for file in ("config.json", "model.safetensors", "calibration.json", "halting.json", "manifest.json"):
        shutil.copy(digits_run / file, tmp_path)
    refused("something to classify", "predict", tmp_path)


def test_every_command_notes_an_unfinished_run(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_ric: RunRic
) -> None:
    def refuse(*_: object) -> None:
        raise ricnet.RicnetError("enough for a test")

    run = tmp_path / "a run"
    shutil.copytree(digits_run, run)
    (run / "evaluation.json").unlink()
    (run / "state.pt").touch()
    monkeypatch.setattr("ricnet.apps.commands.serve.run_server", lambda *_: None)
    monkeypatch.setattr("ricnet.models.onnx.export_onnx", refuse)
    for words in (["predict"], ["evaluate"], ["serve", "--port", "0"], ["export", "--out", tmp_path / "m.onnx"]):
        for folder, told in ((run, 1), (digits_run, 0)):
            said = run_ric(words[0], folder, *words[1:])
            assert said.err.count(f"{folder} is not finished (epoch 2 of 2)") == told, words
            assert said.err.count(f"ric train --out '{run}' --resume\n") == told, words


def test_a_pattern_is_what_it_matches(digits_run: Path, broken: Path, run_ric: RunRic, refused: Refused) -> None:
    (broken / "folder").mkdir()
    Image.new("L", (8, 8), 7).save(broken / "folder" / "in.png")
    said = run_ric("predict", digits_run, broken / "*", "--json")
    assert names_of(said.records) == ["0.png", "1.png", "in.png"]
    assert "skipped: " in said.err
    assert names_of(run_ric("predict", digits_run, broken / "**" / "i*.png", "--json").records) == ["in.png"]
    refused("x*.png", "predict", digits_run, broken / "x*.png")
    (broken / "bad").mkdir()
    (broken / "2.png").rename(broken / "bad" / "2.png")
    refused(("bad", "2.png"), "predict", digits_run, broken / "bad")


def test_unreadable_inputs_do_not_stop_others(
    digits_run: Path, broken: Path, run_ric: RunRic, refused: Refused
) -> None:
    """Only what was named and cannot be read ends with 1."""
    named = [broken / name for name in ("2.png", "0.png", "absent.png", "1.png")]
    said = run_ric("predict", digits_run, *named, "--json")
    assert (said.code, names_of(said.records)) == (1, ["0.png", "1.png"])
    skipped = [line.split()[1] for line in said.err.splitlines() if line.startswith("skipped: ")]
    assert skipped == [str(broken / name) for name in ("2.png", "absent.png")]
    refused("2.png", "predict", digits_run, named[0], named[2])
    (broken / "labels.csv").write_text("no image")
    for spec in (broken, broken / "*.png", broken / "*"):
        said = run_ric("predict", digits_run, spec, "--json")
        assert (said.code, len(said.records), "skipped: " in said.err) == (0, 2, True)


def test_an_image_on_standard_input(
    digits_run: Path, images: Path, monkeypatch: pytest.MonkeyPatch, run_ric: RunRic, refused: Refused
) -> None:
    give(monkeypatch, (images / "1.png").read_bytes())
    [piped] = run_ric("predict", digits_run, "-", "--json").records
    [named] = run_ric("predict", digits_run, images / "1.png", "--json").records
    assert piped == named | {"input": "-"}
    give(monkeypatch, b"text")
    refused("standard input", "predict", digits_run, "-")


def test_a_table_is_read_as_the_training_rows_were(table_run: Path, run_ric: RunRic) -> None:
    table = table_run.parent / "my.csv"
    records = run_ric("predict", table_run, table, "--json").records
    assert [record["input"] for record in records[:2]] == [f"{table}:2", f"{table}:3"]
    answers = [record["answer"] for record in records]
    assert np.mean([answer == kind for answer, kind in zip(answers, ["small", "tall"] * 60, strict=True)]) > 0.9
    model = ricnet.load(table_run)
    assert [column.name for column in model.columns.inputs] == ["height", "colour"]
    names, inputs, notes, problems = read_inputs([str(table)], model.input_shape, model.columns)
    assert (len(names), inputs.shape, notes, problems) == (120, (120, 4), [], [])
    stored = {tuple(row) for row in ricnet.data.load(f"{table}#kind").train.inputs.tolist()}
    assert stored <= {tuple(row) for row in inputs.tolist()}


def test_rows_on_standard_input_in_another_order(
    table_run: Path, monkeypatch: pytest.MonkeyPatch, run_ric: RunRic, refused: Refused
) -> None:
    give(monkeypatch, b"colour\theight\tmore\nred\t9.5\t1\ngreen\t\t2\n")
    said = run_ric("predict", table_run, "-", "--json")
    first, second = said.records
    assert (first["input"], first["answer"], second["input"]) == ("-:2", "small", "-:3")
    assert "1 of 2 rows have a value of 'colour' that no training row had, such as 'green'" in said.err
    give(monkeypatch, b"colour,height\nred,9\n,\nblue,40\n")
    said = run_ric("predict", table_run, "-", "--json")
    assert [record["input"] for record in said.records] == ["-:2", "-:3", "-:4"]
    assert "1 of 3 rows have an empty 'colour'" in said.err
    for content in (b"height\n1\n", b"\xff\xfe"):
        give(monkeypatch, content)
        refused("standard input", "predict", table_run, "-")


@pytest.mark.parametrize(
    ("run", "given", "names"),
    cases(
        {
            "no image": ("digits_run", "2.png", "2.png"),
            "a missing image": ("digits_run", "none.png", "none.png"),
            "an empty folder": ("digits_run", "void", "void"),
            "arrays of another shape": ("digits_run", "x.npz", "(1, 8, 8)"),
            "a table for images": ("digits_run", "old.csv", ("old.csv", "images")),
            "an image for a table": ("table_run", "0.png", ("0.png", "tables")),
            "images for a table": ("table_run", "*.png", "tables"),
            "a text as a number": ("table_run", "old.csv", ("line 2", "'height'", "'old'")),
        }
    ),
)
def test_inputs_of_another_kind_are_refused(
    run: str, given: str, names: object, broken: Path, refused: Refused, request: pytest.FixtureRequest
) -> None:
    (broken / "void").mkdir()
    (broken / "old.csv").write_text("height,colour\nold,red\n")
    np.savez(broken / "x.npz", x=np.zeros((2, 5)))
    refused(names, "predict", request.getfixturevalue(run), broken / given)


def test_features_from_npz(tmp_path: Path, run_ric: RunRic, refused: Refused) -> None:
    y = np.repeat(["left", "right"], 60)
    np.savez(tmp_path / "t.npz", x=np.random.default_rng(0).normal(4 * (y == "right")[:, None], 1, (120, 3)), y=y)
    run_ric("train", tmp_path / "t.npz", "--out", tmp_path / "run", *TINY)
    assert len(run_ric("predict", tmp_path / "run", tmp_path / "t.npz", "--json").records) == 120
    refused("3 features", "predict", tmp_path / "run", tmp_path)


def test_a_classifier_reads_the_files_that_the_command_takes(
    table_run: Path, digits_run: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits, table = ricnet.load(digits_run), ricnet.load(table_run)
    first, second = broken / "0.png", str(broken / "1.png")
    both = digits.read([first, second])
    assert digits.refine(both).final.shape == (2, 10)
    assert torch.equal(digits.read(np.array([str(first), second])), both)
    assert torch.equal(digits.read(path for path in sorted(broken.glob("[01].png"))), both)
    (broken / "labels.csv").write_text("no image")
    with pytest.warns(UserWarning, match="^skipped: ") as told:
        assert torch.equal(digits.read(broken / "*"), both)
    assert [Path(str(warning.message).split()[1]).name for warning in told] == ["2.png", "labels.csv"]
    with refusal("2.png"):
        digits.read([first, broken / "2.png"])
    monkeypatch.chdir(table_run.parent)
    assert table.refine(table.read("my.csv")).final.shape == (120, 2)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse them before
    for given, said in (
        ([], "nothing to read"),
        (Path().glob("*.nope"), "nothing to read"),
        (b"x.png", "bytes"),
        ([b"x.png"], "bytes"),
        (np.zeros((2, 8, 8)), "refine"),
        (None, "paths"),
    ):
        with refusal(said):
            digits.read(given)


def test_a_final_fit_has_no_coverage(digits_run: Path) -> None:
    """Its validation rows were trained on."""
    model = ricnet.load(digits_run)
    chosen = {"final_fit": True, "epochs": 2, "calibration": "none", "halt_rule": "value"}
    final = replace(model, config=changed(replace(model.config, calibration="none", halt_rule="value"), chosen))
    options = Predict(run=str(digits_run), abstain_below=0.9)
    assert "--final-fit" in _coverage(options, 0.9, final)
    assert "On validation data" in _coverage(options, 0.9, model)
