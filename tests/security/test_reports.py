"""Modified results are shown, or refused in one sentence, and nothing in them is executed."""

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from rich.console import Console

from archive_results import archive_text
from refusals import refusal
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import read_predictions
from ricnet.report.comparison import results
from ricnet.report.page import page_html, render
from ricnet.report.runs import RunRecord, group_seeds, read_run
from ricnet.report.tables import markdown, terminal_table

from .attack import altered, attack, briefly_and_long, mutated


def shown(run: RunRecord) -> str:
    found = results(group_seeds([run]))
    with io.StringIO() as file:
        Console(file=file, width=200).print(terminal_table(found))
        return file.getvalue() + markdown(found) + archive_text(run)


def drawn(run: RunRecord) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that cannot be drawn
        return page_html(group_seeds([run]))


def spoil(copy: Path, show: Callable[[RunRecord], str]) -> Callable[[st.DataObject], None]:
    names = ("config.json", "evaluation.json", "metrics.jsonl")
    whole = {name: (copy / name).read_text() for name in names}

    def strike(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(names))
        changed = data.draw(altered(json.loads(whole[name])))
        for each in names:
            (copy / each).write_text(json.dumps(changed) if each == name else whole[each])
        with suppress(RicnetError):
            assert "\x1b" not in show(read_run(copy))

    return strike


@briefly_and_long
def test_changed_results(copy: Path, seconds: float | None) -> None:
    attack(spoil(copy, shown), seconds, few=20)


@briefly_and_long
def test_changed_results_in_pictures(copy: Path, seconds: float | None) -> None:
    attack(spoil(copy, drawn), seconds and 2 * seconds, few=1)


@briefly_and_long
def test_changed_examples_and_predictions(copy: Path, seconds: float | None) -> None:
    whole = {name: (copy / name).read_bytes() for name in ("examples.npz", "predictions.npz")}

    def strike(data: st.DataObject) -> None:
        for name, content in whole.items():
            (copy / name).write_bytes(data.draw(mutated(content)))
        with suppress(RicnetError):
            read_run(copy)
        with suppress(RicnetError):
            read_predictions(copy)

    attack(strike, seconds)


@briefly_and_long
def test_examples_of_any_arrays(copy: Path, seconds: float | None) -> None:
    whole = dict(np.load(copy / "examples.npz"))
    kinds = st.sampled_from(["f4", "f2", "i8", "u1", "U1", "S2", "c8", "M8[s]", "b1"])
    values = st.sampled_from([0, 1, -1, 127, np.nan, np.inf, -np.inf])

    def strike(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(whole)))
        array = whole[name].copy()
        with warnings.catch_warnings(), suppress(ValueError, TypeError, OverflowError):
            warnings.simplefilter("ignore")
            array.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(values)
            array = array.astype(data.draw(kinds)) if data.draw(st.booleans()) else array
            array = array.reshape(data.draw(st.permutations([*array.shape, 1]))) if data.draw(st.booleans()) else array
        np.savez(copy / "examples.npz", **(whole | {name: array}))
        with suppress(RicnetError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            render(group_seeds([read_run(copy)]), [])

    attack(strike, seconds)


@briefly_and_long
def test_a_changed_archive(copy: Path, tmp_path: Path, seconds: float | None) -> None:
    whole = json.loads(archive_text(read_run(copy)))

    def strike(data: st.DataObject) -> None:
        (tmp_path / "run.json").write_text(json.dumps(data.draw(altered(whole))))
        with suppress(RicnetError):
            shown(read_run(tmp_path / "run.json"))

    attack(strike, seconds)


@pytest.mark.parametrize(("kind", "shape"), [("<f4", "(2, 4000000000, 2)"), ("<U0", "(1000000000000,)")])
def test_arrays_that_claim_to_be_vast(table_run: Path, copy: Path, kind: str, shape: str) -> None:
    """The header of one array claims a billion times what follows; elements of the other have no bytes."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    stored = dict(np.load(table_run / "examples.npz"))
    np.savez(copy / "examples.npz", **{name: value for name, value in stored.items() if name != "y"})
    with zipfile.ZipFile(copy / "examples.npz", "a") as archive:
        archive.writestr("y.npy", array)
    with refusal("examples.npz", "the array y"):
        read_run(copy)


@pytest.mark.parametrize("field", [("config", "data"), ("config", "method", "name"), ("data", "class_names")])
def test_control_characters_are_not_printed(copy: Path, field: tuple[str, ...]) -> None:
    entry = json.loads((copy / "config.json").read_text())
    part = entry
    for key in field[:-1]:
        part = part[key]
    evil = "\x1b]0;owned\x07\x9b31m"
    part[field[-1]] = [evil, "b"] if field[-1] == "class_names" else evil
    (copy / "config.json").write_text(json.dumps(entry))
    text = shown(read_run(copy))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
