"""Settings that scripts/study_recipes.py compares: of each search its start and its stages, in their order.

Rates of Muon are on the scale of AdamW's.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

Settings = dict[str, Any]
"""Changes of the preset; `average_share` is the part of the run that the average of the weights covers."""


class Times(float):
    """A factor of the present value."""


SMALLER, LARGER = Times(0.5**0.5), Times(2**0.5)
"""The learning rate follows the root of the batch size."""


def nesterov(*rates: float, weight_decay: float) -> list[Settings]:
    """Its rates and its decay are on another scale than those of AdamW and Muon."""
    return [{"optimizer": "nesterov", "lr": rate, "weight_decay": weight_decay} for rate in rates]


PHOTOGRAPHS: dict[str, list[Settings]] = {
    "crops": [{"oversize": size, "crop_area": area} for size, area in product((1.0, 1.25), (0.08, 0.2, 0.35))],
    "batch": [{"batch_size": 64, "lr": SMALLER}, {"batch_size": 256, "lr": LARGER}],
    "learning rate": [{"lr": Times(factor)} for factor in (0.5, 2, 0.25)],  # .25 was added once .5 had won
    "weight decay": [{"weight_decay": decay} for decay in (0.1, 0.25, 1.0)],
    "epochs": [{"epochs": 80}],
    "label smoothing": [{"label_smoothing": 0.1}],
    "mixup": [{"mixup": 0.2}],
    "policy": [{"trivial_augment": True}],
    "stem": [{"stem": "half"}],
    "resolution": [{"resolution": 160}, {"resolution": 192}],
    "optimizer": [{"optimizer": "muon", "lr": Times(factor)} for factor in (0.5, 1, 2)]
    + nesterov(0.05, 0.2, weight_decay=5e-4),
    "schedule": [{"schedule": "linear"}],
}
SMALL_IMAGES: dict[str, list[Settings]] = {
    "batch": [{"batch_size": 256, "lr": SMALLER}, {"batch_size": 1024, "lr": LARGER}],
    "optimizer": [{"lr": Times(factor)} for factor in (0.5, 2, 4)] + nesterov(0.25, 0.5, 1.0, weight_decay=1e-3),
    "epochs": [{"epochs": 40}],
    "label smoothing": [{"label_smoothing": 0.1}, {"label_smoothing": 0.2}],
    "flip": [{"flip": "alternating"}],
    "shift": [{"shift": 2}, {"shift": 2, "padding": "reflect"}],
    "average": [{"average_share": share} for share in (0.0, 0.03, 0.3)],
}


@dataclass(frozen=True)
class Search:
    data: str
    fixed: Settings
    """Settings before the search, with which the result is compared."""
    start: Settings
    stages: dict[str, list[Settings]]
    """Without stages, `start` is only compared with the settings before."""
    methods: tuple[str, ...] = ("supervised", "ric-on-policy", "ric")
    """Methods that are trained with the result."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Their seeds, which chose nothing."""


PHOTOGRAPH: Settings = {"oversize": 1.0, "crop_area": 0.35, "batch_size": 128, "lr": 2e-3, "weight_decay": 0.5}
SMALL_IMAGE: Settings = {"batch_size": 512, "optimizer": "muon", "lr": 4e-3, "weight_decay": 0.5}
SHORT: Settings = {"epochs": 40, "average_share": 0.1}
SHORTER: Settings = {"epochs": 20, "average_share": 0.1}
FORMER_ON_A_CPU: Settings = {"encoder": "conv", "width": 0.5}
ON_A_CPU: Settings = SMALL_IMAGE | {"encoder": "whitened", "width": 0.25, "batch_size": 64, "average_share": 0.1}
"""Five epochs of 45,000 images take as long as the eight epochs of conv."""
FIFTH: Settings = {"train_fraction": 0.2}
FEW: Settings = {"train_fraction": 0.04, "validate_every": 5}
"""1,800 images; validation of 5,000 takes most of the time."""
IN_SHORT = ("supervised", "ric-on-policy"), (1, 2)
SEARCHES = {
    **{
        f"imagewoof-{encoder}": Search(
            "imagewoof", {"encoder": encoder, "resolution": 128, "oversize": 1.0}, PHOTOGRAPH | SHORT, PHOTOGRAPHS
        )
        for encoder in ("resnet18", "resnet34")
    },
    **{
        f"cifar10-{encoder}": Search("cifar10", {"encoder": encoder}, SMALL_IMAGE | SHORTER, SMALL_IMAGES)
        for encoder in ("whitened", "whitened-deep")
    },
    **{
        f"{data}-fifth-cpu": Search(data, FORMER_ON_A_CPU | FIFTH, ON_A_CPU | {"epochs": 12}, {}, *IN_SHORT)
        for data in ("cifar10", "svhn", "fashion-mnist")
    },
    "cifar10-few-cpu": Search("cifar10", FORMER_ON_A_CPU | FEW, ON_A_CPU | {"epochs": 30}, {}, *IN_SHORT),
    "cifar10-cpu": Search("cifar10", FORMER_ON_A_CPU, ON_A_CPU | {"epochs": 5}, {}, *IN_SHORT),
}
