"""A training state on the disk, with a checksum at its end, so that a damaged one is never taken for a good one."""

import hashlib
import io
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ricnet.errors import RicnetError

SEAL = "\nsha256 {}\n"
SEAL_BYTES = len(SEAL.format("0" * 64))


class Damaged(RicnetError):
    """A file is not what was written there."""


class SealedFile:
    """Counts what is written into a checksum on its way, so that a large state is never in memory twice."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def seal(self) -> None:
        self.file.write(SEAL.format(self.digest.hexdigest()).encode())


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        sealed = SealedFile(file)
        try:
            torch.save(state, sealed)  # type: ignore[arg-type]  # torch asks for no more than these
        except RuntimeError as error:
            raise error.__context__ or error from None  # torch hides a full disk or Ctrl-C behind an error of its own
        sealed.seal()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Nothing in the file is executed: a checksum that fits says nothing about who wrote it."""
    try:
        with path.open("rb") as file:
            payload, seal = file.read(max(0, path.stat().st_size - SEAL_BYTES)), file.read()
    except OSError as error:
        raise RicnetError(f"{path} cannot be read ({error.strerror}); make it readable and resume again.") from error
    if seal != SEAL.format(hashlib.sha256(payload).hexdigest()).encode():
        raise Damaged(f"{path} is damaged (its checksum does not fit); start anew with --overwrite.")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different kind for everything it refuses
        raise Damaged(f"{path} holds no training state; start anew with --overwrite.") from error
    if not isinstance(state, dict):
        raise Damaged(f"{path} holds no training state; start anew with --overwrite.")
    return state
