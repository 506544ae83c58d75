import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ricnet.errors import RicnetError
from ricnet.training.run import SEAL_BYTES, Damaged, SealedFile, read_checkpoint, write_checkpoint

STATE = {"update": 3, "model": {"w": torch.arange(1000.0)}, "best": {"score": [0.5, -1.0]}, "cuda_rng": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(STATE, tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_what_was_written_is_read(path: Path) -> None:
    state = read_checkpoint(path)
    assert torch.equal(state["model"]["w"], STATE["model"]["w"])
    assert (state["update"], state["best"], state["cuda_rng"]) == (3, STATE["best"], None)


def test_a_change_of_any_byte_is_noticed(path: Path) -> None:
    """In the tensors too, where torch itself sees nothing."""
    whole = path.read_bytes()
    for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - SEAL_BYTES, len(whole) - 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Damaged, match=r"state\.pt is damaged \(its checksum does not fit\); start anew"):
            read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 1, SEAL_BYTES, 2000, -1, -SEAL_BYTES])
def test_a_file_cut_short_is_noticed(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Damaged, match="damaged"):
        read_checkpoint(path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("state", [Bomb(), {"model": Bomb()}, [1, 2]])
def test_a_checksum_that_fits_opens_no_door(tmp_path: Path, state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("state.pt").open("wb") as file:
        sealed = SealedFile(file)
        torch.save(state, sealed)  # type: ignore[arg-type]
        sealed.seal()
    with pytest.raises(Damaged, match=r"state\.pt holds no training state; start anew"):
        read_checkpoint(Path("state.pt"))
    assert not Path("exploded").exists()


def test_a_file_that_may_not_be_read_is_not_called_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RicnetError, match=r"cannot be read \(Permission denied\)") as caught:
        read_checkpoint(path)
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_stops_the_writing_is_not_hidden_by_torch(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: SealedFile, data: Any) -> int:
        raise error

    monkeypatch.setattr(SealedFile, "write", fail)
    with pytest.raises(type(error)):
        write_checkpoint(STATE, tmp_path / "state.pt")
