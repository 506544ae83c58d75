"""Stored test examples with their beliefs over steps, as a figure and as cards of the page."""

import base64
import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer, Num, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from PIL import Image

from ricnet.data.columns import Category, Columns, Number
from ricnet.data.texts import Text as Words
from ricnet.errors import RicnetError, counted
from ricnet.evaluation.examples import KINDS, Examples
from ricnet.io import printable, short
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, styled
from ricnet.report.runs import RunRecord
from ricnet.report.tables import percent

# Refinement: one column per example with the input, the belief over steps as a stack of class probabilities, and the
# value V, the gain still expected

TRUE_INK, RIVAL_INK = "#004a75", "#7a5300"  # dark blue and orange for text
HALT_ON_COLOUR = "#101214"  # also on a dark page
GREYS = ("#d5dae0", "#e3e7eb")
TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
STRIPES = 20  # maximum classes with their own area
SIDE = 96  # pixels of a thumbnail
MOST_CELLS = 6
"""Maximum cells of a row that are shown."""
NUMBERS = f"Of a row of numbers, the first {MOST_CELLS} are shown."
CELLS = f"Of a table row, the {MOST_CELLS} cells furthest from the training mean are shown, the furthest first."


def input_words(run: RunRecord) -> str:
    """A sentence on how rows of numbers are shown; empty for images and texts."""
    if run.examples is None or not run.examples.are_rows:
        return ""
    return NUMBERS if run.columns is None else CELLS


@styled
def refinement_figure(run: RunRecord, rows: Sequence[int] | None = None) -> Figure:
    """Refinement of these rows of the stored examples, by default of `telling_rows`."""
    examples = run.examples
    if examples is None or not len(examples.labels):
        raise RicnetError(f"{run.path} has no examples.npz: train it again or choose another run.")
    rows = telling_rows(examples) if rows is None else rows
    heights = (0.85, 1.55, 0.75) if examples.values is not None else (0.85, 1.55)
    figure = Figure(figsize=(max(3.6, 1.85 * len(rows)), sum(heights) + 0.75), layout="constrained")
    axes = figure.subplots(len(heights), len(rows), squeeze=False, height_ratios=heights)
    for column, row in enumerate(rows):
        _draw_input(axes[0, column], run, examples, row)
        _draw_belief(axes[1, column], run, examples, row)
        if examples.values is not None:
            _draw_value(axes[2, column], examples.values[:, row], int(examples.halt_step[row]), run.halt_threshold)
        axes[-1, column].set_xlabel("exit" if run.has_exits and run.steps_per_exit == 1 else "step")
    _label_left(axes)
    return figure


def telling_rows(examples: Examples, count: int = 4) -> list[int]:
    """Right answers from the fewest steps to the most, and one wrong answer if there is any."""
    order = np.argsort(examples.halt_step, kind="stable")
    correct = examples.answers[order] == examples.labels[order]
    right, wrong = order[correct], order[~correct]
    some_wrong = wrong[: 1 if len(right) else count]
    places = np.unique(np.linspace(0, len(right) - 1, count - len(some_wrong)).round().astype(int))
    return [int(row) for row in (*(right[places] if len(right) else ()), *some_wrong)]


def _draw_input(ax: Axes, run: RunRecord, examples: Examples, row: int) -> None:
    pixels = examples.inputs[row]
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title(f"true class: {short(run.class_names[examples.labels[row]])}", fontsize=8)
    if pixels.ndim == 3 and examples.texts is None:
        ax.imshow(np.asarray(small_image(pixels)), cmap="gray", interpolation="none")
    else:
        cells = (": ".join(cell) for cell in shown_cells(run.columns, pixels))
        words = "\n".join(cells) if examples.texts is None else textwrap.fill(short(examples.texts[row], 120), 22)
        ax.text(0, 1, printable(words), fontsize=6, va="top", parse_math=False, transform=ax.transAxes)


def shown_cells(columns: Columns | None, numbers: Num[np.ndarray, "numbers"]) -> list[tuple[str, str]]:
    """Names and contents of the cells of a row that lie furthest from the mean of the training rows, in standard
    deviations; a category has distance 1. Without columns, the first numbers."""
    if columns is None:
        return [(str(place), f"{number:.4g}") for place, number in enumerate(numbers[:MOST_CELLS].tolist(), 1)]

    def distance(part: tuple[Number | Category | Words, Sequence[float]]) -> float:
        return abs(part[1][0]) if isinstance(part[0], Number) else 1.0

    furthest = sorted(columns.split(numbers.tolist()), key=distance, reverse=True)[:MOST_CELLS]
    some = Columns(columns.target, tuple(column for column, _ in furthest))
    cells = some.cells([number for _, part in furthest for number in part])
    return [(short(name, 18), short(_cell_text(cell), 18)) for name, cell in cells.items()]


def _cell_text(cell: object) -> str:
    """Text of a cell: 18.0 is shown as 18, a missing cell as a dash."""
    if isinstance(cell, float) and cell.is_integer():
        return f"{cell:.0f}"
    return "–" if cell is None else str(cell)


def small_image(pixels: Num[np.ndarray, "channels height width"]) -> Image.Image:
    """A thumbnail of at most `SIDE` pixels; grey images are stretched to the full range."""
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else _stretched(pixels[0]))
    image.thumbnail((SIDE, SIDE))
    return image


def _stretched(plane: Num[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    low, high = float(plane.min()), float(plane.max())
    return ((plane - low) * (255 / ((high - low) or 1))).astype(np.uint8)


def _draw_belief(ax: Axes, run: RunRecord, examples: Examples, row: int) -> None:
    label, answer, halt = int(examples.labels[row]), int(examples.answers[row]), int(examples.halt_step[row])
    belief = with_start(np.exp(examples.log_beliefs[:, row]))
    last, rival = len(belief) - 1, leading_rival(belief[halt], label)
    rest = np.delete(belief, [label, rival], axis=1)
    rest = rest if rest.shape[1] <= STRIPES else rest.sum(axis=1, keepdims=True)
    layers = np.column_stack([belief[:, label], rest, belief[:, rival]])  # the true class below, its rival above
    greys = [GREYS[i % 2] for i in range(rest.shape[1])]
    ax.stackplot(np.arange(last + 1), layers.T, colors=[BLUE, *greys, ORANGE], linewidth=0)
    ax.axvspan(halt, last, facecolor="white", alpha=0.62, linewidth=0)
    ax.axvline(halt, color=HALT_ON_COLOUR, linewidth=1)
    for k, middle, shade in ((label, belief[-1, label] / 2, TRUE_INK), (rival, 1 - belief[-1, rival] / 2, RIVAL_INK)):
        if belief[-1, k] >= 0.12:
            style: Any = {"ha": "right", "va": "center", "fontweight": "bold", "transform": ax.transAxes}
            ax.text(0.97, middle, short(run.class_names[k], 10), color=shade if halt < last else "white", **style)
    ax.set(ylim=(0, 1), yticks=[0, 0.5, 1])
    _widen_first_steps(ax, last)
    ax.tick_params(labelbottom=examples.values is None)
    verdict = f"{'✓' if answer == label else '✗'} {short(run.class_names[answer])}"
    work = f"\n{run.work(halt)}" if run.has_exits else ""
    sure = f"{100 * belief[halt, answer]:.0f} % after {counted(halt, 'step')}{work}"
    ax.set_title(f"{verdict}\n{sure}", color=BLUE if answer == label else VERMILLION, fontweight="bold")


def with_start(belief: Float[np.ndarray, "steps classes"]) -> Float[np.ndarray, "more classes"]:
    """Prepend the uniform belief a₀, which is not stored."""
    return np.vstack([np.full((1, belief.shape[1]), 1 / belief.shape[1]), belief])


def leading_rival(belief: Float[np.ndarray, "classes"], label: int) -> int:
    """The most probable class other than the true one."""
    return int(np.argsort(np.where(np.arange(len(belief)) == label, -1.0, belief))[-1])


def _draw_value(ax: Axes, value: Float[np.ndarray, "steps"], halt: int, threshold: float | None) -> None:
    """V by step on an inverse-sine axis, which shows both log K and small values. `threshold` is None if all steps are
    taken."""
    asked = np.arange(len(value))
    ax.set_yscale("asinh", linear_width=0.05)
    if threshold is not None:
        _shade(ax, value, threshold)
    ax.plot(asked[: halt + 1], value[: halt + 1], color=GREEN)
    ax.plot(asked[halt:], value[halt:], color=GREEN, alpha=0.4)
    ax.axvline(halt, color=INK, linewidth=1)
    if threshold is not None and halt < len(value) and value[halt] < threshold:
        ax.plot([halt], [value[halt]], "o", color=INK, markersize=3.5, zorder=3)
    _widen_first_steps(ax, len(value))


def _shade(ax: Axes, value: Float[np.ndarray, "steps"], threshold: float) -> None:
    """The area between V and the threshold, below which the run halts."""
    asked = np.arange(len(value))
    for shade, side in ((GREEN, value >= threshold), (VERMILLION, value < threshold)):
        ax.fill_between(asked, value, threshold, where=side, interpolate=True, color=shade, alpha=0.23, linewidth=0)
    ax.axhline(threshold, color=FAINT, linewidth=0.6)


def _widen_first_steps(ax: Axes, last: int) -> None:
    """Square-root axis, which widens the first steps."""
    ax.set_xscale("function", functions=(lambda step: np.sqrt(np.maximum(step, 0)), np.square))
    ax.set_xlim(0, last)
    ax.xaxis.set_major_locator(FixedLocator([0, *(tick for tick in TICKS if tick < 0.7 * last), last]))


def _label_left(axes: np.ndarray) -> None:
    for ax in axes[1:, 1:].flat:
        ax.tick_params(labelleft=False)
    for ax, label in zip(axes[1:, 0], ("belief", "value V"), strict=False):
        ax.set_ylabel(label)
    if len(axes) > 2:
        low, high = (end(ax.get_ylim()[i] for ax in axes[2]) for i, end in enumerate((min, max)))
        for ax in axes[2]:
            ax.set_ylim(low, high)
            ax.yaxis.set_major_locator(FixedLocator([tick for tick in (-1, -0.1, 0, 0.1, 1) if low <= tick <= high]))
            ax.yaxis.set_minor_locator(NullLocator())
            ax.yaxis.set_major_formatter("{x:g}")


# Cards of the page: SVG paths, which take a hundredth of the bytes of a matplotlib figure

KINDS_IN_STEPS = {
    "easy": "right after the fewest steps",
    "hard": "right, after more than one step",
    "wrong": "with the highest confidence",
}
KINDS_IN_EQUAL_STEPS = {
    "easy": "right, with the highest confidence",
    "hard": "right, ranked by the gain after the first step",
    "wrong": "with the highest confidence",
}
"""Used instead if all easy and hard examples stop after the same number of steps."""
KINDS_AT_ONCE = {
    "easy": "right, with the highest confidence",
    "hard": "right, with the lowest confidence",
    "wrong": "with the highest confidence",
}
WIDTH, HEIGHT = 100, 48
"""Size of the drawing of a belief, as in page.html."""
TEXT = 160
"""Maximum characters of a text on a card."""
LOSSLESS = 64 * 64
"""Images up to this number of pixels are stored without loss."""

Card = dict[str, Any]


def gallery(run: RunRecord) -> list[dict[str, Any]]:
    """Title, description and cards of each kind of examples, or with exits of each exit, right answers first."""
    examples = run.examples
    assert examples is not None
    if not run.has_exits:  # confused examples are shown with the mistakes
        rows = {kind: np.flatnonzero(examples.kind == KINDS.index(kind)) for kind in KINDS_IN_STEPS}
        equal = len(np.unique(examples.halt_step[np.concatenate([rows["easy"], rows["hard"]])])) == 1
        words = (KINDS_IN_EQUAL_STEPS if equal else KINDS_IN_STEPS) if run.iterative else KINDS_AT_ONCE
        return [_part(run, kind.capitalize(), words[kind], rows[kind]) for kind in words]
    parts = []
    for entry in run.test["halting"]:
        step, here = entry["step"], entry["correct"] + entry["wrong"]
        place = "All the way" if step == len(run.test["per_step"]) else f"Exit {(step - 1) // run.steps_per_exit + 1}"
        about = f"{run.work(step)}; {percent(here / run.test['n'], 0)} of the test set leave here"
        about += f", {percent(entry['correct'] / here, 0)} of them right" if here else ""
        leaving = np.flatnonzero(examples.halt_step == step)
        wrong = examples.answers[leaving] != examples.labels[leaving]
        parts.append(_part(run, place, about, leaving[np.argsort(wrong, kind="stable")]))
    return parts


def _part(run: RunRecord, title: str, about: str, rows: Integer[np.ndarray, "rows"]) -> dict[str, Any]:
    return {"title": title, "about": about, "cards": [card(run, row) for row in rows.tolist()]}


def card(run: RunRecord, row: int) -> Card:
    """An example: the input, the belief over steps (true class from below, rival from above), the answer."""
    examples = run.examples
    assert examples is not None
    label, answer, halt = int(examples.labels[row]), int(examples.answers[row]), int(examples.halt_step[row])
    pixels, belief = examples.inputs[row], np.exp(examples.log_beliefs[:, row])
    after = f" after {counted(halt, 'step')}" * run.iterative + f", {run.work(halt)}" * run.has_exits
    sure = percent(float(belief[halt - 1, answer]), 0) + after
    belief, end = (with_start(belief), halt) if len(belief) > 1 else (np.repeat(belief, 2, axis=0), 1)
    across = WIDTH * np.sqrt(np.arange(len(belief)) / (len(belief) - 1))
    rival = belief[:, leading_rival(belief[end], label)]
    return {
        "text": None if examples.texts is None else short(examples.texts[row], TEXT),
        "image": data_uri(pixels) if pixels.ndim == 3 else None,
        "cells": shown_cells(run.columns, pixels) if examples.are_rows else [],
        "true": _area(across, HEIGHT - HEIGHT * belief[:, label], HEIGHT),
        "rival": _area(across, HEIGHT * rival, 0),
        "halt": round(float(across[end]), 1) if end < len(belief) - 1 else None,
        "first": percent(float(belief[0, label]), 0),
        "last": percent(float(belief[end, label]), 0),
        "right": answer == label,
        "answer": short(run.class_names[answer], 18),
        "truth": short(run.class_names[label], 18),
        "sure": sure,
    }


def _area(across: Float[np.ndarray, "x"], height: Float[np.ndarray, "x"], edge: int) -> str:
    """SVG path of the area between a curve and the edge of the drawing."""
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, height, strict=True))
    return f"M0 {edge}L{line}L{WIDTH} {edge}z"


def data_uri(pixels: Num[np.ndarray, "channels height width"]) -> str:
    """Thumbnail as data URI: PNG for small images, JPEG for larger ones."""
    image = small_image(pixels)
    kind, options = ("png", {"optimize": True}) if image.width * image.height <= LOSSLESS else ("jpeg", {"quality": 80})
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
