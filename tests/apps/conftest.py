"""Fixtures that run `ric` commands, and small runs for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from made_runs import draw_no_pages
from problems import MadeOnce
from ricnet.apps.cli import main

TINY = ["--epochs", "2", "--width", "0.1", "--horizon", "4", "--device", "cpu"]


class Said(NamedTuple):
    out: str
    err: str
    code: int

    @property
    def records(self) -> list[dict[str, Any]]:
        """A JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


RunRic = Callable[..., Said]
Refused = Callable[..., None]


@pytest.fixture
def run_ric(capsys: pytest.CaptureFixture[str], no_pages: None) -> RunRic:
    """What a command says, and its exit code."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(*capsys.readouterr(), code)

    return run


@pytest.fixture
def refused(run_ric: RunRic) -> Refused:
    """A command ends with one sentence that names all of this (a flag, a file, what to do), and with exit code 2."""

    def check(names: object, *arguments: object) -> None:
        said = run_ric(*arguments)
        lines = said.err.strip().splitlines()
        assert (said.code, said.out, lines[0][:5]) == (2, "", "ric: "), said
        assert len(lines) == 1, said
        for name in names if isinstance(names, tuple) else (names,):
            assert str(name) in said.err, f"{name!r} is not named in: {said.err}"

    return check


@pytest.fixture(scope="session")
def table_run(made_once: MadeOnce) -> Path:
    """Learned from my.csv beside it, where height and colour tell the kinds apart."""
    return made_once("table", train_on_table) / "run"


def train_on_table(folder: Path) -> None:
    random = np.random.default_rng(0)
    rows = ["height,colour,note,kind"]
    for row in range(120):
        tall = row % 2
        height = "" if row % 12 == 0 else f"{random.normal(10 + 30 * tall):.2f}"
        rows.append(f"{height},{('red', 'blue')[tall]},n{row},{('small', 'tall')[tall]}")
    (folder / "my.csv").write_text("\n".join(rows))
    tiny = ["--epochs", "12", "--lr", "0.03", "--batch-size", "16", *TINY[2:]]
    with pytest.MonkeyPatch.context() as patch:
        draw_no_pages(patch)
        main(["train", str(folder / "my.csv"), "--target", "kind", "--out", str(folder / "run"), *tiny])


@pytest.fixture(scope="session")
def exits_run(made_once: MadeOnce) -> Path:
    """Trained on digits, with an exit after each of its three stages."""
    settings = "--method anytime --value-coef 0.5 --exits stage --encoder conv --epochs 2 --width 0.25 --device cpu"
    with pytest.MonkeyPatch.context() as patch:
        draw_no_pages(patch)
        return (
            made_once("exits", lambda folder: main(["train", "--out", str(folder / "run"), *settings.split()])) / "run"
        )


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 12 × 12 colour images: bright and dark."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir()
        for i in range(20):
            pixels = random.integers(low, low + 100, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder
