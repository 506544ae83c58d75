"""What a user gains: RIC's update in ricnet, against the same update written in the plain way of `plain.py`.

    python benchmarks/gain.py [--json FILE]

The same network, batch, steps, roll-outs, snapshots and optimizer. How fast a loader feeds the plain update depends on
its workers, so two rows stand for all of them: one that makes its batches in turn with the updates, and one whose
batches are on the device before the clock starts, which no loader can beat.
"""

from typing import Any

import torch

from common import Row, Scale, make_trainer, parse, publish, random_images, scale_for, take_turns
from plain import PlainTraining
from ricnet.training.recipes import configure

SETTINGS: dict[str, Any] = {
    "horizon": 20,
    "rollouts": 2,
    "updates_per_snapshot": 10,
    "optimizer": "adam",
    "weight_decay": 0.0,
    # What the plain update has not, since it is ours and not the paper's.
    "label_baseline": False,
    "credit": "joint",
    "reward_floor": 1e-4,
    "average": 0.0,
}
TURNS = {"cuda": 3, "cpu": 25}
"""On a GPU the plain update is slow and the ratio large; on a CPU the ratio is near 1, and asks for more turns."""


def measure(device: torch.device, scale: Scale) -> list[Row]:
    dataset = random_images(scale.side)
    settings = {**SETTINGS, **scale.network, "batch_size": scale.batch}
    ours = make_trainer("ric", dataset, device, **settings, compile="on" if device.type == "cuda" else "off")
    plain = PlainTraining(configure(dataset, "ric", "fast", **settings), dataset, device)
    batch = plain.next_batch()
    candidates = {
        "plain": plain.step,
        "plain, its batches for free": lambda: plain.learn(*batch),
        "ricnet": ours._step,
    }
    seconds = take_turns(candidates, device, TURNS[device.type], scale.calls)
    return [
        {
            "update": name,
            "ms": 1000 * taken,
            "images/s": scale.batch / taken,
            "× ricnet": taken / seconds["ricnet"],
        }
        for name, taken in seconds.items()
    ]


def main() -> None:
    device, path = parse(__doc__)
    scale = scale_for(device)
    rows = measure(device, scale)
    notes = ["T = 20, 2 roll-outs, a snapshot every 10 updates, Adam. Plain: float32, eager; a loader without workers."]
    publish(f"RIC's update: {scale}", rows, notes, device, path)


if __name__ == "__main__":
    main()
