"""Any flags and values on the command line: it works, or says one sentence and exits with 2."""

import contextlib
import dataclasses
import io
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st

from made_runs import without_manifest
from ricnet.apps.cli import COMMANDS, main
from ricnet.apps.commands import train
from ricnet.apps.commands.options import OPTIONS
from ricnet.methods import METHODS
from ricnet.models.config import Optimization
from ricnet.nets.encoders import EncoderOptions

from .attack import TEXTS, attack, briefly_and_long

KINDS = {
    "train": (train.Train, EncoderOptions, Optimization, *METHODS.values()),
    "predict": (OPTIONS["predict"],),
    "evaluate": (OPTIONS["evaluate"],),
    "report": (OPTIONS["report"],),
    "data": (OPTIONS["data"],),
}
FLAGS = {
    command: sorted({f"--{field.name.replace('_', '-')}" for kind in kinds for field in dataclasses.fields(kind)})
    for command, kinds in KINDS.items()
}
NUMBERS = st.sampled_from(["0", "1", "-1", "2.5", "nan", "inf", "1e400", "9" * 30, "None", "1_0", "0x10", "true", "٣"])
WORDS = st.sampled_from(["ric", "cpu", "auto", "[/red]", "[link]", "*", "-", "--", "a/b/c", "digits", "kind", "list"])
ANYTHING = NUMBERS | WORDS | TEXTS | st.text("ab-=/#.[]\n\x1b", max_size=6)


def run(arguments: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


@briefly_and_long
def test_flags_and_values(
    table_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    """Without the training itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RICNET_DATA", str(tmp_path))
    monkeypatch.setattr("ricnet.training.api.run", lambda *_, **__: None)
    monkeypatch.setattr("ricnet.training.api._conclude", lambda *_: None)
    monkeypatch.setattr("ricnet.models.locate.is_hub_id", lambda _: False)  # nobody asks the network
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"size,colour\n1,red\n")))
    places = st.sampled_from([str(table_run), str(table_run.parent / "my.csv"), str(table_run / "examples.npz")])

    def strike(data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(sorted(KINDS)))
        first = data.draw(st.lists(places | ANYTHING, max_size=2))
        given = [
            data.draw(st.tuples(st.sampled_from(FLAGS[command]), places | ANYTHING))
            for _ in range(data.draw(st.integers(0, 3)))
        ]
        code, said = run([command, *first, *(part for flag in given for part in flag)])
        assert code in (0, 2) or (code == 1 and command == "predict"), said  # 1: some inputs were not read
        assert said.count("ric: ") == (code == 2), said
        assert all(c.isprintable() or c == "\n" for c in said)

    attack(strike, seconds and 2 * seconds, few=8)


def test_a_name_that_a_terminal_would_obey_is_not_obeyed(table_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    without_manifest(shutil.copytree(table_run, folder))
    entry = json.loads((folder / "config.json").read_text())
    entry["data"]["class_names"] = ["\x1b]0;owned\x07", "\x9b2J"]
    (folder / "config.json").write_text(json.dumps(entry))
    for form in ([], ["--trace"], ["--csv"], ["--json"], ["--top", "2"]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(["predict", str(folder), str(table_run.parent / "my.csv"), *form])
        assert not {"\x1b", "\x07", "\x9b"} & set(out.getvalue())
    assert set(KINDS) <= set(COMMANDS)
    code, said = run(["predict", "\x1b]0;owned\x07"])
    assert code == 2
    assert "\x1b" not in said


@pytest.mark.parametrize("path", ["x" * 300, "~nobody-of-that-name/x", "a\x00b", "\udcff", "x" * 300 + ".csv"])
def test_paths_that_cannot_be(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ricnet.models.locate.is_hub_id", lambda _: False)
    for command in ("train", "predict", "evaluate", "report", "data check"):
        code, said = run([*command.split(), path])
        assert (code, said.count("ric: ")) == (2, 1), said
