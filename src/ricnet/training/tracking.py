"""Curves of a run for TensorBoard."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ricnet.errors import require_extra, setting
from ricnet.models.run import RunFolder
from ricnet.training.callbacks import Callback, Line

if TYPE_CHECKING:
    from ricnet.training.trainer import Trainer

Track = Literal["none", "tensorboard"]


def require_tracker(track: Track) -> None:
    if track == "tensorboard":
        require_extra(setting("track", "tensorboard"), "track", "tensorboard")


class Tracking(Callback):
    """Writes the metrics of each epoch as curves. A resumed run writes the epochs so far again, in place of its old
    curves, so that each point is there once."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_train_begin(self, trainer: "Trainer") -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds

        self.folder.drop_curves()
        self.writer = SummaryWriter(str(self.folder.curves))
        for line in self.folder.metrics_lines():
            self.on_epoch_end(trainer, line)

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        for name, value in scalars(line):
            self.writer.add_scalar(name, value, line["epoch"])
        self.writer.flush()

    def on_train_end(self, trainer: "Trainer") -> None:
        self.writer.close()


def scalars(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line under names such as val/accuracy."""
    for name, value in line.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{part}", number) for part, number in scalars(value))
        elif isinstance(value, int | float) and name != "epoch":
            yield name, value
