"""Figure of predictions, one row per example: the image, then the belief after selected steps until the halt.

Below each belief is the value V, the gain that the classifier still expects; it halts when V falls below the threshold.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.evaluation.examples import Examples
from ricnet.io import short
from ricnet.report.examples import small_image, with_start
from ricnet.report.figures import BLUE, FAINT, INK, ORANGE, VERMILLION, styled

FRAMES = 6
MOST_CLASSES = 10
"""Maximum classes with a bar: the most probable at the halt."""


@styled
def filmstrip_figure(
    examples: Examples, class_names: Sequence[str], rows: Sequence[int], halt_threshold: float | None = 0.0
) -> Figure:
    """`rows` are indices of the examples, which are images."""
    figure = Figure(figsize=(9.0, 1.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 1 + FRAMES, squeeze=False, width_ratios=[1.5, *[1.0] * FRAMES])
    for axes, row in zip(grid, rows, strict=True):
        _draw_picture(axes[0], examples, class_names, row)
        _draw_beliefs(list(axes[1:]), examples, class_names, row, halt_threshold)
    return figure


def frames(halt_step: int, count: int = FRAMES) -> list[int]:
    """Steps to show: the start, the first steps, the halt, and a few between them, where little changes."""
    spread = np.geomspace(1, halt_step, count - 1).round().astype(int)
    shown = sorted({0, *spread.tolist()})
    spare = [step for step in range(1, halt_step) if step not in shown]
    return sorted([*shown, *spare[: count - len(shown)]])


def _draw_picture(ax: Axes, examples: Examples, class_names: Sequence[str], row: int) -> None:
    ax.imshow(np.asarray(small_image(examples.inputs[row])), cmap="gray", interpolation="none")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title(f"true class: {short(class_names[examples.labels[row]])}")


def _draw_beliefs(
    axes: Sequence[Axes], examples: Examples, class_names: Sequence[str], row: int, threshold: float | None
) -> None:
    halt = int(examples.halt_step[row])
    beliefs = with_start(np.exp(examples.log_beliefs[:, row]))
    shown = _shown_classes(beliefs[halt])
    moments = frames(halt)
    for ax, step in zip(axes, moments, strict=False):
        _draw_bars(ax, beliefs[step, shown], _shades(examples, row, shown))
        ax.set_title("start" if step == 0 else f"step {step}")
        ax.set_xlabel(_value_text(examples, row, step, threshold), fontsize=7)
    for ax in axes[len(moments) :]:
        ax.remove()
    axes[0].set_yticks(range(len(shown)), [short(class_names[k]) for k in shown], fontsize=6.5)
    _conclude(axes[len(moments) - 1], examples, class_names, row)


def _shown_classes(belief: Float[np.ndarray, "classes"]) -> list[int]:
    """Classes to show, in the same order for all steps."""
    return sorted(np.argsort(-belief, kind="stable")[:MOST_CLASSES].tolist())


def _shades(examples: Examples, row: int, shown: Sequence[int]) -> list[str]:
    """Colours: a right answer blue, a wrong one vermillion and the true class orange."""
    answer, label = int(examples.answers[row]), int(examples.labels[row])
    own = {label: ORANGE} | {answer: BLUE if answer == label else VERMILLION}
    return [own.get(k, FAINT) for k in shown]


def _draw_bars(ax: Axes, belief: Float[np.ndarray, "shown"], shades: Sequence[str]) -> None:
    ax.barh(range(len(belief)), belief, color=shades, height=0.8)
    ax.set(xlim=(0, 1), xticks=[], yticks=[])
    ax.invert_yaxis()
    ax.spines["bottom"].set_visible(False)


def _value_text(examples: Examples, row: int, step: int, threshold: float | None) -> str:
    """The value after n steps, values[n]; none after the last step."""
    if examples.values is None or step >= len(examples.values):
        return ""
    value = float(examples.values[step, row])
    stops = step and threshold is not None and value < threshold
    return f"V = {value:+.3f}".replace("-", "−") + (": stops" if stops else "")


def _conclude(ax: Axes, examples: Examples, class_names: Sequence[str], row: int) -> None:
    halt, answer = int(examples.halt_step[row]), int(examples.answers[row])
    right = answer == int(examples.labels[row])
    confidence = belief(float(np.exp(examples.log_beliefs[halt - 1, row, answer])))
    text = f"{'✓' if right else '✗'} {short(class_names[answer])}\n{confidence}, step {halt}"
    ax.set_title(text, color=BLUE if right else VERMILLION, fontweight="bold")
    ax.spines["left"].set_color(INK)


def belief(share: float) -> str:
    """Probability in whole percent; below 1 it is never rounded to 100 %."""
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
