"""Reinforced Iterative Classification: classifiers that refine a belief step by step and stop by themselves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ricnet.machine import settle_threads
from ricnet.version import __version__

settle_threads()  # before torch is imported

if TYPE_CHECKING:
    from ricnet.apps.estimators import (
        ACTClassifier,
        AnytimeClassifier,
        PonderNetClassifier,
        RICClassifier,
        SupervisedClassifier,
    )
    from ricnet.core.trajectory import Trajectory
    from ricnet.data import Dataset, Split, register_dataset
    from ricnet.errors import InputWarning, RicnetError
    from ricnet.methods import Method, register_method
    from ricnet.models.classifier import Classifier
    from ricnet.models.loading import load
    from ricnet.nets.encoders import register_encoder
    from ricnet.training.api import train
    from ricnet.training.callbacks import Callback

__all__ = [
    "ACTClassifier",
    "AnytimeClassifier",
    "Callback",
    "Classifier",
    "Dataset",
    "InputWarning",
    "Method",
    "PonderNetClassifier",
    "RICClassifier",
    "RicnetError",
    "Split",
    "SupervisedClassifier",
    "Trajectory",
    "__version__",
    "load",
    "register_dataset",
    "register_encoder",
    "register_method",
    "train",
]

_HOMES = {
    "Classifier": "ricnet.models.classifier",
    "Callback": "ricnet.training.callbacks",
    "Dataset": "ricnet.data",
    "InputWarning": "ricnet.errors",
    "Method": "ricnet.methods",
    "RicnetError": "ricnet.errors",
    "Split": "ricnet.data",
    "Trajectory": "ricnet.core.trajectory",
    "load": "ricnet.models.loading",
    "register_dataset": "ricnet.data",
    "register_encoder": "ricnet.nets.encoders",
    "register_method": "ricnet.methods",
    "train": "ricnet.training.api",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `ric --help` and reports do not import torch."""
    home = _HOMES.get(name, "ricnet.apps.estimators" if name.endswith("Classifier") else None)
    if home is None:
        raise AttributeError(f"module 'ricnet' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Includes names that are not imported yet, for tab completion."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
