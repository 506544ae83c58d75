import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ricnet
from made_runs import rewrite, without_manifest
from refusals import cases
from ricnet.data import columns_from_json
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import read_predictions
from ricnet.models.config import Config
from ricnet.models.run import RunFolder, describe_data, read_config
from ricnet.report.card import model_card
from ricnet.report.page import write_page
from ricnet.report.runs import read_run

from .conftest import Refused, RunRic, Said

SPLITS = ("train", "val", "test")
SHORT = ["--method", "supervised", "--epochs", "1", "--device", "cpu"]


@pytest.fixture
def evaluate(run_ric: RunRic) -> Any:
    """What was measured, and what was said about it."""

    def measured(run: Path, *flags: object, data: object = None) -> tuple[dict[str, Any], str]:
        where = [] if data is None else ["--data", data]
        said: Said = run_ric("evaluate", run, *where, "--json", "--device", "cpu", *flags)
        assert said.code == 0, said.err
        return json.loads(said.out), said.err

    return measured


def sizes(measured: tuple[dict[str, Any], str]) -> dict[str, int]:
    return {part: entry["n"] for part, entry in measured[0].items()}


def test_a_run_reproduces_its_evaluation(
    digits_run: Path, evaluate: Any, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping as was chosen, with a row for every step that it was trained to make."""
    (measured, _), stored = evaluate(digits_run), json.loads((digits_run / "evaluation.json").read_text())
    for split in SPLITS:
        assert measured[split]["nll"] == pytest.approx(stored[split]["nll"], abs=1e-5)
        assert measured[split]["mean_cell_evaluations"] == pytest.approx(stored[split]["mean_cell_evaluations"])
        assert len(measured[split]["per_step"]) == len(stored[split]["per_step"]) == 4
    raw, _ = evaluate(digits_run, "--halt-threshold", 0)
    assert raw["test"]["mean_steps"] == pytest.approx(stored.get("raw", stored)["test"]["mean_steps"])
    once, _ = evaluate(digits_run, "--max-steps", 1, "--readout", "implied")
    assert once["test"]["mean_steps"] == 1
    monkeypatch.setenv("COLUMNS", "80")
    shown = run_ric("evaluate", digits_run)
    assert all(words in shown.out for words in ("mean cell evaluations", "test recall, lowest first", " taken for "))
    assert shown.err == ""
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert len(shown.out.splitlines()) <= 25


def test_classes_and_confusions_are_named(digits_run: Path, evaluate: Any) -> None:
    classes = evaluate(digits_run)[0]["test"]["classes"]
    kept = read_predictions(digits_run)
    labels, answers = kept.labels.numpy(), kept.log_beliefs.argmax(1).numpy()
    assert [entry["class"] for entry in classes] == [str(k) for k in range(10)]
    for k, entry in enumerate(classes):
        mine, said = labels == k, answers == k
        assert entry["n"] == mine.sum()
        assert entry["recall"] == pytest.approx((mine & said).sum() / mine.sum())
        assert entry["precision"] == (pytest.approx((mine & said).sum() / said.sum()) if said.any() else None)
        assert entry["answers"] == {str(j): int(n) for j, n in enumerate(np.bincount(answers[mine])) if n}


def test_a_threshold_of_a_method_without_a_value_is_refused(tmp_path: Path, run_ric: RunRic, refused: Refused) -> None:
    run_ric("train", "--out", tmp_path / "sl", *SHORT)
    refused("--halt-threshold", "evaluate", tmp_path / "sl", "--halt-threshold", "1")


def test_data_of_another_shape_or_without_a_name_is_refused(
    table_run: Path, digits_run: Path, image_folder: Path, refused: Refused
) -> None:
    refused("(3, 8, 8)", "evaluate", digits_run, "--data", image_folder)
    refused("empty", "evaluate", table_run, "--data", "")
    refused("class", "train", table_run.parent / "my.csv")


@pytest.mark.parametrize(
    ("run", "data", "names"),
    cases(
        {
            "images for a table": ("table_run", "{images}", ("holds images", ".csv")),
            "a data set of images for a table": ("table_run", "cifar10", "cifar10 holds images"),
            "a table for images": ("digits_run", "other.csv", ("is a table", "images")),
            "texts for images": ("digits_run", "{texts}", ("holds texts", "images")),
            "an address": ("digits_run", "https://example.org/my.csv", "URL"),
        }
    ),
)
def test_data_of_another_kind_is_refused_before_it_is_read(
    run: str,
    data: str,
    names: object,
    image_folder: Path,
    refused: Refused,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    path = request.getfixturevalue(run)
    (tmp_path / "texts" / "good").mkdir(parents=True)
    (tmp_path / "texts" / "good" / "1.txt").write_text("a good dog")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ricnet.apps.commands.evaluate.load_data", None)
        refused(names, "evaluate", path, "--data", data.format(images=image_folder, texts=tmp_path / "texts"))


def test_other_photographs_are_evaluated_at_the_size_the_model_knows(
    tmp_path: Path, image_folder: Path, evaluate: Any, run_ric: RunRic
) -> None:
    run, others = tmp_path / "run", tmp_path / "others"
    run_ric("train", image_folder, "--out", run, "--resolution", 8, *SHORT)
    stored = json.loads((run / "evaluation.json").read_text())["test"]["nll"]
    assert evaluate(run, data=image_folder)[0]["test"]["nll"] == pytest.approx(stored, rel=1e-4)
    for name in ("bright/0.png", "bright/1.png", "dark/0.png"):
        (others / name).parent.mkdir(parents=True, exist_ok=True)
        Image.open(image_folder / name).resize((20, 30)).save(others / name)
    assert sizes(evaluate(run, data=others)) == {"test": 3}


def test_a_table_can_be_evaluated_and_a_run_on_it_repeated(
    table_run: Path, tmp_path: Path, evaluate: Any, run_ric: RunRic
) -> None:
    stored = json.loads((table_run / "evaluation.json").read_text())["test"]["nll"]
    for data in (None, table_run.parent / "my.csv", f"{table_run.parent}/my.csv#kind"):
        assert evaluate(table_run, data=data)[0]["test"]["nll"] == pytest.approx(stored, rel=1e-4)
    again = tmp_path / "again"
    run_ric("train", "--config", table_run, "--out", again, "--device", "cpu")
    assert read_config(again)["config"] == read_config(table_run)["config"]
    assert (again / "model.safetensors").read_bytes() == (table_run / "model.safetensors").read_bytes()


def test_a_table_that_has_changed_since_is_noted(table_run: Path, tmp_path: Path, evaluate: Any) -> None:
    run, table = without_manifest(shutil.copytree(table_run, tmp_path / "run")), tmp_path / "my.csv"
    rewrite(run / "config.json", lambda stored: stored["config"].update(data=f"{table}#kind"))
    header, *rows = (table_run.parent / "my.csv").read_text().splitlines()
    for changed, expected in ((rows, False), (rows[::-1], True)):
        table.write_text("\n".join([header, *changed]))
        _, said = evaluate(run)
        assert ("differs from the data that the run was trained on" in said) is expected


def test_another_table_is_measured_as_a_whole(table_run: Path, tmp_path: Path, evaluate: Any, refused: Refused) -> None:
    header, *rows = (table_run.parent / "my.csv").read_text().splitlines()
    stored = json.loads((table_run / "evaluation.json").read_text())
    whole = {name: stored[name]["n"] for name in SPLITS}
    other = tmp_path / "other.csv"
    for lines, expected in (
        ([*rows[:7], rows[7].replace("tall", "NA")], {"test": 7}),
        (rows[1:8:2], {"test": 4}),  # of one class, which is the model's second
        (rows, whole),  # a copy
        (rows[::-1], {"test": 120}),  # the same rows, but not in their order
    ):
        other.write_text("\n".join([header, *lines]))
        measured = evaluate(table_run, data=other)
        assert sizes(measured) == expected
        assert len(lines) != 4 or measured[0]["test"]["accuracy"] == 1
    known = re.search(r"note: (\d+) of 120 test rows of .* are exact copies of training", measured[1])
    assert known is not None
    assert 120 > int(known[1]) >= whole["train"] + whole["val"] == 90
    other.write_text("\n".join([header, rows[0], rows[1].replace(",tall", ",huge")]))
    refused("huge", "evaluate", table_run, "--data", other)


def test_training_data_must_still_have_its_classes(
    tmp_path: Path, evaluate: Any, run_ric: RunRic, refused: Refused
) -> None:
    table, run, other = tmp_path / "my.csv", tmp_path / "run", tmp_path / "other.csv"
    rows = [f"{row % 3},{('none', 'minor', 'major')[row % 3]}" for row in range(24)]
    table.write_text("\n".join(["size,damage", *rows, "1,?"]))
    run_ric("train", table, "--target", "damage", "--out", run, *SHORT)
    assert "note: 1 row has no 'damage' (counted as missing: '?'" in evaluate(run)[1]
    other.write_text("\n".join(["size,damage", "0,none", "0,none"]))
    measured = evaluate(run, data=other)
    assert sizes(measured) == {"test": 2}
    assert f"note: {other}#damage lacks classes that the model knows: major, minor." in measured[1]
    table.write_text("\n".join(["size,damage", *(row for row in rows if "major" not in row)]))
    for data in ([], ["--data", table]):
        refused(("my.csv#damage", "lacks major"), "evaluate", run, *data)
    table.write_text("\n".join(["size,damage", *rows, *["9,total"] * 3]))
    refused("adds total", "evaluate", run)


def write_digits(place: Path, names: list[str]) -> Path:
    """Images of 8 × 8 pixels in a folder."""
    for number, name in enumerate(names):
        (place / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 9 * number).save(place / name / f"{number}.png")
    return place


def test_other_data_may_be_of_one_class(table_run: Path, digits_run: Path, tmp_path: Path, evaluate: Any) -> None:
    rows, arrays, folder = tmp_path / "other.csv", tmp_path / "other.npz", write_digits(tmp_path / "other", ["3", "3"])
    rows.write_text("height,colour,kind\n40,blue,tall\n41,blue,tall\n")
    np.savez(arrays, x=np.zeros((2, 8, 8), np.uint8), y=np.array([3, 3]))
    for run, place in ((table_run, rows), (digits_run, folder), (digits_run, arrays)):
        measured = evaluate(run, data=place)
        assert sizes(measured) == {"test": 2}
        assert "lacks classes that the model knows: " in measured[1]


def test_a_test_part_is_measured_whatever_the_train_part_beside_it_is(
    digits_run: Path, tmp_path: Path, evaluate: Any
) -> None:
    folder, arrays = tmp_path / "folder", tmp_path / "arrays.npz"
    write_digits(folder / "train", ["3", "5"])
    write_digits(folder / "test", ["3", "5", "5"])
    x, y = np.zeros((5, 8, 8), np.uint8), np.array([3, 5, 5, 3, 5])
    np.savez(arrays, x_train=x[:2], y_train=y[:2], x_test=x[2:], y_test=y[2:])
    for place in (folder, arrays):
        assert sizes(evaluate(digits_run, data=place)) == {"train": 2, "test": 3}


def test_an_error_on_the_way_to_recognise_a_copy_is_no_secret(
    table_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate: Any, refused: Refused
) -> None:
    def read_once(*given: Any, undivided: bool = False, **how: Any) -> ricnet.data.Dataset:
        if not undivided:
            raise RicnetError("the disk is gone")
        return load(*given, undivided=True, **how)

    load, copy = ricnet.data.load, tmp_path / "copy.csv"
    copy.write_text((table_run.parent / "my.csv").read_text())
    monkeypatch.setattr("ricnet.apps.commands.evaluate.load_data", read_once)
    refused("the disk is gone", "evaluate", table_run, "--data", copy)
    lonely = copy.read_text().replace(",small", ",tall").replace(",tall", ",small", 2)  # as many, in parts too small
    copy.write_text(lonely)
    assert sizes(evaluate(table_run, data=copy))["test"] == 120


def test_a_run_of_fewer_rows_is_measured_on_those_it_learned_from(
    tmp_path: Path, run_ric: RunRic, evaluate: Any
) -> None:
    """Also of a copy: the rows that were left out of training do not pass for test data."""
    table, copy, run = tmp_path / "my.csv", tmp_path / "copy.csv", tmp_path / "run"
    table.write_text("size,kind\n" + "".join(f"{i % 40}.5,{'ab'[i % 2]}\n" for i in range(200)))
    copy.write_text(table.read_text())
    said = run_ric("train", f"{table}#kind", "--train-fraction", "0.5", "--out", run, *SHORT)
    assert said.code == 0, said.err
    stored = json.loads((run / "config.json").read_text())
    assert (stored["config"]["train_fraction"], stored["data"]["rows"]) == (0.5, {"train": 68, "val": 15, "test": 50})
    measured = evaluate(run)
    assert sizes(measured) == {"train": 68, "val": 15, "test": 50}
    assert "differs from the data that the run" not in measured[1]
    assert sizes(evaluate(run, data=f"{copy}#kind"))["test"] == 50


def test_validation_rows_of_a_final_fit_are_not_shown_as_held_out(
    tmp_path: Path, run_ric: RunRic, evaluate: Any, refused: Refused
) -> None:
    """They are among its training rows. The curves of the report and the card of the model say so too."""
    table, copy, run = tmp_path / "my.csv", tmp_path / "copy.csv", tmp_path / "run"
    table.write_text("size,kind\n" + "".join(f"{i % 40}.5,{'ab'[i % 2]}\n" for i in range(200)))
    copy.write_text(table.read_text())
    final = [f"{table}#kind", "--final-fit", *SHORT, "--out"]
    assert run_ric("train", *final, run).code == 0
    for data in (None, f"{table}#kind", f"{copy}#kind"):
        assert sizes(evaluate(run, data=data)) == {"train": 150, "test": 50}
    record = read_run(run)
    assert "Training scores after every epoch" in write_page([record], run / "report.html").read_text()
    card = model_card(record.config, record.data, "x", record)
    assert "150 to train on, 50 to test" in card
    assert "epoch 1, the last one" in card
    refused(("--tune", "--final-fit"), "predict", run, copy, "--tune", "macro_f1")
    assert "trained on too (--final-fit)" in run_ric("train", *final, tmp_path / "all", "--test-fraction", 0).out
    assert sizes(evaluate(tmp_path / "all")) == {"train": 200}


def test_columns_are_kept_with_the_run(tmp_path: Path, table_run: Path) -> None:
    table = ricnet.data.load(f"{table_run.parent}/my.csv#kind")
    RunFolder(tmp_path).begin(Config(), table, torch.device("cpu"))
    assert columns_from_json(read_config(tmp_path)["data"]["columns"], "config.json") == table.columns
    assert json.loads((tmp_path / "config.json").read_text())["data"] == describe_data(table)
    RunFolder(tmp_path).begin(Config(), ricnet.data.load("digits"), torch.device("cpu"))
    assert "columns" not in read_config(tmp_path)["data"]
