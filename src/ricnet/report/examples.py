"""Examples with the beliefs that grew over them: as a figure, as cards of the page, step by step in the terminal."""

import base64
import io
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float, Num, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator
from PIL import Image
from rich.table import Table
from rich.text import Text

from ricnet.data.columns import Category, Columns, Number
from ricnet.data.texts import Text as Words
from ricnet.errors import RicnetError, counted
from ricnet.evaluation.choices import NEVER
from ricnet.evaluation.evaluate import KINDS, Examples
from ricnet.io import printable, short
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, styled
from ricnet.report.runs import RunGroup, RunRecord
from ricnet.report.tables import (
    MOST_CLASSES,
    Confusion,
    class_grid,
    confusion,
    details,
    html_table,
    matrix_grid,
    pair_words,
    paragraph,
    percent,
    terms,
)

# The picture of the idea: a classifier starts knowing nothing, refines its belief, and stops by itself. Each column is
# one example. The stack shows where the probability goes: equal stripes at step 0, one colour at the end. Below it the
# value V, the gain the classifier still expects; it stops where that falls below its threshold.

TRUE_INK, RIVAL_INK = "#004a75", "#7a5300"  # the stripes' blue and orange, dark enough for letters on their tint
HALT_ON_COLOUR = "#101214"  # stays dark on a dark page, where the stack is as bright as ever
GREYS = ("#d5dae0", "#e3e7eb")
FAR = 1e3  # beyond any value
TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
STRIPES = 20  # with more classes than this, stripes would be hair: the rest becomes one area
SIDE = 96  # pixels; more are not seen at the size of a thumbnail
BARS = "A row of numbers is drawn as grey bars, one for each number that the model reads, up where it is positive."
MOST_BARS = 40
"""Maximum numbers of a row that are drawn."""
MOST_CELLS = 6
"""Maximum cells of a table row that are shown."""


def input_words(run: RunRecord) -> str:
    """A sentence on how rows of numbers are shown; empty for images and texts."""
    if run.examples is None or not run.examples.are_rows:
        return ""
    if run.columns is not None:
        count = len(run.columns.inputs)
        if count > MOST_CELLS:
            return f"Of each row, the {MOST_CELLS} of {count:,} cells furthest from the training mean are shown."
        return "The cells of a row are sorted by their distance from the training mean."
    count = run.examples.inputs.shape[1]
    left_out = f" Of {count:,} numbers, the {MOST_BARS} furthest from 0 are drawn." if count > MOST_BARS else ""
    return BARS + left_out


def shown_cells(columns: Columns, numbers: Num[np.ndarray, "numbers"]) -> list[tuple[str, str]]:
    """Names and contents of the cells of a row that lie furthest from the mean of the training rows, in standard
    deviations; categories count as 1."""

    def distance(part: tuple[Number | Category | Words, Sequence[float]]) -> float:
        return abs(part[1][0]) if isinstance(part[0], Number) else 1.0

    furthest = sorted(columns.split(numbers.tolist()), key=distance, reverse=True)[:MOST_CELLS]
    some = Columns(columns.target, tuple(column for column, _ in furthest))
    cells = some.cells([number for _, part in furthest for number in part])
    return [(short(name, 18), "–" if cell is None else short(str(cell), 18)) for name, cell in cells.items()]


def drawn_numbers(numbers: Num[np.ndarray, "numbers"]) -> Num[np.ndarray, "drawn"]:
    """The MOST_BARS numbers furthest from 0, in their original order."""
    if len(numbers) <= MOST_BARS:
        return numbers
    size = np.nan_to_num(np.abs(numbers.astype(np.float64)), posinf=0.0)
    return numbers[np.sort(np.argsort(-size, kind="stable")[:MOST_BARS])]


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
    if run.examples.texts is not None:
        words = textwrap.fill(short(printable(run.examples.texts[row]), 120), 22)
        ax.text(0, 1, words, fontsize=6, va="top", parse_math=False, transform=ax.transAxes)
    elif pixels.ndim == 3:
        ax.imshow(np.asarray(small_image(pixels)), cmap="gray", interpolation="none")
    elif run.columns is not None:
        words = "\n".join(f"{name}: {cell}" for name, cell in shown_cells(run.columns, pixels))
        ax.text(0, 1, printable(words), fontsize=6, va="top", parse_math=False, transform=ax.transAxes)
    else:
        drawn = drawn_numbers(pixels)
        ax.bar(np.arange(len(drawn)), drawn, color=FAINT, width=0.8)
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
    work = f"\n{run.work(halt)}" if run.has_exits else ""
    sure = f"{100 * belief[halt, answer]:.0f} % after {counted(halt, 'step')}{work}"
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


# Cards of the page, drawn by hand rather than by matplotlib: a card is a hundredth of a figure's size, and cards find
# their own places on a phone

IN_STEPS = {
    "easy": "right after the fewest steps",
    "hard": "right, with the most gained after the first step",
    "wrong": "and surest of it",
}
AT_ONCE = {"easy": "right, and surest of it", "hard": "right, but least sure", "wrong": "and surest of it"}
SLOWLY = "right, after more than one step"
"""Of hard ones, where some lost by their later steps."""
WIDTH, HEIGHT = 100, 48
TEXT = 160
"""Characters of a text that a card has room for."""
LOSSLESS = 64 * 64
"""Pixels of small images, each of which counts."""
PAIR_EXAMPLES = 3
"""Stored examples of a confusion."""


def gallery_html(groups: Sequence[RunGroup]) -> str:
    """A gallery for each system; of several, the first stands open. Empty where no run has examples."""
    shown = [group for group in groups if group.first.examples is not None and len(group.first.examples.labels)]
    if len(shown) == 1:
        return _gallery(shown[0].first)
    return "\n".join(
        details(group.label, _aside(group), _gallery(group.first), is_open=group is shown[0]) for group in shown
    )


def _aside(group: RunGroup) -> str:
    return f"seed {group.first.config.get('seed')}" if len(group.runs) > 1 else group.first.data_label


def _gallery(run: RunRecord) -> str:
    assert run.examples is not None
    if run.has_exits:
        return _by_exit(run, run.examples)
    words = IN_STEPS if run.iterative else AT_ONCE
    parts = []
    for kind, rows in rows_by_kind(run.examples).items():
        if rows and kind in words:  # those that are confused stand with the mistakes
            cards = "\n".join(card_html(run, row) for row in rows)
            slowly = run.iterative and kind == "hard" and not _all_gained(run.examples, rows)
            heading = f'{kind.capitalize()} <span class="aside">{escape(SLOWLY if slowly else words[kind])}</span>'
            parts.append(f'<h4>{heading}</h4>\n<div class="gallery">{cards}</div>')
    return "\n".join(parts)


def _by_exit(run: RunRecord, examples: Examples) -> str:
    """From those that left first to those that went all the way, the right answers before the wrong ones."""
    parts = []
    for entry in run.test["halting"]:
        left = np.flatnonzero(examples.halt_step == entry["step"])
        rows = sorted(left.tolist(), key=lambda row: bool(examples.answers[row] != examples.labels[row]))
        if not rows:
            continue
        here = entry["correct"] + entry["wrong"]
        said = f"{run.work(entry['step'])}; {percent(here / run.test['n'], 0)} of the test set leave here"
        said += f", {percent(entry['correct'] / here, 0)} of them right" if here else ""
        cards = "\n".join(card_html(run, row) for row in rows)
        heading = f'<h4>{exit_title(run, entry["step"])} <span class="aside">{escape(said)}</span></h4>'
        parts.append(f'{heading}\n<div class="gallery">{cards}</div>')
    return "\n".join(parts)


def exit_title(run: RunRecord, step: int) -> str:
    if step == len(run.test["per_step"]):
        return "All the way"
    place = (step - 1) // run.steps_per_exit + 1
    name = "First exit" if place == 1 else f"Exit {place}"
    return name if run.steps_per_exit == 1 else f"{name}, step {step}"


def _all_gained(examples: Examples, rows: Sequence[int]) -> bool:
    """Whether later steps raised the belief in the true class of each."""
    place, label = np.array(rows), examples.labels[rows]
    scores = examples.log_beliefs[:, place, label]
    return bool((scores[examples.halt_step[place] - 1, np.arange(len(rows))] > scores[0]).all())


def rows_by_kind(examples: Examples) -> dict[str, list[int]]:
    """In the order in which they are stored."""
    return {name: np.flatnonzero(examples.kind == code).tolist() for code, name in enumerate(KINDS)}


def card_html(run: RunRecord, row: int) -> str:
    assert run.examples is not None
    return f'<figure class="card">{_input(run, row)}{_belief(run.examples, row)}{_caption(run, row)}</figure>'


def _input(run: RunRecord, row: int) -> str:
    assert run.examples is not None
    pixels, truth = run.examples.inputs[row], escape(short(run.class_names[run.examples.labels[row]]))
    if run.examples.texts is not None:
        return f"<blockquote>{escape(short(run.examples.texts[row], TEXT))}</blockquote>"
    if pixels.ndim == 3:
        return f'<img src="{data_uri(pixels)}" alt="A test input of class {truth}">'
    if run.columns is not None:
        return f'<dl class="cells">{terms(shown_cells(run.columns, pixels))}</dl>'
    alt = f"The {pixels.size} features of a test input of class {truth}"
    return _drawing("input", 100, alt, f'<path d="{bars(drawn_numbers(pixels.ravel()))}"/>')


def _belief(examples: Examples, row: int) -> str:
    """The true class stands on the floor and its rival hangs from the ceiling, as in the figure of refinement."""
    label, halt = int(examples.labels[row]), int(examples.halt_step[row])
    belief = np.exp(examples.log_beliefs[:, row])
    belief, halt = (with_start(belief), halt) if len(belief) > 1 else (np.repeat(belief, 2, axis=0), 1)
    rival = leading_rival(belief[halt], label)
    across = WIDTH * np.sqrt(np.arange(len(belief)) / (len(belief) - 1))
    first, last = (percent(float(belief[at, label]), 0) for at in (0, halt))
    areas = f'<path class="true" d="{_area(across, belief[:, label], floor=True)}"/>'
    areas += f'<path class="rival" d="{_area(across, belief[:, rival], floor=False)}"/>'
    alt = f"Belief in the true class: {first} at first, {last} at the end"
    return _drawing("belief", HEIGHT, alt, areas + _halt(across, halt))


def _drawing(kind: str, height: int, alt: str, content: str) -> str:
    """As wide and high as the page wants it."""
    size = f'viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none"'
    return f'<svg class="{kind}" {size} role="img" aria-label="{alt}">{content}</svg>'


def _area(across: Float[np.ndarray, "x"], belief: Float[np.ndarray, "x"], *, floor: bool) -> str:
    edge = HEIGHT if floor else 0
    height = edge - HEIGHT * belief if floor else HEIGHT * belief
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, height, strict=True))
    return f"M0 {edge}L{line}L{WIDTH} {edge}z"


def _halt(across: Float[np.ndarray, "x"], halt: int) -> str:
    """What it would have gone on to believe is pale; nothing is where it went to the end."""
    at = float(across[halt])
    pale = f'<rect class="after" x="{at:.1f}" y="0" width="{WIDTH - at:.1f}" height="{HEIGHT}"/>'
    line = f'<path class="halt" d="M{at:.1f} 0V{HEIGHT}"/>'
    return pale + line if halt < len(across) - 1 else ""


def _caption(run: RunRecord, row: int) -> str:
    assert run.examples is not None
    examples = run.examples
    label, answer, halt = int(examples.labels[row]), int(examples.answers[row]), int(examples.halt_step[row])
    sure = percent(float(np.exp(examples.log_beliefs[halt - 1, row, answer])), 0)
    after = f" after {counted(halt, 'step')}" if run.iterative else ""
    after += f", {run.work(halt)}" if run.has_exits else ""
    is_right = answer == label
    verdict = f'<b class="{"right" if is_right else "mistake"}">{"✓" if is_right else "✗"} {_name(run, answer)}</b>'
    truth = "" if is_right else f", truly {_name(run, label)}"
    return f"<figcaption>{verdict}{truth}<br>{sure}{after}</figcaption>"


def _name(run: RunRecord, label: int) -> str:
    return escape(short(run.class_names[label], 18))


def data_uri(pixels: Num[np.ndarray, "channels height width"]) -> str:
    """PNG for small images, JPEG for photographs: the page stays small whatever the size of the data's images."""
    image = small_image(pixels)
    kind, options = ("png", {"optimize": True}) if image.width * image.height <= LOSSLESS else ("jpeg", {"quality": 80})
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def bars(features: Num[np.ndarray, "features"]) -> str:
    """A bar for each feature, up where it is positive: the path of an SVG of 100 by 100."""
    finite = np.nan_to_num(features.astype(np.float64), posinf=0.0, neginf=0.0)
    top, bottom = max(finite.max(initial=0.0), 0.0), min(finite.min(initial=0.0), 0.0)
    unit = 100 / ((top - bottom) or 1.0)
    zero, pitch = top * unit, 100 / max(len(finite), 1)
    return "".join(
        f"M{i * pitch:.4g} {zero:.4g}v{-value * unit:.4g}h{0.8 * pitch:.4g}V{zero:.4g}z"
        for i, value in enumerate(finite)
    )


# What it confuses


def mistakes_html(groups: Sequence[RunGroup]) -> str:
    found = {group.label: made for group in groups if (made := run_confusion(group.first)) is not None}
    shown = [group for group in groups if group.label in found]
    if len(shown) == 1:
        return _mistakes(shown[0].first, found[shown[0].label])
    return "\n".join(
        details(group.label, "", _mistakes(group.first, found[group.label]), is_open=group is shown[0])
        for group in shown
    )


def run_confusion(run: RunRecord) -> Confusion | None:
    """On the test set; None where the run did not keep its answers, or they are not of its classes."""
    if not run.has_predictions:
        return None
    kept, classes = run.predictions(), len(run.class_names)
    if kept.log_beliefs.shape[1] != classes or not len(kept.labels):
        return None
    if kept.labels.min() < 0 or kept.labels.max() >= classes:
        return None
    return confusion(kept.labels.numpy(), kept.log_beliefs.argmax(1).numpy(), run.class_names)


def _mistakes(run: RunRecord, found: Confusion) -> str:
    parts = [_pairs(run, found)]
    if len(found.names) <= MOST_CLASSES:
        parts.append(html_table("Confusion matrix", matrix_grid(found)))
    classes = class_grid(found)
    left = len(found.names) - len(classes.rows)
    parts.append(html_table("Precision and recall by class", classes))
    parts.append(paragraph(f"The {left:,} classes that are found more often are left out." if left else "", "note"))
    return "\n".join(filter(None, parts))


def _pairs(run: RunRecord, found: Confusion) -> str:
    pairs = found.pairs()
    if not pairs:
        return paragraph("No test example is taken for another class.")
    items = [f"<li>{escape(pair_words(found, *pair))}{_examples(run, *pair[:2])}</li>" for pair in pairs]
    return f"<h4>Confused most</h4>\n<ol>{''.join(items)}</ol>"


def _examples(run: RunRecord, true: int, answer: int) -> str:
    """Stored ones, where there are any."""
    if run.examples is None:
        return ""
    rows = np.flatnonzero((run.examples.labels == true) & (run.examples.answers == answer))[:PAIR_EXAMPLES]
    cards = "\n".join(card_html(run, int(row)) for row in rows)
    return f'<div class="gallery">{cards}</div>' if len(rows) else ""


# A prediction thinking aloud in the terminal: one line a step, the belief as a stacked bar, whose shades differ as well
# as its colours, so that it reads the same in a log file; with exits also the share of compute

SHADES = "█▓▒░▚"
COLOURS = ("blue", "yellow", "magenta", "cyan", "green")  # the terminal's own, so that its theme is kept
TERMINAL = 80
TIME_UP = "time's up"
"""Why there are no more steps, where a clock ended them."""


def trace_lines(
    log_beliefs: Float[np.ndarray, "steps classes"],
    values: Float[np.ndarray, "steps"] | None,
    halt_step: int,
    class_names: Sequence[str],
    top: int = 3,
    costs: Sequence[float] = (),
    steps_per_exit: int = 1,
    end: str = "last step",
    threshold: float = 0.0,
) -> Table:
    """The belief after each step; `top` classes (at most five) have a shade of their own. With exits, `costs` are those
    of the trajectory. `end` says why there are no more steps, `threshold` below which value none is made."""
    belief = np.exp(log_beliefs)
    leaders = leading_classes(belief, halt_step, min(top, len(SHADES)))
    names = [short(class_names[k], 9 if top <= 3 else 6) for k in leaders]
    places = ["step"] if not costs else ["exit", "compute"] if steps_per_exit == 1 else ["step", "exit", "compute"]
    table = _trace_table(places, names, None if values is None else threshold)
    taken = sum(len(place) + 2 for place in places) + sum(max(len(name) + 2, 5) + 2 for name in names)
    width = min(30, TERMINAL - len("  " + "+0.000  " + "◀ last step  ") - taken)
    for step, row in enumerate(belief, start=1):
        shares = row[leaders]
        place = {"step": str(step), "exit": str((step - 1) // steps_per_exit + 1)}
        if costs:
            place["compute"] = f"{100 * costs[step - 1]:.0f} %"
        cells = [Text(place[name]) for name in places]
        cells += [_stacked_bar(shares, width), *(Text(f"{share:.3f}") for share in shares)]
        if values is not None:
            cells.append(Text(f"{values[step]:+.3f}" if step < len(values) else ""))
        cells.append(Text(_mark(step, halt_step, len(belief), end, values is not None, bool(costs)), style="bold"))
        table.add_row(*cells, style="dim" if step > halt_step else None)
    return table


def leading_classes(belief: Float[np.ndarray, "steps classes"], halt_step: int, top: int) -> list[int]:
    """The answer first, then the classes that were ever believed most before the halt."""
    answer = int(belief[halt_step - 1].argmax())
    order = np.argsort(-belief[:halt_step].max(axis=0), kind="stable")
    return [answer, *(int(k) for k in order if k != answer)][:top]


def _trace_table(places: Sequence[str], names: Sequence[str], threshold: float | None) -> Table:
    """Without a threshold there is no column for values."""
    going, stops = ("looking further", "leaves") if "compute" in places else ("going on", "stops")
    note = None if threshold is None else f"V: the gain expected from {going}; below {threshold:.3g}, it {stops}."
    if threshold == NEVER:
        note = f"V: the gain expected from {going}. All steps are made."
    table = Table(box=None, padding=(0, 2, 0, 0), caption=note, caption_justify="left", header_style="none")
    for place in places:
        table.add_column(place, justify="right", no_wrap=True)
    table.add_column("belief", no_wrap=True)
    for name, shade, colour in zip(names, SHADES, COLOURS, strict=False):
        table.add_column(Text(f"{shade} {name}", style=colour), justify="right", no_wrap=True)
    if threshold is not None:
        table.add_column("V", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    return table


def _stacked_bar(shares: Float[np.ndarray, "leaders"], width: int) -> Text:
    """Ends are rounded, not lengths, so the parts never add up to more than the whole."""
    ends = np.rint(width * np.cumsum(shares)).astype(int).clip(0, width)
    lengths = np.diff(ends, prepend=0)
    bar = Text()
    for length, shade, colour in zip(lengths, SHADES, COLOURS, strict=False):
        bar.append(shade * int(length), style=colour)
    return bar.append("·" * (width - int(ends[-1])), style="dim")


def _mark(step: int, halt_step: int, last: int, end: str, has_values: bool, has_exits: bool) -> str:
    if step != halt_step:
        return ""
    if step == last and (has_values or has_exits or end == TIME_UP):
        return f"◀ {end}"
    return "◀ leaves" if has_exits else "◀ stops"
