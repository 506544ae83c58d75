"""The cost of an update at the size of ImageNet-1k: 1,000 classes, photographs, a ResNet-34 with its original stem.

    python benchmarks/imagenet.py [--json FILE]

Images are random. `1.28M images` is the time of an epoch of that many images at this rate, without reading them.
`special functions` is the share of an eager update, by torch.profiler, that samples beliefs (Gamma and exponential
variables) and computes lgamma and digamma of the Dirichlet; memory is that of an eager update. On a CPU the network is
small and the number of classes the same.
"""

import gc
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from common import Row, argument_parser, make_trainer, peak_gigabytes, publish, random_images, synchronize, take_turns

CLASSES = 1000
IMAGES = 1_281_167
SIDES = {"cuda": (128, 224), "cpu": (16,)}
NETWORKS: dict[str, dict[str, Any]] = {
    "cuda": {"encoder": "resnet34", "stem": "original", "batch_size": 256, "compile": "on"},
    "cpu": {"encoder": "resnet10", "width": 0.25, "batch_size": 32, "compile": "off"},
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "ric-on-policy": {"horizon": 20, "rollouts": 2},
}
SPECIAL = ("aten::_standard_gamma", "aten::exponential_", "aten::lgamma", "aten::digamma", "aten::polygamma")


def measure(device: torch.device, side: int, network: dict[str, Any], turns: int, calls: int) -> list[Row]:
    dataset = random_images(side, CLASSES)
    trainers = {name: make_trainer(name, dataset, device, **own, **network) for name, own in SYSTEMS.items()}
    steps = {name: trainer._step for name, trainer in trainers.items()}
    seconds = take_turns(steps, device, turns, calls)
    return [
        {
            "side": side,
            "method": name,
            "ms": 1000 * (taken := seconds[name]),
            "images/s": (rate := trainer.batch_size / taken),
            "× SL": taken / seconds["supervised"],
            "1.28M images, s": IMAGES / rate,
            "special functions": special_share(name, device, side, network) if name == "ric-on-policy" else None,
            "peak GB": peak_gigabytes(trainer),
        }
        for name, trainer in trainers.items()
    ]


def special_share(method: str, device: torch.device, side: int, network: dict[str, Any]) -> float:
    """Measured on an eager update, because operations in compiled code have no names."""
    plain = network | {"compile": "off", "cuda_graph": False}
    trainer = make_trainer(method, random_images(side, CLASSES), device, **SYSTEMS[method], **plain)
    for _ in range(2):
        trainer._step()
    with profile(activities=activities(device)) as profiler:
        trainer._step()
        synchronize(device)
    taken = {event.key: own_time(event, device) for event in profiler.key_averages()}
    return sum(taken.get(name, 0.0) for name in SPECIAL) / sum(taken.values())


def activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])


def own_time(event: Any, device: torch.device) -> float:
    """Time of an operation on the device; kernels of a GPU are listed separately and not counted twice."""
    if device.type == "cpu":
        return float(event.self_cpu_time_total)
    return float(event.self_device_time_total) if event.key.startswith("aten::") else 0.0


def main() -> None:
    options = argument_parser(__doc__).parse_args()
    device: torch.device = options.device
    on_gpu = device.type == "cuda"
    network = NETWORKS[device.type]
    rows: list[Row] = []
    for side in SIDES[device.type]:
        rows += measure(device, side, network, turns=5, calls=5 if on_gpu else 1)
        gc.collect()  # a reference cycle of trainer and recording holds the memory of the graph
        torch.cuda.empty_cache()
    shown = ", ".join(f"{name} {value}" for name, value in network.items())
    publish(
        f"An update with {CLASSES} classes, T = 20, 2 roll-outs, on-policy: {shown}", rows, [], device, options.json
    )


if __name__ == "__main__":
    main()
