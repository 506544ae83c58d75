"""The picture of the idea: a classifier starts knowing nothing, refines its belief, and stops by itself.

Each column is one example. The stack shows where the probability goes: equal stripes at step 0, one colour at the
end. Below it the value V, the gain the classifier still expects; where V falls below its threshold, which is zero
unless the run says otherwise, it stops.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Num, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator
from PIL import Image

from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import Examples
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, styled
from ricnet.report.runs import RunRecord
from ricnet.report.titles import short, steps

TRUE_INK, RIVAL_INK = "#004a75", "#7a5300"  # the stripes' blue and orange, dark enough for letters on their tint
HALT_ON_COLOUR = "#101214"  # stays dark on a dark page, where the stack is as bright as ever
GREYS = ("#d5dae0", "#e3e7eb")
FAR = 1e3  # beyond any value
TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
STRIPES = 20  # with more classes than this, stripes would be hair: the rest becomes one area
SIDE = 96  # pixels; more are not seen at the size of a thumbnail
BARS = "A row of numbers is drawn as grey bars, one for each number that the model reads, up where it is positive."


@styled
def refinement_figure(run: RunRecord, rows: Sequence[int] | None = None) -> Figure:
    """`rows` are places among the run's stored examples; without them, telling ones are chosen."""
    if run.examples is None or not len(run.examples.labels):
        raise RicnetError(f"{run.path} holds no examples.npz to draw: train again, or draw another run.")
    rows = telling_rows(run.examples) if rows is None else rows
    heights = (0.85, 1.55, 0.75) if run.examples.values is not None else (0.85, 1.55)
    figure = Figure(figsize=(max(3.6, 1.85 * len(rows)), sum(heights) + 0.75), layout="constrained")
    axes = figure.subplots(len(heights), len(rows), squeeze=False, height_ratios=heights)
    for column, row in enumerate(rows):
        _draw_input(axes[0, column], run, row)
        _draw_belief(axes[1, column], run, row)
        if run.examples.values is not None:
            _draw_value(axes[2, column], run.examples, row, run.halt_threshold)
        axes[-1, column].set_xlabel("exit" if run.has_exits and run.steps_per_exit == 1 else "step")
    _label_left(axes)
    if run.examples.values is not None:
        halt = int(run.examples.halt_step[rows[0]])
        if halt < run.max_steps:  # there it is not the value that stops it
            _explain_halt(axes[2, 0], float(np.sqrt(halt / len(run.examples.values))), run.halt_threshold)
    return figure


def telling_rows(examples: Examples, count: int = 4) -> list[int]:
    """From the right answer given soonest to the one given latest, and last a wrong one if there is any."""
    order = np.argsort(examples.halt_step, kind="stable")
    correct = examples.answers[order] == examples.labels[order]
    right, wrong = order[correct], order[~correct]
    some_wrong = wrong[: 1 if len(right) else count]
    places = np.unique(np.linspace(0, len(right) - 1, count - len(some_wrong)).round().astype(int))
    return [int(row) for row in (*(right[places] if len(right) else ()), *some_wrong)]


def _draw_input(ax: Axes, run: RunRecord, row: int) -> None:
    assert run.examples is not None
    pixels = run.examples.inputs[row]
    if pixels.ndim == 3:
        ax.imshow(np.asarray(small_image(pixels)), cmap="gray", interpolation="none")
    else:
        ax.bar(np.arange(len(pixels)), pixels, color=FAINT, width=0.8)
        ax.axhline(0, color=FAINT, linewidth=0.5)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title(f"true class: {short(run.class_names[run.examples.labels[row]])}", fontsize=8)


def _draw_belief(ax: Axes, run: RunRecord, row: int) -> None:
    assert run.examples is not None
    examples = run.examples
    label, answer, halt = int(examples.labels[row]), int(examples.answers[row]), int(examples.halt_step[row])
    belief = with_start(np.exp(examples.log_beliefs[:, row]))
    rival = leading_rival(belief[halt], label)
    _draw_stack(ax, belief, label, rival)
    ax.axvspan(halt, len(belief) - 1, facecolor="white", alpha=0.62, linewidth=0)
    ax.axvline(halt, color=HALT_ON_COLOUR, linewidth=1)
    _name_stripe(ax, short(run.class_names[label], 10), belief[:, label], halt, TRUE_INK, from_floor=True)
    _name_stripe(ax, short(run.class_names[rival], 10), belief[:, rival], halt, RIVAL_INK, from_floor=False)
    ax.set(ylim=(0, 1), yticks=[0, 0.5, 1])
    _widen_first_steps(ax, len(belief) - 1)
    ax.tick_params(labelbottom=examples.values is None)
    verdict = f"{'✓' if answer == label else '✗'} {short(run.class_names[answer])}"
    shade = BLUE if answer == label else VERMILLION
    work = f"\nfor {run.work(halt)}" if run.has_exits else ""
    sure = f"{100 * belief[halt, answer]:.0f} % after {steps(halt)}{work}"
    ax.set_title(f"{verdict}\n{sure}", color=shade, fontweight="bold")


def _draw_stack(ax: Axes, belief: Float[np.ndarray, "steps classes"], label: int, rival: int) -> None:
    """The true class stands on the floor and its rival hangs from the ceiling: both read off the axis."""
    rest = np.delete(belief, [label, rival], axis=1)
    rest = rest if rest.shape[1] <= STRIPES else rest.sum(axis=1, keepdims=True)
    layers = np.column_stack([belief[:, label], rest, belief[:, rival]])
    greys = [GREYS[i % 2] for i in range(rest.shape[1])]
    ax.stackplot(np.arange(len(belief)), layers.T, colors=[BLUE, *greys, ORANGE], linewidth=0)


def _name_stripe(ax: Axes, name: str, belief: np.ndarray, halt: int, shade: str, *, from_floor: bool) -> None:
    """Write a class's name where its stripe ends, or where the refinement did, if there is room for it."""
    last = len(belief) - 1
    end, width = float(np.sqrt(halt / last)), 0.06 + 0.048 * len(name)  # as shares of the axis
    pale = 1 - end > width
    at = last if pale else halt
    middle = belief[at] / 2 if from_floor else 1 - belief[at] / 2
    if belief[at] >= 0.12 and (pale or end > width):
        style: Any = {"ha": "right", "va": "center", "color": shade if pale else "white", "fontweight": "bold"}
        ax.text((1 if pale else end) - 0.03, middle, name, transform=ax.transAxes, **style)


def _draw_value(ax: Axes, examples: Examples, row: int, threshold: float) -> None:
    """An inverse-sine axis: V begins near log K and crosses the threshold by a hair, and both must be seen."""
    assert examples.values is not None
    value, halt = examples.values[:, row], int(examples.halt_step[row])
    asked = np.arange(len(value))
    ax.set_yscale("asinh", linear_width=0.05)
    for shade, floor in ((GREEN, threshold), (VERMILLION, threshold - FAR)):
        area = ax.fill_between(asked, value, threshold, color=shade, alpha=0.23, linewidth=0)
        area.set_clip_path(Rectangle((0, floor), len(value), FAR, transform=ax.transData))
    ax.axhline(threshold, color=FAINT, linewidth=0.6)
    ax.plot(asked[: halt + 1], value[: halt + 1], color=GREEN)
    ax.plot(asked[halt:], value[halt:], color=GREEN, alpha=0.4)
    ax.axvline(halt, color=INK, linewidth=1)
    if halt < len(value) and value[halt] < threshold:
        ax.plot([halt], [value[halt]], "o", color=INK, markersize=3.5, zorder=3)
    _widen_first_steps(ax, len(value))


def _widen_first_steps(ax: Axes, last: int) -> None:
    """A square-root axis: most of a belief is settled in the first steps, so they get most of the room."""
    ax.set_xscale("function", functions=(lambda step: np.sqrt(np.maximum(step, 0)), np.square))
    ax.set_xlim(0, last)
    ax.xaxis.set_major_locator(FixedLocator([0, *(tick for tick in TICKS if tick < 0.7 * last), last]))


def _label_left(axes: np.ndarray) -> None:
    for ax in axes[1:, 1:].flat:
        ax.tick_params(labelleft=False)
    axes[1, 0].set_ylabel("belief")
    if len(axes) > 2:
        axes[2, 0].set_ylabel("value V")
        low = min(ax.get_ylim()[0] for ax in axes[2])
        high = max(ax.get_ylim()[1] for ax in axes[2])
        for ax in axes[2]:
            ax.set_ylim(low, high)
            ax.yaxis.set_major_locator(FixedLocator([tick for tick in (-1, -0.1, 0, 0.1, 1) if low <= tick <= high]))
            ax.yaxis.set_minor_locator(NullLocator())
            ax.yaxis.set_major_formatter("{x:g}")


def _explain_halt(ax: Axes, end: float, threshold: float) -> None:
    """The one thing a newcomer must know about V, said once, where there is room for it beyond the halt."""
    if end < 0.6:
        text = f"V < {threshold:g}: stops"
        ax.text(end + 0.04, 0.97, text, transform=ax.transAxes, va="top", fontsize=7)


def with_start(belief: Float[np.ndarray, "steps classes"]) -> Float[np.ndarray, "more classes"]:
    """Every episode begins at the uniform belief a₀, which no trajectory stores."""
    return np.vstack([np.full((1, belief.shape[1]), 1 / belief.shape[1]), belief])


def leading_rival(belief: Float[np.ndarray, "classes"], label: int) -> int:
    """The class most believed after the true one."""
    return int(np.argsort(np.where(np.arange(len(belief)) == label, -1.0, belief))[-1])


def small_image(pixels: Num[np.ndarray, "channels height width"]) -> Image.Image:
    """Grey or colour, no side longer than `SIDE`; a grey image from its darkest value to its brightest."""
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else _stretched(pixels[0]))
    image.thumbnail((SIDE, SIDE))
    return image


def _stretched(plane: Num[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    low, high = float(plane.min()), float(plane.max())
    return ((plane - low) * (255 / ((high - low) or 1))).astype(np.uint8)
