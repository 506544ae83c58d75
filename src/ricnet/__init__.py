"""Reinforced Iterative Classification: classifiers that refine a belief step by step and stop by themselves."""

from ricnet.core.trajectory import Trajectory
from ricnet.data import Dataset, Split
from ricnet.errors import RicnetError
from ricnet.methods import Method
from ricnet.nets.encoders import register_encoder
from ricnet.training.api import train
from ricnet.training.classifier import Classifier, load
from ricnet.version import __version__

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
