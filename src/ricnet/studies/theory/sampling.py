"""Whether what was sampled agrees with a formula, judged by the sample's own standard error."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

BOUND = 4.0
"""Standard errors. A correct formula misses by more once in 16,000 comparisons, and seeds are fixed."""


class Agreement(NamedTuple):
    sampled: Float[Tensor, "*cells"]
    expected: Float[Tensor, "*cells"]
    standard_error: Float[Tensor, "*cells"]

    @property
    def deviation(self) -> Float[Tensor, "*cells"]:
        """In standard errors."""
        return (self.sampled - self.expected) / self.standard_error

    @property
    def largest(self) -> float:
        return float(self.deviation.abs().max())

    @property
    def holds(self) -> bool:
        return self.largest <= BOUND  # NaN does not hold


def compare(samples: Float[Tensor, "n *cells"], expected: Float[Tensor, "*cells"]) -> Agreement:
    return Agreement(samples.mean(0), expected, samples.std(0) / len(samples) ** 0.5)


def compare_pairs(samples: Float[Tensor, "n *cells"], expected: Float[Tensor, "n *cells"]) -> Agreement:
    """Where each sample has an expectation of its own, only what is left of it counts as noise."""
    error = (samples - expected).std(0) / len(samples) ** 0.5
    return Agreement(samples.mean(0), expected.mean(0), error)
