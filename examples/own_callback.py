"""Your own callbacks: stop training at a target accuracy, and list the epochs that improved on all before them.

    python examples/own_callback.py --target 0.9 --out runs/enough

After an interruption run it again with --resume: the state of a callback is stored in the checkpoint.
"""

import argparse
from pathlib import Path
from typing import Any

import ricnet
from ricnet.training.trainer import Trainer


class Enough(ricnet.Callback):
    """Stop training at a validation accuracy."""

    def __init__(self, target: float) -> None:
        self.target = target

    def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
        if line["val"]["accuracy"] >= self.target:
            trainer.stop = True


class Records(ricnet.Callback):
    """List the epochs that were better than all before them."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float]] = []

    def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
        accuracy = line["val"]["accuracy"]
        if not self.found or accuracy > self.found[-1][1]:
            self.found.append((line["epoch"], accuracy))

    def on_train_end(self, trainer: Trainer) -> None:
        for epoch, accuracy in self.found:
            print(f"epoch {epoch}: {accuracy:.1%}")

    def state_dict(self) -> dict[str, Any]:
        return {"found": self.found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.found = state["found"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--out", type=Path, default=Path("runs/enough"))
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args()
    ricnet.train("digits", out=asked.out, resume=asked.resume, callbacks=[Enough(asked.target), Records()])
