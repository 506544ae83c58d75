"""Curves of a run for TensorBoard: every number of a line of metrics.jsonl is a scalar, and its epoch the step."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ricnet.extras import require_extra
from ricnet.training.run_folder import RunFolder

Track = Literal["none", "tensorboard"]
Watch = Callable[[dict[str, Any]], None]


def require_tracker(track: Track) -> None:
    if track == "tensorboard":
        require_extra("--track tensorboard", "track", "tensorboard")


@contextmanager
def tracked(folder: RunFolder, track: Track) -> Iterator[Watch | None]:
    """What is to be shown each further line; the lines that are there already are written first, in place of the curves
    that were, so that a resumed run has each point once."""
    if track == "none":
        yield None
        return
    from torch.utils.tensorboard import SummaryWriter  # takes seconds

    shutil.rmtree(folder.curves, ignore_errors=True)
    writer = SummaryWriter(str(folder.curves))

    def watch(line: dict[str, Any]) -> None:
        for name, value in scalars(line):
            writer.add_scalar(name, value, line["epoch"])
        writer.flush()

    try:
        for text in folder.metrics.read_text(encoding="utf-8").splitlines() if folder.metrics.is_file() else ():
            watch(json.loads(text))
        yield watch
    finally:
        writer.close()


def scalars(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """val/accuracy and the like."""
    for name, value in line.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{part}", number) for part, number in scalars(value))
        elif isinstance(value, int | float) and name != "epoch":
            yield name, value
