"""Reinforced Iterative Classification: classifiers that refine a belief step by step and stop by themselves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ricnet.version import __version__

if TYPE_CHECKING:
    from ricnet.core.trajectory import Trajectory
    from ricnet.data import Dataset, Split
    from ricnet.errors import RicnetError
    from ricnet.methods import Method
    from ricnet.nets.encoders import register_encoder
    from ricnet.training.api import train
    from ricnet.training.classifier import Classifier, load

__all__ = [
    "Classifier",
    "Dataset",
    "Method",
    "RicnetError",
    "Split",
    "Trajectory",
    "__version__",
    "load",
    "register_encoder",
    "train",
]

_HOMES = {
    "Classifier": "ricnet.training.classifier",
    "Dataset": "ricnet.data",
    "Method": "ricnet.methods",
    "RicnetError": "ricnet.errors",
    "Split": "ricnet.data",
    "Trajectory": "ricnet.core.trajectory",
    "load": "ricnet.training.classifier",
    "register_encoder": "ricnet.nets.encoders",
    "train": "ricnet.training.api",
}


def __getattr__(name: str) -> Any:
    """Names are fetched when first used, so that `ric --help` and reports do not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ricnet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
