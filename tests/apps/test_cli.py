import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ricnet.apps.cli import COMMANDS, main
from ricnet.version import __version__

from .conftest import TINY, Refused, RunRic


def test_help_shows_every_command_and_promises_nothing(run_ric: RunRic) -> None:
    for page in (run_ric().out, run_ric("--help").out):
        assert all(name in page for name in COMMANDS)
        assert "are calibrated" not in page
    assert "are calibrated" not in (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, run_ric: RunRic) -> None:
    said = run_ric(command, "--help")
    assert said.code == 0
    assert f"usage: ric {command}" in said.out


def test_training_continues_when_the_pipe_is_closed(
    tmp_path: Path, no_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `2>&1 | head` does sooner or later
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        monkeypatch.setattr(sys, "stderr", unread)
        main(["train", "--method", "supervised", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)])
    assert (tmp_path / "evaluation.json").is_file()


def test_a_refusal_is_wrapped_in_a_terminal(run_ric: RunRic, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_ric("train", "--optimizer", "nonsense").err
    monkeypatch.setenv("COLUMNS", "60")
    lines = run_ric("train", "--optimizer", "nonsense").err.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert " ".join(lines) == whole.rstrip("\n")


@pytest.mark.parametrize("module", ["ricnet", "ricnet.apps.cli"])
def test_python_dash_m_is_the_command(module: str) -> None:
    result = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"ric {__version__}\n"


def test_predict_imports_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "row.csv").write_text("a,b,c\n0.13,-0.13,0.64\n")
    run = Path(__file__).parents[1] / "training" / "archived" / "fast"
    words = ["predict", str(run), str(tmp_path / "row.csv"), "--device", "cpu"]
    slow = {"scipy", "sklearn", "pandas", "matplotlib", "pooch"}
    script = f"import sys; from ricnet.apps.cli import main; main({words}); print({slow} & {{*sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "set()"
    assert "high" in result.stdout


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("trian", "train?"),
        ("train --foo 3", "--foo"),
        ("train --epoch 3", "--epochs?"),
        ("train --method supervised --horizon 3", ("--horizon", "ric, anytime, act, pondernet", "supervised")),
        ("train --lr fast", "--lr"),
        ("train --method gan", ("--method gan", "act, anytime, pondernet, ric, ric-closed-form, ric-on-policy")),
        ("train --preset slow", "--preset slow"),
        ("train --gamma 2", "--gamma 2.0"),
        ("train --encoder vgg --out x", "--encoder vgg"),
        ("train mnits", "'mnits'"),
        ("train --width nan", "--width nan"),
        ("train --device mps", "--device mps"),
        ("train --device gpu", "--device gpu"),
        ("train --config nowhere.json", "--config nowhere.json"),
        ("train digits --target x", "--target x"),
        ("train cifar10 --data-dir .", "ric data get cifar10"),
        ("evaluate none", "no run at"),
        ("evaluate x --max-steps 1000000", "--max-steps 1000000"),
        ("predict .", "not a run folder"),
        ("predict", "RUN"),
        ("report", "RUN..."),
        ("data get", "name of a data set"),
        ("data check mnits", "'mnits'"),
        ("data get cifar", "cifar10?"),
        ("serve none --port 0", "no run at"),
        ("export none --out model.onnx", "no run at"),
    ],
)
def test_errors_are_one_sentence_and_nothing_is_written(
    typed: str, names: object, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(names, *typed.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "named"),
    [
        *(("nowhere", "nowhere"), ("empty", "empty"), ("single", "cats"), ("broken", "broken")),
        *(("short.npz", ("10", "9")), ("nan.npz", "nan")),
    ],
)
def test_bad_data_is_one_sentence_and_writes_nothing(
    place: str, named: object, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("single/cats", "broken/cats", "broken/dogs"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(b"no image")
    for i in range(5):
        Image.new("RGB", (9, 9), (i, i, i)).save(tmp_path / "single" / "cats" / f"{i}.png")
    np.savez(tmp_path / "short.npz", x=np.zeros((10, 3)), y=np.arange(9) % 2)
    np.savez(tmp_path / "nan.npz", x=np.full((10, 3), np.nan), y=np.arange(10) % 2)
    refused(named, "train", tmp_path / place, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_run(refused: Refused) -> None:
    refused((__file__, "is not a run folder"), "predict", __file__)


def test_a_finished_run_is_left_alone(tmp_path: Path, digits_run: Path, run_ric: RunRic, refused: Refused) -> None:
    digits_run = shutil.copytree(digits_run, tmp_path / "digits")
    (digits_run / "report.html").write_text("a page")
    before = {path.name: path.read_bytes() for path in digits_run.iterdir()}
    refused(digits_run, "train", "--out", digits_run, *TINY)
    assert "nothing is left to resume" in run_ric("train", "--out", digits_run, "--resume").err
    refused("--epochs", "train", "--out", digits_run, "--resume", "--epochs", "9")
    refused("--encoder mpl", "train", "--out", digits_run, "--encoder", "mpl")
    assert {path.name: path.read_bytes() for path in digits_run.iterdir()} == before


def test_data_list(run_ric: RunRic, tmp_path: Path) -> None:
    shown = run_ric("data", "list", "--data-dir", tmp_path)
    assert "cifar10n-worst" in shown.out
    assert f"{tmp_path}; ric data get NAME" in shown.err
    assert "train: 1,213 rows" in run_ric("data", "check", "digits").out


def test_flags_override_the_configuration_of_a_repeated_run(digits_run: Path, run_ric: RunRic, tmp_path: Path) -> None:
    stored, other = digits_run / "config.json", tmp_path / "other"
    run_ric("train", "--config", stored, "--out", other, "--seed", 5, "--epochs", 1, "--device", "cpu")
    config = json.loads((other / "config.json").read_text())["config"]
    assert (config["seed"], config["optimization"]["epochs"], config["method"]["horizon"]) == (5, 1, 4)


def test_a_final_fit_of_a_run_that_stopped_by_patience_has_its_selected_epoch(
    table_run: Path, run_ric: RunRic, tmp_path: Path
) -> None:
    stored, final = json.loads((table_run / "config.json").read_text())["config"], tmp_path / "final"
    chosen = json.loads((table_run / "evaluation.json").read_text())["selected_epoch"]
    assert stored["optimization"]["patience"] is not None
    said = run_ric("train", "--config", table_run, "--final-fit", "--out", final, "--device", "cpu").err
    assert f"note: --epochs {chosen}, the selected epoch of {table_run}" in said
    config = json.loads((final / "config.json").read_text())["config"]
    assert (config["optimization"]["epochs"], config["final_fit"]) == (chosen, True)
    run_ric("train", "--config", table_run, "--final-fit", "--epochs", 1, "--out", tmp_path / "one", "--device", "cpu")
    assert json.loads((tmp_path / "one" / "config.json").read_text())["config"]["optimization"]["epochs"] == 1


def test_a_temperature_is_fitted_reported_and_applied(tmp_path: Path, run_ric: RunRic) -> None:
    out = tmp_path / "run"
    noisy = ["--label-noise", "0.3", "--calibration", "temperature"]
    said = run_ric("train", "--method", "supervised", "--epochs", 2, "--out", out, "--device", "cpu", *noisy).out
    fit = json.loads((out / "calibration.json").read_text())
    assert f"temperature {fit['temperature']:.3f}: NLL" in said
    answers = run_ric("predict", out, out / "examples.npz", "--json").records
    with np.load(out / "examples.npz") as stored:
        beliefs = np.exp(stored["log_beliefs"][0])
    np.testing.assert_allclose([entry["confidence"] for entry in answers], beliefs.max(1), rtol=1e-4)


def test_only_training_runs_in_several_processes(run_ric: RunRic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = run_ric("data", "list")
    assert said.code == 2
    assert "process 1: ric data runs in one process" in said.err
