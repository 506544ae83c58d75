"""`ric train`: interruptions, resuming, notes and results."""

import importlib
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ricnet
from ricnet.models.run import LOCK, RunFolder
from ricnet.report.page import page_html
from ricnet.report.runs import group_seeds, read_run
from ricnet.training import api, trainer

from .conftest import TINY, Refused, RunRic

QUICK = ["--epochs", "1", "--width", "0.1", "--method", "supervised", "--device", "cpu"]


@pytest.mark.parametrize(("flags", "width"), [([], 1.0), (["--width", "0.1"], 0.1)])
def test_a_named_encoder_keeps_its_width_unless_a_flag_sets_it(
    flags: list[str], width: float, tmp_path: Path, run_ric: RunRic
) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((40, 24, 24), np.uint8), y=np.arange(40) % 2)
    short = ["--epochs", "1", "--method", "supervised", "--device", "cpu", "--out", tmp_path / "run"]
    run_ric("train", tmp_path / "x.npz", "--encoder", "resnet10", *flags, *short)
    network = ricnet.load(tmp_path / "run").config.network
    assert (network.encoder, network.width, network.stem) == ("resnet10", width, "auto")


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """Ctrl-C is heard, also where the tests were started in the background, whose processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("place", ["api.load_data", "api.Trainer._built_in"])
def test_ctrl_c_before_there_is_a_run_leaves_no_folder(
    place: str, tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"ricnet.training.{place}", interrupt)
    said = run_ric("train", "--out", tmp_path / "run", *QUICK)
    assert (said.code, said.err.splitlines()[-1].startswith("ric: stopped before it was done")) == (130, True)
    assert not (tmp_path / "run").exists()


def test_ctrl_c_elsewhere_is_not_silent(run_ric: RunRic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", interrupt)
    said = run_ric("train")
    assert (said.code, "stopped before it was done" in said.err) == (130, True)


def test_the_same_command_goes_on_until_it_is_done(
    tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the first checkpoint, within an update (as while code is compiled), and at the very end."""
    learn, out = api.Trainer._learn, tmp_path / "parts"
    command = ["train", "digits", "--out", out, "--resume", *QUICK]

    def interrupted(trainer: api.Trainer, rows: Any) -> None:
        interrupt()
        learn(trainer, rows)

    for target, name, stand_in, words in (
        (api.Trainer, "run", interrupt, "the state saved before is intact"),
        (api.Trainer, "_learn", interrupted, "stopped after 1 of "),
        (trainer, "_named", interrupt, "stopped"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, stand_in)
            said = run_ric(*command)
        assert ("before its first checkpoint" in said.err) == (name == "_learn")
        assert (said.code, words in said.err.splitlines()[-1]) == (130, True)
        assert said.err.rstrip().endswith(f"Go on with: ric train --out {out} --resume")
    run_ric(*command)
    run_ric("train", "digits", "--out", tmp_path / "whole", *QUICK)
    parts, whole = (RunFolder(tmp_path / name) for name in ("parts", "whole"))
    assert parts.model.read_bytes() == whole.model.read_bytes()


def test_resume_starts_a_run_that_is_not_there_yet(tmp_path: Path, run_ric: RunRic, refused: Refused) -> None:
    fresh, killed = tmp_path / "fresh", tmp_path / "killed"
    killed.mkdir()
    (killed / LOCK).touch()
    (killed / ".config.json.draft").touch()
    for out in (fresh, killed):
        assert f"{out} holds no run yet" in run_ric("train", "digits", "--out", out, "--resume", *QUICK).err
        assert RunFolder(out).finished
    assert not (killed / LOCK).exists()
    settings: dict[str, Any] = {"epochs": 1, "width": 0.1, "method": "supervised", "device": "cpu"}
    ricnet.train("digits", out=tmp_path / "python", resume=True, **settings)
    assert RunFolder(tmp_path / "python").finished
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    refused(tmp_path / "mine", "train", "--out", tmp_path / "mine", "--resume", *QUICK)  # which is not a run
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_run_can_be_resumed_from_another_folder_and_with_a_trailing_slash(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_ric: RunRic, refused: Refused
) -> None:
    monkeypatch.chdir(image_folder.parent)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("ricnet.training.console.StopRequest.received", True, raising=False)
        patch.setattr("ricnet.training.console.StopRequest.__init__", lambda self: setattr(self, "_before", {}))
        said = run_ric("train", f"{image_folder.name}/", "--out", run, *TINY, "--checkpoint-seconds", 0)
    assert (said.code, "Go on with: ric train --out" in said.err) == (130, True)
    monkeypatch.chdir(tmp_path)
    again = ("train", "--out", run, "--resume")
    refused("--seed", *again, "--seed", "4")
    refused(("--horizon", "--width", "--epochs"), *again, "--epochs", "3", "--width", "1", "--horizon", "5")
    image_folder.rename(moved := image_folder.with_name("moved"))
    refused((image_folder, run), *again)
    moved.rename(image_folder)
    run_ric("train", image_folder, "--out", run, "--resume", "--device", "cpu")
    assert (run / "evaluation.json").exists()


def test_a_preset_batch_size_is_lowered_to_fit_into_memory(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch, run_ric: RunRic
) -> None:
    monkeypatch.setattr("ricnet.training.network.free_bytes", lambda _: 1)
    short = ["--method", "supervised", "--epochs", "1", "--device", "cpu", "--out", tmp_path, "--overwrite"]
    for flags, size, noted in (([], 13, True), (["--batch-size", "20"], 20, False)):  # 27 rows, halved once
        said = run_ric("train", image_folder, *short, *flags)
        stored = json.loads((tmp_path / "config.json").read_text())["config"]
        assert stored["optimization"]["batch_size"] == size
        assert ("note: Batches of 13 instead of 27" in said.err) is noted


def test_the_output_of_training_names_the_choices(tmp_path: Path, run_ric: RunRic) -> None:
    tiny = ["--epochs", "1", "--width", "0.1", "--horizon", "3", "--device", "cpu"]
    shown = " ".join(run_ric("train", "--out", tmp_path / "run", *tiny).out.split())
    assert re.search(r"halting: .* on 135 validation examples", shown)
    assert "temperature " in shown
    raw = run_ric("train", "--out", tmp_path / "raw", *tiny, "--halt-rule", "value", "--calibration", "none")
    assert "validation examples" not in raw.out


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """200 rows that a straight line tells apart, with a column of words and some gaps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    lines = [
        f"{a:.3f},{'' if i % 9 == 0 else f'{b:.3f}'},{'red' if a > 0 else 'blue'},{'yes' if a + b > 0 else 'no'}"
        for i, (a, b) in enumerate(x)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["length,width,colour,sold", *lines]))
    return tmp_path / "rows.csv"


def test_a_table_is_compared_with_baselines(table: Path, tmp_path: Path, run_ric: RunRic) -> None:
    """After two epochs logistic regression is better; what two epochs have not learned is no news."""
    said = run_ric("train", table, "--target", "sold", "--out", tmp_path / "run", "--epochs", 2, "--device", "cpu")
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for name, entry in evaluation["baselines"].items():
        row = next(line for line in said.out.splitlines() if line.startswith(name))
        assert f"{100 * entry['accuracy']:.2f}  {entry['ece']:.3f}  {entry['nll']:.3f}" in row
    assert list(evaluation["baselines"]) == ["Logistic regression", "Gradient boosting"]
    [base] = [line for line in said.out.splitlines() if line.startswith("Base rate")]
    assert f"{100 * evaluation['test']['base_rate']:.2f}  " in base
    printed = said.out[: said.out.index("Test set")].splitlines()
    assert max(map(len, printed)) <= 80
    hints = [line for line in said.err.splitlines() if line.startswith("hint: ")]
    assert [line.removeprefix("hint: ") for line in hints] == evaluation["hints"][:1]
    assert "(1 more in report.html)" in said.err
    assert [hint[:24] for hint in evaluation["hints"]] == ["a simpler model is bette", "only 15 validation rows "]
    page = page_html(group_seeds([read_run(tmp_path / "run")]))
    shown = ("Base rate", "Gradient boosting", "Hint: a simpler model is better", "ROC AUC", "Balanced accuracy")
    assert [name for name in shown if name not in page] == []


def test_all_notes_are_printed_and_in_the_report(table: Path, tmp_path: Path, run_ric: RunRic) -> None:
    header, *rows = table.read_text().splitlines()
    dated = [f"{i},same,2024-01-{1 + i % 28:02},{row}" for i, row in enumerate(rows)]
    copies = ["7,same,2024-01-08," + rows[7]] * 40
    table.write_text("\n".join([f"id,always,day,{header}", *dated, *copies, "9,same,2024-01-10,1,1,red,"]))
    said = run_ric("train", table, "--target", "sold", "--out", tmp_path / "run", "--epochs", 1, "--device", "cpu").err
    notes = json.loads((tmp_path / "run" / "evaluation.json").read_text())["notes"]
    page = unescape(page_html(group_seeds([read_run(tmp_path / "run")])))
    for part in ("Columns read as dates", "left out", "copies"):
        assert [note for note in notes if part in note], part
    assert [note for note in notes if note not in said.replace("\n", " ") or f"Note: {note}" not in page] == []


def test_baselines_can_be_left_out(table: Path, tmp_path: Path, run_ric: RunRic) -> None:
    flags = ["--epochs", 1, "--device", "cpu", "--no-baselines"]
    said = run_ric("train", table, "--target", "sold", "--out", tmp_path / "run", *flags)
    assert "Logistic" not in said.out + said.err
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["baselines"] == {}
    ricnet.train(table, target="sold", out=tmp_path / "again", epochs=1, device="cpu", baselines=False)
    assert json.loads((tmp_path / "again" / "evaluation.json").read_text())["baselines"] == {}


PHOTOS, TABLE, TEXTS, EXITS = "photos", "rows.csv", "texts", "exits"


def make_data(kind: str, folder: Path) -> list[str]:
    """Arguments of `ric train` for a small data set of this kind."""
    shades = np.random.default_rng(0)
    if kind in (PHOTOS, EXITS):
        for name, level in (("dark", 60), ("light", 190)):
            (folder / name).mkdir(parents=True)
            for number in range(20):
                pixels = shades.integers(level - 40, level + 40, (56, 56, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{number}.png")
        return [str(folder), "--epochs", "1", *(["--exits", "stage"] if kind == EXITS else [])]
    if kind == TEXTS:
        for name, words in (("good", "nice lovely great fine"), ("bad", "awful poor sad broken")):
            (folder / name).mkdir(parents=True)
            for number in range(30):
                (folder / name / f"{number}.txt").write_text(" ".join(shades.choice(words.split(), 8)))
        return [str(folder), "--epochs", "2"]
    if kind == TABLE:
        folder.mkdir()
        rows = [
            f"{x:.2f},{i % 3},2024-01-{1 + i % 28},{i},{'rare' if i % 12 == 0 else 'usual'}"
            for i, x in enumerate(shades.normal(size=240))
        ]
        (folder / TABLE).write_text("\n".join(["a,b,day,id,kind", *rows]))
        return [str(folder / TABLE), "--target", "kind"]
    return ["digits", "--epochs", "1", "--horizon", "2", "--width", "0.1"]


@pytest.mark.parametrize("kind", ["digits", PHOTOS, TABLE, TEXTS, EXITS])
def test_a_run_prints_at_most_30_lines_of_80_columns(
    kind: str, tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name in the table of results is wrapped, and only paths are wider."""
    data = make_data(kind, tmp_path / "data")
    monkeypatch.setenv("COLUMNS", "80")
    said = run_ric("train", *data, "--device", "cpu", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    lines = (said.err + said.out).splitlines()
    assert len(lines) <= 30, "\n".join(lines)
    assert [line for line in lines if len(line.rstrip()) > 80 and str(tmp_path) not in line] == []
    table = said.out[said.out.index("───") : said.out.index("Test set")].splitlines()[1:]
    assert all(re.search(r"\d", line) for line in table), table  # a wrapped name has a line without numbers
    notes = json.loads((tmp_path / "run" / "evaluation.json").read_text())["notes"]  # which the report shows
    assert [note for note in notes if note not in " ".join(lines)] == []
    assert said.err.count("note: ") == len(notes)


@pytest.mark.parametrize("exits", [False, True])
def test_a_run_parses_once_and_chooses_its_recipe_once(
    exits: bool, tmp_path: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder is built once: to measure the batches that fit into memory, to count exits, and to be trained."""
    calls: Counter[str] = Counter()
    for place in ("apps.commands.train.read", "training.recipes.preset"):
        count_calls(f"ricnet.{place}", calls, monkeypatch)
    for module in ("models.classifier", "training.network"):
        count_calls(f"ricnet.{module}.build_encoder", calls, monkeypatch)
    monkeypatch.setattr("ricnet.apps.commands.train.preset", lambda *_: pytest.fail("only help needs it"))
    data = make_data(EXITS if exits else PHOTOS, tmp_path / "data")
    assert run_ric("train", *data, "--device", "cpu", "--out", tmp_path / "run").code == 0
    assert calls == {"read": 1, "preset": 1, "build_encoder": 1}


def count_calls(place: str, calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = place.rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **named)

    monkeypatch.setattr(place, counted)
