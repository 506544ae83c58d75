"""Symbolic links in an untrusted run folder are not followed on writing."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ricnet.apps.cli import main
from ricnet.io import draft_of
from ricnet.models.run import LOCK, RunFolder
from ricnet.training.trainer import Trainer


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that was stopped after its first epoch."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "my.npz", x=pixels, y=np.arange(40) % 2)
    step = Trainer._step

    def interrupted(trainer: Trainer) -> None:
        if trainer.best:
            trainer.checkpoint()
            raise KeyboardInterrupt
        step(trainer)

    folder = RunFolder(tmp_path / "run")
    how = ["--epochs", "2", "--width", "0.05", "--calibration-fraction", "0.2"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(SystemExit):
            main(["train", str(tmp_path / "my.npz"), "--out", str(folder.path), *how])
    assert folder.state.is_file()
    return folder


def linked(path: Path, outside: Path) -> None:
    """Move what is there outside and leave a link; of a name that is free, link to a file of the user's."""
    target = outside / path.name
    if path.exists():
        shutil.move(path, target)
    else:
        target.write_text("mine")
    path.symlink_to(target)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("drafts", [False, True])
def test_nothing_is_written_through_a_link(stopped: RunFolder, tmp_path: Path, drafts: bool) -> None:
    outside, curves = tmp_path / "outside", tmp_path / "outside" / "curves"
    curves.mkdir(parents=True)
    for path in stopped.files:
        linked(draft_of(path) if drafts else path, outside)
    stopped.evaluation.unlink(missing_ok=True)  # or it would count as finished
    linked(stopped.path / LOCK, outside)
    if not drafts:
        stopped.metrics.unlink()
        stopped.metrics.symlink_to(outside / "not there yet")
    stopped.curves.symlink_to(curves)
    before = contents(outside)
    main(["train", "--out", str(stopped.path), "--resume", "--track", "tensorboard"])
    assert contents(outside) == before
    assert stopped.finished
    read_only = {stopped.config, stopped.encoder, stopped.rows}
    assert not [path.name for path in stopped.path.iterdir() if path.is_symlink() and path not in read_only]
    assert list(stopped.curves.iterdir())


def test_the_page_is_not_written_through_a_link(digits_run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for link in (tmp_path / "report.html", draft_of(tmp_path / "report.html")):
        mine.write_text("mine")
        link.symlink_to(mine)
        main(["report", str(digits_run), "--out", str(tmp_path / "report.html")])
        assert mine.read_text() == "mine"
        assert (tmp_path / "report.html").read_text().endswith("</html>\n")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "report.html"]
