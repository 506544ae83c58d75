import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ricnet.apps.cli import COMMANDS, main
from ricnet.version import __version__

from .conftest import TINY


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence that a command ends with, having checked that it is one and that the exit code is 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert lines[0].startswith("ric: ")
    assert len(lines) == 1 or lines[0].endswith("cannot read this:"), captured.err  # below which stand tyro's words
    return " ".join(lines)


def test_help_shows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert all(name in capsys.readouterr().out for name in COMMANDS for _ in [main(["--help"])])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: ric {command}" in capsys.readouterr().out


def test_help_of_a_method_shows_its_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for method, shown in (("ric", True), ("supervised", False)):
        with pytest.raises(SystemExit):
            main(["train", "--method", method, "--help-all"])
        assert ("--gae-lambda" in capsys.readouterr().out) is shown


def test_python_dash_m_is_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "ricnet", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"ric {__version__}\n"


def test_wrong_commands_flags_and_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "did you mean train?" in refused(capsys, "trian")
    assert "--foo" in refused(capsys, "train", "--foo", "3")
    assert "did you mean --epochs?" in refused(capsys, "train", "--epoch", "3")
    assert "--horizon is a setting of ric, anytime, act, pondernet, not of supervised; leave it out" in refused(
        capsys, "train", "--method", "supervised", "--horizon", "3"
    )
    assert "--lr" in refused(capsys, "train", "--lr", "fast")
    assert "--method gan is unknown; choose one of: act, anytime, pondernet, ric, supervised" in refused(
        capsys, "train", "--method", "gan"
    )
    assert "--preset slow is unknown" in refused(capsys, "train", "--preset", "slow")
    assert "--gamma 2.0 is out of range" in refused(capsys, "train", "--gamma", "2")
    assert "--encoder vgg is unknown" in refused(capsys, "train", "--encoder", "vgg", "--out", tmp_path / "x")
    assert "'mnits'" in refused(capsys, "train", "mnits")
    assert "--width nan" in refused(capsys, "train", "--width", "nan")
    assert "--device mps is not supported" in refused(capsys, "train", "--device", "mps")
    assert "--device gpu is unknown" in refused(capsys, "train", "--device", "gpu")
    assert "no run at" in refused(capsys, "evaluate", tmp_path / "none")
    assert "is not a run folder" in refused(capsys, "predict", tmp_path)
    assert f"{__file__} is a file and not a run;" in refused(capsys, "predict", __file__)
    assert "RUN" in refused(capsys, "predict")
    assert "at least one run" in refused(capsys, "report")
    assert "needs the name of a data set" in refused(capsys, "data", "get")
    assert "'mnits'" in refused(capsys, "data", "check", "mnits")
    assert "did you mean cifar10?" in refused(capsys, "data", "get", "cifar")
    assert "--max-steps 1000000 is out of range" in refused(capsys, "evaluate", "x", "--max-steps", "1000000")
    assert list(tmp_path.iterdir()) == []


def test_bad_data_is_one_sentence_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def train(data: Path) -> str:
        return refused(capsys, "train", data, "--out", out)

    assert "does not exist" in train(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty" in train(empty)
    single = tmp_path / "single" / "cats"
    single.mkdir(parents=True)
    for i in range(5):
        Image.new("RGB", (9, 9), (i, i, i)).save(single / f"{i}.png")
    assert "cats" in train(single.parent)
    broken = tmp_path / "broken"
    for name in ("cats", "dogs"):
        (broken / name).mkdir(parents=True)
        (broken / name / "1.png").write_bytes(b"no image")
    assert str(broken) in train(broken)
    arrays = tmp_path / "a.npz"
    np.savez(arrays, x=np.zeros((10, 3)), y=np.arange(9) % 2)
    assert "10" in train(arrays)
    assert "9" in train(arrays)
    np.savez(arrays, x=np.full((10, 3), np.nan), y=np.arange(10) % 2)
    assert "nan" in train(arrays)
    assert not out.exists()


def test_train_resume_and_overwrite(capsys: pytest.CaptureFixture[str], digits_run: Path) -> None:
    before = {path.name: path.read_bytes() for path in digits_run.iterdir()}
    assert "holds a finished run" in refused(capsys, "train", "--out", digits_run, *TINY)
    main(["train", "--out", str(digits_run), "--resume"])
    assert "nothing is left to resume" in capsys.readouterr().err
    assert "but --epochs changes them" in refused(capsys, "train", "--out", digits_run, "--resume", "--epochs", "9")
    assert "--encoder mpl" in refused(capsys, "train", "--out", digits_run, "--encoder", "mpl")
    assert {path.name: path.read_bytes() for path in digits_run.iterdir()} == before
    assert "report.html" in before


def test_data_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["data", "list", "--data-dir", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "cifar10n-worst" in shown
    assert "ric data get svhn" in " ".join(shown.split())
    main(["data", "check", "digits"])
    assert "train: 1,213 rows" in capsys.readouterr().out
    assert "ric data get cifar10" in refused(capsys, "train", "cifar10", "--data-dir", tmp_path)


def test_a_run_is_repeated_from_its_configuration(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, again = digits_run / "config.json", tmp_path / "again"
    main(["train", "--config", str(stored), "--out", str(again), "--device", "cpu"])
    assert json.loads((again / "config.json").read_text())["config"] == json.loads(stored.read_text())["config"]
    assert (again / "model.safetensors").read_bytes() == (digits_run / "model.safetensors").read_bytes()
    out = tmp_path / "other"
    main(["train", "--config", str(stored), "--out", str(out), "--seed", "5", "--epochs", "1", "--device", "cpu"])
    config = json.loads((out / "config.json").read_text())["config"]
    assert (config["seed"], config["optimization"]["epochs"], config["method"]["horizon"]) == (5, 1, 4)
    assert "--config nowhere.json does not exist" in refused(capsys, "train", "--config", "nowhere.json")


def test_a_temperature_is_fitted_said_and_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    noisy = ["--label-noise", "0.3", "--calibration", "temperature"]
    main(["train", "--method", "supervised", "--epochs", "2", "--out", str(out), "--device", "cpu", *noisy])
    fit = json.loads((out / "calibration.json").read_text())
    assert f"temperature {fit['temperature']:.3f}, fitted on 135 validation examples" in capsys.readouterr().out
    main(["predict", str(out), str(out / "examples.npz"), "--json"])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with np.load(out / "examples.npz") as stored:
        beliefs = np.exp(stored["log_beliefs"][0])
    np.testing.assert_allclose([entry["confidence"] for entry in said], beliefs.max(1), rtol=1e-4)


def test_only_training_runs_in_several_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        main(["data", "list"])
    assert "ric, process 1: ric data runs in one process" in capsys.readouterr().err
