"""How much faster an update of RIC is in ricnet than in the plain implementation of `plain.py`.

    python benchmarks/gain.py [--json FILE]

Network, batch, steps, roll-outs, snapshots and optimizer are the same. The speed of a data loader depends on its
workers, so the plain update is timed twice: with a loader without workers, and with a batch that is already on the
device, which is faster than any loader.
"""

from typing import Any

import torch

from common import Row, Scale, argument_parser, make_trainer, publish, random_images, scale_for, take_turns
from plain import PlainTraining
from ricnet.training.recipes import configure

SETTINGS: dict[str, Any] = {
    "horizon": 20,
    "rollouts": 2,
    "updates_per_snapshot": 10,
    "optimizer": "adam",
    "weight_decay": 0.0,
    # ours, not in the paper: switched off
    "label_baseline": False,
    "credit": "joint",
    "reward_floor": 1e-4,
    "average": 0.0,
}
TURNS = {"cuda": 3, "cpu": 25}
"""On a CPU the ratio is near 1 and needs more turns."""


def measure(device: torch.device, scale: Scale) -> list[Row]:
    dataset = random_images(scale.side)
    settings = {**SETTINGS, **scale.network, "batch_size": scale.batch}
    ours = make_trainer("ric", dataset, device, **settings, compile="on" if device.type == "cuda" else "off")
    plain = PlainTraining(configure(dataset, "ric", "fast", **settings), dataset, device)
    batch = plain.next_batch()
    candidates = {
        "plain": plain.step,
        "plain, batch on the device": lambda: plain.learn(*batch),
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
    options = argument_parser(__doc__).parse_args()
    scale = scale_for(options.device)
    rows = measure(options.device, scale)
    notes = ["T = 20, 2 roll-outs, a snapshot every 10 updates, Adam. Plain: float32, eager, a loader without workers."]
    publish(f"RIC's update: {scale}", rows, notes, options.device, options.json)


if __name__ == "__main__":
    main()
