"""Changed files of a model: it answers, or is refused with a RicnetError."""

import json
import math
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save

import ricnet
from refusals import cases, refusal
from ricnet import io
from ricnet.errors import RicnetError
from ricnet.models.config import from_json
from ricnet.models.run import RunFolder

from .attack import VALUES, altered, attack, briefly_and_long, mutated


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
    """A checkpoint to resume from."""
    folder = RunFolder(copy)
    torch.save({"weights": torch.ones(3), "epoch": 1, "order": [1, 2]}, folder.state)
    whole = folder.state.read_bytes()

    def strike(data: st.DataObject) -> None:
        folder.state.write_bytes(data.draw(mutated(whole)))
        with suppress(RicnetError):
            folder.read_state()

    attack(strike, seconds)


def damaged(**changes: object) -> list[dict[str, object]]:
    """Columns of a table of numbers with one change."""
    return [{"kind": "number", "name": "x", "mean": 0, "std": 1, "flagged": False} | changes]


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("config network width", 1e6, "does not fit"),
        ("config network width", 1e300, "network"),
        ("config method horizon", 10**9, "above the limit"),
        ("config method horizon", 10**30, "horizon"),
        ("config method name", ["ric"], "method"),
        ("config method gamma", 10**400, "gamma"),
        ("config method gamma", math.nan, "NaN"),
        ("data input_shape", [3, 10**6, 10**6], "more than"),
        ("data input_shape", [10**18], "more than"),
        ("data class_names", [str(i) for i in range(100_000)], "does not fit"),
        ("data columns inputs", damaged(mean=10**400), "damaged"),
        ("data columns inputs", damaged(name=[]), "damaged"),
        ("data columns inputs", damaged(), "not fit"),
    ],
)
def test_settings_that_ask_for_too_much(copy: Path, place: str, value: object, named: str) -> None:
    whole = part = json.loads((copy / "config.json").read_text())
    *path, last = place.split()
    for key in path:
        part = part[key]
    part[last] = value
    (copy / "config.json").write_text(json.dumps(whole))
    with refusal(copy, named):
        ricnet.load(copy)


@pytest.mark.parametrize(("limit", "named"), [(10**6, "nested"), (1000, "larger than")])
def test_nested_brackets_and_endless_files(copy: Path, limit: int, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "config.json").write_text("[" * 100_000)
    monkeypatch.setattr(io, "LARGEST_TEXT", limit)
    with refusal(copy, named):
        ricnet.load(copy)


def test_weights_that_are_not_finite_are_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.float32 and tensor.numel())
    tensors[name][...] = torch.nan
    path.write_bytes(save(tensors))
    with refusal(path, "not finite"):
        ricnet.load(copy)


HEADER = json.dumps({"x": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}).encode()


@pytest.mark.parametrize(
    "content",
    cases(
        {"a vast tensor": len(HEADER).to_bytes(8, "little") + HEADER, "a vast header": (1 << 62).to_bytes(8, "little")}
    ),
)
def test_weights_that_claim_to_be_vast_are_refused(copy: Path, content: bytes) -> None:
    (copy / "model.safetensors").write_bytes(content)
    with refusal(copy / "model.safetensors", "damaged"):
        ricnet.load(copy)


def test_a_state_that_holds_code_is_not_executed(copy: Path, tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"weights": Code()}, copy / "state.pt")
    with refusal("state.pt"):
        RunFolder(copy).read_state()
    assert not (tmp_path / "executed").exists()
