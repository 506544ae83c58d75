"""Models that somebody has changed: they answer, or are refused in one sentence."""

import json
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import ricnet
from ricnet import io
from ricnet.errors import RicnetError
from ricnet.training.config import from_json
from ricnet.training.run import RunFolder

from .attack import VALUES, altered, attack, briefly_and_long, mutated


@pytest.fixture
def copy(table_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(table_run, tmp_path / "run")
    return tmp_path / "run"


def answer(folder: Path) -> None:
    model = ricnet.load(folder)
    model.refine(torch.zeros(1, *model.input_shape, dtype=torch.uint8 if len(model.input_shape) == 3 else None))


@briefly_and_long
def test_changed_weights(copy: Path, seconds: float | None) -> None:
    path = copy / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")

    def strike(data: st.DataObject) -> None:
        at = data.draw(st.sampled_from([8, header, len(whole)]))
        path.write_bytes(data.draw(mutated(whole[:at])) + whole[at:])
        with suppress(RicnetError):
            answer(copy)

    attack(strike, seconds)


@briefly_and_long
def test_changed_settings(copy: Path, seconds: float | None) -> None:
    whole = json.loads((copy / "config.json").read_text())

    def strike(data: st.DataObject) -> None:
        (copy / "config.json").write_text(json.dumps(data.draw(altered(whole))))
        with suppress(RicnetError):
            answer(copy)

    attack(strike, seconds, few=20)


@briefly_and_long
def test_settings_of_any_form(seconds: float | None) -> None:
    def strike(data: st.DataObject) -> None:
        entry = {"method": {"name": data.draw(VALUES)}, "network": data.draw(VALUES), "seed": data.draw(VALUES)}
        for candidate in (data.draw(VALUES), entry, entry | {"method": {"name": "ric", "horizon": data.draw(VALUES)}}):
            with suppress(RicnetError):
                from_json(candidate, "config.json")

    attack(strike, seconds)


@briefly_and_long
def test_a_changed_state(copy: Path, seconds: float | None) -> None:
    """What a run is resumed from."""
    folder = RunFolder(copy)
    torch.save({"weights": torch.ones(3), "epoch": 1, "order": [1, 2]}, folder.state)
    whole = folder.state.read_bytes()

    def strike(data: st.DataObject) -> None:
        folder.state.write_bytes(data.draw(mutated(whole)))
        with suppress(RicnetError):
            folder.read_state()

    attack(strike, seconds)


def set_at(path: tuple[str, ...], value: object) -> Callable[[dict[str, object]], None]:
    def change(entry: dict[str, object]) -> None:
        part: dict[str, object] = entry
        for key in path[:-1]:
            part = part[key]  # type: ignore[assignment]
        part[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("config", "network", "width"), 1e6, "does not fit the network"),
        (("config", "network", "width"), 1e300, "does not fit the network|cannot be built"),
        (("config", "method", "horizon"), 10**9, "would take forever"),
        (("config", "method", "horizon"), 10**30, "horizon cannot be so large a number"),
        (("config", "method", "name"), ["ric"], "is unknown"),
        (("config", "method", "gamma"), 10**400, "gamma cannot be so large a number"),
        (("config", "method", "gamma"), math.nan, "NaN is no number that JSON has"),
        (("data", "input_shape"), [3, 10**6, 10**6], "more than a model can read"),
        (("data", "input_shape"), [10**18], "more than a model can read"),
        (("data", "class_names"), [str(i) for i in range(100_000)], "does not fit the network"),
        (("data", "columns", "inputs"), [{"kind": "number", "name": "x", "mean": 10**400, "std": 1}], "damaged"),
        (("data", "columns", "inputs"), [{"kind": "number", "name": [], "mean": 0, "std": 1, "flagged": 0}], "damaged"),
        (
            ("data", "columns", "inputs"),
            [{"kind": "number", "name": "x", "mean": 0, "std": 1, "flagged": False}],
            "not fit",
        ),
    ],
)
def test_settings_that_ask_for_too_much(copy: Path, path: tuple[str, ...], value: object, said: str) -> None:
    entry = json.loads((copy / "config.json").read_text())
    set_at(path, value)(entry)
    (copy / "config.json").write_text(json.dumps(entry))
    with pytest.raises(RicnetError, match=said):
        ricnet.load(copy)


def test_nested_brackets_and_endless_files(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "config.json").write_text("[" * 100_000)
    with pytest.raises(RicnetError, match="nested too deeply"):
        ricnet.load(copy)
    monkeypatch.setattr(io, "LARGEST_TEXT", 1000)
    with pytest.raises(RicnetError, match="larger than"):
        ricnet.load(copy)


def test_weights_that_are_no_numbers(copy: Path) -> None:
    path = copy / "model.safetensors"
    weights = load_file(path)
    name = next(name for name, tensor in weights.items() if tensor.dtype == torch.float32)
    weights[name][...] = torch.nan
    save_file(weights, path)
    with pytest.raises(RicnetError, match=r"model\.safetensors is damaged \(it holds numbers that are not finite\)"):
        ricnet.load(copy)


def test_weights_that_claim_to_be_vast(copy: Path) -> None:
    path = copy / "model.safetensors"
    header = json.dumps({"x": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RicnetError, match=r"model\.safetensors is damaged"):
        ricnet.load(copy)
    path.write_bytes((1 << 62).to_bytes(8, "little"))
    with pytest.raises(RicnetError, match=r"model\.safetensors is damaged"):
        ricnet.load(copy)


def test_a_state_that_holds_code_is_not_executed(copy: Path, tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"weights": Code()}, copy / "state.pt")
    with pytest.raises(RicnetError, match=r"state\.pt"):
        RunFolder(copy).read_state()
    assert not (tmp_path / "executed").exists()
