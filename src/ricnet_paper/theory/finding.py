"""The result of checking a claim, and the comparison of a sample with a formula."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor

BOUND = 4.0
"""Largest accepted deviation in standard errors; exceeded by chance once in 16,000 comparisons. Seeds are fixed."""


@dataclass(frozen=True)
class Finding:
    name: str
    claim: str
    """Statement of the paper in one sentence."""
    passed: bool
    """Whether all bounds in the statement hold."""
    statement: str
    """What was measured, with numbers and bounds."""
    rows: list[dict[str, Any]]
    """Data of the figure, for a CSV file."""
    figure: Figure


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
    """As `compare`, with an expectation for each sample; the error is that of the differences."""
    error = (samples - expected).std(0) / len(samples) ** 0.5
    return Agreement(samples.mean(0), expected.mean(0), error)


def use_log_scale(ax: Axes, which: Literal["x", "y"], ticks: int = 6) -> None:
    """Logarithmic axis with plain numbers at powers of ten."""
    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(numticks=ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
