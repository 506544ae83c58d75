import csv
import io
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import ricnet
from ricnet.apps.cli import main

from .conftest import TINY
from .test_cli import refused


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three of scikit-learn's digits as PNG files."""
    folder = tmp_path / "some"
    folder.mkdir()
    for i, pixels in enumerate(load_digits().images[:3]):
        Image.fromarray((pixels * 255 / 16).round().astype(np.uint8)).save(folder / f"{i}.png")
    return folder


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict]:
    capsys.readouterr()
    main([str(argument) for argument in arguments])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_files_a_folder_and_an_npz_give_the_same_answers(
    digits_run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(images.iterdir())
    np.savez(tmp_path / "x.npz", x=np.stack([np.asarray(Image.open(f)) for f in files]))
    by_file = lines(capsys, "predict", digits_run, *files, "--json", "--top", "10")
    by_folder = lines(capsys, "predict", digits_run, images, "--json", "--top", "10")
    by_array = lines(capsys, "predict", digits_run, tmp_path / "x.npz", "--json", "--top", "10")
    assert by_file == by_folder
    assert [r["input"] for r in by_array] == [f"{tmp_path / 'x.npz'}[{i}]" for i in range(3)]
    for left, right in zip(by_file, by_array, strict=True):
        assert left["top"] == right["top"]
    expected = ricnet.load(digits_run).refine(torch.from_numpy(np.load(tmp_path / "x.npz")["x"])[:, None])
    for row, record in enumerate(by_file):
        assert record["confidence"] == pytest.approx(expected.final[row].exp().max().item(), rel=1e-5)
        assert record["steps"] == expected.halt_step[row].item()
        assert sum(entry["probability"] for entry in record["top"]) == pytest.approx(1, abs=1e-5)


def test_trace_shows_the_belief_after_each_step(
    digits_run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [record] = lines(capsys, "predict", digits_run, images / "0.png", "--trace", "--json")
    assert np.allclose(np.sum(record["beliefs"], axis=1), 1, atol=1e-5)
    assert len(record["beliefs"]) == len(record["values"]) == 4
    main(["predict", str(digits_run), str(images / "0.png"), "--trace"])
    shown = capsys.readouterr().out
    assert "◀" in shown
    assert all(f"\n {step:>3} " in shown or f"\n  {step:>2}" in shown or f" {step} " in shown for step in range(1, 5))


def test_max_steps_and_halting(digits_run: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {r["steps"] for r in lines(capsys, "predict", digits_run, images, "--json", "--max-steps", "1")} == {1}
    assert {r["steps"] for r in lines(capsys, "predict", digits_run, images, "--json", "--halt-threshold", "99")} == {1}
    assert {r["steps"] for r in lines(capsys, "predict", digits_run, images, "--json", "--halt-threshold=-99")} == {4}
    assert "--max-steps 0" in refused(capsys, "predict", digits_run, images, "--max-steps", "0")
    assert "--top 0" in refused(capsys, "predict", digits_run, images, "--top", "0")


def test_a_deadline_leaves_each_input_the_steps_there_is_time_for(
    digits_run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager = ("predict", digits_run, images, "--json", "--halt-threshold=-99")
    assert [r["steps"] for r in lines(capsys, *eager, "--max-ms", "1e6")] == [4, 4, 4]
    hurried = lines(capsys, *eager, "--max-ms", "1e-6")
    assert [r["steps"] for r in hurried] == [1, 1, 1]
    one_step = lines(capsys, *eager, "--max-steps", "1")
    assert [r["confidence"] for r in hurried] == pytest.approx([r["confidence"] for r in one_step], rel=1e-5)
    assert [len(r["beliefs"]) for r in lines(capsys, *eager, "--max-ms", "1e-6", "--trace")] == [1, 1, 1]
    assert "--max-ms 0.0" in refused(capsys, "predict", digits_run, images, "--max-ms", "0")


def test_the_stored_examples_can_be_predicted(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["predict", str(digits_run), str(digits_run / "examples.npz")])
    assert "confidence" in capsys.readouterr().out


def test_bad_inputs_are_named(digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.png").write_text("no image")
    assert "text.png" in refused(capsys, "predict", digits_run, tmp_path / "text.png")
    assert "none.png does not exist" in refused(capsys, "predict", digits_run, tmp_path / "none.png")
    (tmp_path / "void").mkdir()
    assert "void" in refused(capsys, "predict", digits_run, tmp_path / "void")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 5)))
    assert "(1, 8, 8)" in refused(capsys, "predict", digits_run, tmp_path / "x.npz")


def test_own_images_from_folder_to_answer(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of images trains with no option given but the time it may take, and tells bright from dark."""
    run = tmp_path / "run"
    main(
        [
            "train",
            str(image_folder),
            "--out",
            str(run),
            "--epochs",
            "30",
            "--width",
            "0.2",
            "--horizon",
            "4",
            "--device",
            "cpu",
        ]
    )
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["test"]["accuracy"] == 1
    records = lines(capsys, "predict", run, image_folder / "dark", "--json")
    assert {record["answer"] for record in records} == {"dark"}


def test_features_from_npz(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    y = np.repeat(["left", "right"], 60)
    x = random.normal(0, 1, (120, 3)) + 4 * (y == "right")[:, None]
    np.savez(tmp_path / "table.npz", x=x, y=y)
    main(["train", str(tmp_path / "table.npz"), "--out", str(tmp_path / "run"), *TINY])
    records = lines(capsys, "predict", tmp_path / "run", tmp_path / "table.npz", "--json")
    assert len(records) == 120
    assert "3 features" in refused(capsys, "predict", tmp_path / "run", tmp_path)


def test_evaluate(digits_run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads((digits_run / "evaluation.json").read_text())
    capsys.readouterr()
    main(["evaluate", str(digits_run), "--json"])
    measured = json.loads(capsys.readouterr().out)
    for part in ("train", "val", "test"):
        assert measured[part]["nll"] == pytest.approx(stored[part]["nll"], rel=1e-4)
    main(["evaluate", str(digits_run), "--json", "--max-steps", "1", "--readout", "implied"])
    assert json.loads(capsys.readouterr().out)["test"]["mean_steps"] == 1
    main(["evaluate", str(digits_run)])
    shown = capsys.readouterr()
    assert "mean cell evaluations" in shown.out
    rows = {part: f"{measured[part]['n']:,}" for part in ("train", "val", "test")}
    assert shown.err.splitlines() == [f"measuring {part}: {n} images …" for part, n in rows.items()]
    assert "inputs of shape (3, 8, 8)" in refused(capsys, "evaluate", digits_run, "--data", image_folder)
    # A run of another method has no value to compare with a threshold.
    supervised = digits_run.parent / "supervised"
    if not supervised.exists():
        main(["train", "--method", "supervised", "--out", str(supervised), "--epochs", "1", "--device", "cpu"])
    assert "--halt-threshold means nothing" in refused(capsys, "evaluate", supervised, "--halt-threshold", "1")


def test_report_compares_runs(digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(digits_run), "--out", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures")])
    assert "RIC" in capsys.readouterr().out
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".pdf"}


def test_a_closed_pipe_is_no_error(digits_run: Path) -> None:
    assert os.system(f"ric predict {digits_run} {digits_run / 'examples.npz'} --json | head -n 1 > {os.devnull}") == 0


def test_names_with_brackets_are_shown_as_they_are(
    digits_run: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brackets mean styles to the library that prints for us; [/b] would even be an error."""
    odd = tmp_path / "o[bold]d"
    odd.mkdir()
    (images / "0.png").rename(odd / "a[red].png")
    (odd / "b.png").write_text("broken")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    main(["predict", str(digits_run), odd.name])
    captured = capsys.readouterr()
    assert "o[bold]d/a[red].png" in captured.out
    assert "skipped: " in captured.err
    assert "b.png" in captured.err
    y = np.repeat(["[/bold]", "right"], 40)
    np.savez(odd / "t[b].npz", x=np.random.default_rng(0).normal(size=(80, 3)), y=y)
    main(["train", str(odd / "t[b].npz"), "--out", str(odd / "run"), *TINY])
    main(["predict", str(odd / "run"), str(odd / "t[b].npz"), "--top", "2"])
    assert "[/bold]" in capsys.readouterr().out


def test_a_run_can_be_resumed_from_another_folder_and_with_a_trailing_slash(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(image_folder.parent)
    run = tmp_path / "run"
    begin = ["train", f"{image_folder.name}/", "--out", str(run), *TINY, "--checkpoint-seconds", "0"]
    with monkeypatch.context() as patch:
        patch.setattr("ricnet.training.console.StopRequest.asked", True, raising=False)
        patch.setattr("ricnet.training.console.StopRequest.__init__", lambda self: setattr(self, "_before", {}))
        with pytest.raises(SystemExit) as end:
            main(begin)
    assert end.value.code == 130
    assert "Go on with: ric train --out" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    again = ("train", "--out", run, "--resume")
    assert "but --seed changes them; leave it out" in refused(capsys, *again, "--seed", "4")
    changed = refused(capsys, *again, "--epochs", "3", "--width", "1", "--horizon", "5")
    assert "but --horizon and --width and --epochs change them; leave them out" in changed
    image_folder.rename(moved := image_folder.with_name("moved"))
    said = refused(capsys, *again)
    moved.rename(image_folder)
    assert f"{image_folder}, the data that {run} began with, is not there any more" in said
    assert "cifar10" not in said
    main(["train", str(image_folder), "--out", str(run), "--resume", "--device", "cpu"])
    assert (run / "evaluation.json").exists()


def test_refine_takes_numpy_and_refuses_images_that_are_not_bytes(digits_run: Path) -> None:
    model = ricnet.load(digits_run)
    pixels = np.load(digits_run / "examples.npz")["x"]
    torch.testing.assert_close(model.refine(pixels).final, model.refine(torch.from_numpy(pixels)).final)
    with pytest.raises(ricnet.RicnetError, match=r"uint8 from 0 to 255, not torch\.float64"):
        model.refine(pixels / 255)


def test_csv_is_what_a_spreadsheet_reads(digits_run: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = lines(capsys, "predict", digits_run, images, "--json", "--top", "2")
    main(["predict", str(digits_run), str(images), "--csv", "--top", "2"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0])[4:] == ["class_1", "probability_1", "class_2", "probability_2"]
    for row, record in zip(rows, records, strict=True):
        assert (row["input"], row["answer"], int(row["steps"])) == (record["input"], record["answer"], record["steps"])
        assert float(row["confidence"]) == record["confidence"]
        assert (row["class_2"], float(row["probability_2"])) == tuple(record["top"][1].values())
    main(["predict", str(digits_run), str(images), "--csv"])
    assert capsys.readouterr().out.splitlines()[0] == "input,answer,confidence,steps"
    assert "--csv and --json" in refused(capsys, "predict", digits_run, images, "--csv", "--json")
    assert "--csv and --trace" in refused(capsys, "predict", digits_run, images, "--csv", "--trace")


def test_below_a_confidence_it_is_unsure_and_says_what_that_was_worth(
    digits_run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sure = lines(capsys, "predict", digits_run, images, "--json")
    between = float(np.median([record["confidence"] for record in sure]))  # three images: the middle one is answered
    main(["predict", str(digits_run), str(images), "--json", "--abstain-below", str(between)])
    captured = capsys.readouterr()
    said = [json.loads(line) for line in captured.out.splitlines()]
    expected = ["unsure" if record["confidence"] < between else record["answer"] for record in sure]
    assert [record["answer"] for record in said] == expected
    assert expected.count("unsure") == 1
    with np.load(digits_run / "predictions.npz") as stored:
        beliefs, labels = np.exp(stored["val_log_beliefs"]), stored["val_labels"]
    answered = beliefs.max(1) >= between
    wrong = int((beliefs.argmax(1) != labels)[answered].sum())
    assert f"{answered.sum()} of {len(labels)} answers had a confidence of {between:g} or more" in captured.err
    assert f"{wrong} of them {'was' if wrong == 1 else 'were'} wrong" in captured.err
    for more, shown in ((["--top", "2"], "unsure"), (["--trace"], "unsure ("), (["--csv"], ",unsure,")):
        main(["predict", str(digits_run), str(images), "--abstain-below", "1", *more])
        assert shown in capsys.readouterr().out
    main(["predict", str(digits_run), str(images), "--abstain-below", "0.5", "--max-ms", "50"])
    assert "with --max-ms was not measured on validation data" in capsys.readouterr().err
    assert "--abstain-below 1.5" in refused(capsys, "predict", digits_run, images, "--abstain-below", "1.5")


def test_without_inputs_and_without_examples_there_is_nothing_to_classify(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("config.json", "model.safetensors"):
        shutil.copy(digits_run / file, tmp_path)
    assert "needs something to classify" in refused(capsys, "predict", tmp_path)


def test_without_inputs_the_examples_of_the_run_are_taken(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "predict", digits_run, "--json") == lines(
        capsys, "predict", digits_run, digits_run / "examples.npz", "--json"
    )
    main(["predict", str(digits_run)])
    shown = capsys.readouterr()
    count = len(np.load(digits_run / "examples.npz")["x"])
    assert shown.err == f"note: no input given: these are the {count} test images stored with the model\n"
    assert [line.split("  ")[0] for line in shown.out.splitlines()[1:]] == [f"example {row}" for row in range(count)]
    main(["predict", str(digits_run), str(digits_run / "examples.npz"), "--csv"])
    given = capsys.readouterr()
    assert (given.out.splitlines()[5].split(",")[0], given.err) == (f"{digits_run / 'examples.npz'}[4]", "")


def test_all_who_use_an_unfinished_run_are_told(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    shutil.copytree(digits_run, run)
    (run / "evaluation.json").unlink()
    (run / "state.pt").touch()
    monkeypatch.setattr("ricnet.apps.commands.serve.serve", lambda *_: None)
    monkeypatch.setattr("ricnet.apps.commands.export.export_onnx", refuse)
    note = f"note: {run} is not finished (epoch 2 of 2); this is the best so far. "
    note += f"Go on with: ric train --out '{run}' --resume\n"
    for words in (["predict"], ["evaluate"], ["serve", "--port", "0"], ["export", "--out", str(tmp_path / "m.onnx")]):
        for folder, told in ((run, 1), (digits_run, 0)):
            capsys.readouterr()
            with suppress(SystemExit):
                main([words[0], str(folder), *words[1:]])
            assert capsys.readouterr().err.count(note) == told, words


def refuse(*_: object) -> None:
    raise ricnet.RicnetError("enough for a test")


def test_other_photographs_are_evaluated_at_the_size_the_model_knows(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--method", "supervised", "--resolution", "8", "--epochs", "1", "--device", "cpu"]
    main(["train", str(image_folder), "--out", str(tmp_path / "run"), *short])
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "run"), "--data", str(image_folder), "--json"])
    stored = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert json.loads(capsys.readouterr().out)["test"]["nll"] == pytest.approx(stored["test"]["nll"], rel=1e-4)
    for name in ("bright/0.png", "bright/1.png", "dark/0.png"):
        Image.open(image_folder / name).resize((20, 30)).save(_below(tmp_path / "others", name))
    main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "others"), "--json"])
    assert {part: entry["n"] for part, entry in json.loads(capsys.readouterr().out).items()} == {"test": 3}


def _below(folder: Path, name: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    return folder / name


def test_batches_are_made_to_fit_into_memory_unless_asked_for(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ricnet.training.api.free_bytes", lambda _: 1)

    def trained(*flags: str) -> tuple[int, str]:
        short = ["--method", "supervised", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path), "--overwrite"]
        main(["train", str(image_folder), *short, *flags])
        stored = json.loads((tmp_path / "config.json").read_text())["config"]
        return stored["optimization"]["batch_size"], capsys.readouterr().err

    size, said = trained()
    assert size == 13  # 27 rows to train on, halved once
    assert "note: Batches of 13 instead of 27, to fit into 0.0 GB of free memory." in said
    size, said = trained("--batch-size", "20")
    assert (size, "note: " in said) == (20, False)
