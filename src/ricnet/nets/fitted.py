"""Base class of layers that are computed from training rows before training."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Int64, Num
from torch import Tensor, nn


class FittedLayer(nn.Module, ABC):
    """Its buffers are set by `fit` and stored with the weights; training does not change them."""

    rows_to_fit: ClassVar[int | None] = None
    """Training rows, up to twice as many, that `fit` gets; None for all."""

    @abstractmethod
    def fit(self, inputs: Num[Tensor, "n ..."], labels: Int64[Tensor, "n"] | None) -> None:
        """Set the buffers by normalised training inputs and, if they are given, their labels."""
