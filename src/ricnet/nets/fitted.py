"""Base class of layers that are computed from training rows before training."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Int64, Num
from torch import Tensor, nn


class FittedLayer(nn.Module, ABC):
    """Its buffers are set by `fit` and stored with the weights; training does not change them."""

    rows_to_fit: ClassVar[int | None] = None
    """`fit` gets this many training rows, or up to twice as many; None for all rows."""

    @abstractmethod
    def fit(self, inputs: Num[Tensor, "n ..."], labels: Int64[Tensor, "n"] | None) -> None:
        """Compute the buffers from normalised training inputs and, if given, their labels."""
