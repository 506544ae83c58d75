"""`ric train` as people and schedulers treat it: stopped at any moment, and given again until it is done."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ricnet
from ricnet.apps.cli import main
from ricnet.training import api
from ricnet.training.run import LOCK, RunFolder

TOO_SOON = "ric: stopped before it was done; start it with the same command."
QUICK = ["--epochs", "1", "--width", "0.1", "--method", "supervised", "--device", "cpu"]


@pytest.mark.parametrize(("flags", "width"), [([], 1.0), (["--width", "0.1"], 0.1)])
def test_a_network_that_is_named_comes_at_its_own_width_unless_a_flag_says_another(
    flags: list[str], width: float, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((40, 24, 24), np.uint8), y=np.arange(40) % 2)
    out = tmp_path / "run"
    short = ["--epochs", "1", "--method", "supervised", "--device", "cpu", "--out", str(out)]
    main(["train", str(tmp_path / "x.npz"), "--encoder", "resnet10", *flags, *short])
    network = ricnet.load(out).config.network
    assert (network.encoder, network.width, network.stem) == ("resnet10", width, "auto")


def interrupt(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGINT)


def stopped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["train", *arguments])
    assert end.value.code == 130
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_ctrl_c_while_data_is_read_gets_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "load_data", interrupt)
    out = tmp_path / "run"
    assert stopped(capsys, "--out", str(out), *QUICK) == TOO_SOON
    assert not out.exists()


def test_ctrl_c_while_networks_are_made_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.Trainer, "_build_networks", interrupt)
    out = tmp_path / "run"
    assert stopped(capsys, "--out", str(out), *QUICK) == TOO_SOON
    assert not out.exists()


def test_ctrl_c_once_there_is_a_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    again = f"Go on with: ric train --out {out} --resume"
    with monkeypatch.context() as patched:
        patched.setattr(api.Trainer, "run", interrupt)
        assert stopped(capsys, "--out", str(out), *QUICK) == f"ric: stopped; what was saved before is whole. {again}"
    learn = api.Trainer._learn

    def interrupted(trainer: api.Trainer, rows: Any) -> None:  # within an update, as while code is compiled
        interrupt()
        learn(trainer, rows)

    with monkeypatch.context() as patched:
        patched.setattr(api.Trainer, "_learn", interrupted)
        said = stopped(capsys, "--out", str(out), "--resume")
    assert said.startswith("ric: stopped after 1 of ")
    assert said.endswith(again)


def test_ctrl_c_elsewhere_is_not_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", interrupt)
    assert "stopped before it was done; start it with the same command." in stopped(capsys)


def test_resume_starts_a_run_that_is_not_there_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh, killed = tmp_path / "fresh", tmp_path / "killed"
    killed.mkdir()
    (killed / LOCK).touch()
    (killed / ".config.json.draft").touch()
    for out in (fresh, killed):
        main(["train", "digits", "--out", str(out), "--resume", *QUICK])
        assert f"note: {out} holds no run yet, so that this one starts anew." in capsys.readouterr().err
        assert RunFolder(out).finished
    assert not (killed / LOCK).exists()


def test_the_same_command_goes_on_before_and_after_the_first_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["digits", "--out", str(tmp_path / "parts"), "--resume", *QUICK]
    with monkeypatch.context() as patched:
        patched.setattr(api.Trainer, "run", interrupt)
        stopped(capsys, *command)
    with monkeypatch.context() as patched:
        patched.setattr(api, "tracked", interrupt)
        assert "stopped" in stopped(capsys, *command)
    main(["train", *command])
    assert "was stopped before its first checkpoint, so that it starts from the beginning" in capsys.readouterr().err
    main(["train", "digits", "--out", str(tmp_path / "whole"), *QUICK])
    parts, whole = (RunFolder(tmp_path / name) for name in ("parts", "whole"))
    assert parts.model.read_bytes() == whole.model.read_bytes()


def test_resume_overwrites_nothing_that_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--out", str(tmp_path), "--resume", *QUICK])
    assert "holds files that are not a run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_python_resumes_what_is_not_there_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"epochs": 1, "width": 0.1, "method": "supervised", "device": "cpu"}
    api.train("digits", out=tmp_path / "run", resume=True, **settings)
    assert "holds no run yet" in capsys.readouterr().err
    assert RunFolder(tmp_path / "run").finished
