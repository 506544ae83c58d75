"""Stored test examples with their beliefs over steps, as a figure and as cards of the page; confused classes."""

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

from ricnet.data.columns import Category, Columns, Number
from ricnet.data.texts import Text as Words
from ricnet.errors import RicnetError, counted
from ricnet.evaluation.examples import KINDS, Examples
from ricnet.io import printable, short
from ricnet.report import tables
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, styled
from ricnet.report.runs import RunGroup, RunRecord

# Figure of refinement: one column per example with the input, the belief over steps as a stack of class probabilities,
# and the value V, the gain still expected.

TRUE_INK, RIVAL_INK = "#004a75", "#7a5300"  # dark blue and orange for text
HALT_ON_COLOUR = "#101214"  # also on a dark page
GREYS = ("#d5dae0", "#e3e7eb")
FAR = 1e3  # larger than any value
TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
STRIPES = 20  # maximum classes with their own area
SIDE = 96  # pixels of a thumbnail
BARS = "A row of numbers is drawn as grey bars, one per number, upwards if positive."
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
    """Refinement of these rows of the stored examples, by default of `telling_rows`."""
    if run.examples is None or not len(run.examples.labels):
        raise RicnetError(f"{run.path} has no examples.npz: train it again or choose another run.")
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
        if halt < run.max_steps:  # otherwise it does not stop by its value
            _explain_halt(axes[2, 0], float(np.sqrt(halt / len(run.examples.values))), run.halt_threshold)
    return figure


def telling_rows(examples: Examples, count: int = 4) -> list[int]:
    """Right answers from the fewest steps to the most, and one wrong answer if there is any."""
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
    """The true class is drawn from below, its rival from above."""
    rest = np.delete(belief, [label, rival], axis=1)
    rest = rest if rest.shape[1] <= STRIPES else rest.sum(axis=1, keepdims=True)
    layers = np.column_stack([belief[:, label], rest, belief[:, rival]])
    greys = [GREYS[i % 2] for i in range(rest.shape[1])]
    ax.stackplot(np.arange(len(belief)), layers.T, colors=[BLUE, *greys, ORANGE], linewidth=0)


def _name_stripe(ax: Axes, name: str, belief: np.ndarray, halt: int, shade: str, *, from_floor: bool) -> None:
    """Write the name of a class at the end of its area or at the halt, if there is room."""
    last = len(belief) - 1
    end, width = float(np.sqrt(halt / last)), 0.06 + 0.048 * len(name)  # shares of the axis
    pale = 1 - end > width
    at = last if pale else halt
    middle = belief[at] / 2 if from_floor else 1 - belief[at] / 2
    if belief[at] >= 0.12 and (pale or end > width):
        style: Any = {"ha": "right", "va": "center", "color": shade if pale else "white", "fontweight": "bold"}
        ax.text((1 if pale else end) - 0.03, middle, name, transform=ax.transAxes, **style)


def _draw_value(ax: Axes, examples: Examples, row: int, threshold: float) -> None:
    """V by step on an inverse-sine axis, which shows both log K and small values."""
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
    """Square-root axis, which gives the first steps more room."""
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
    """Write the halting rule beside the halt, if there is room."""
    if end < 0.6:
        text = f"V < {threshold:g}: stops"
        ax.text(end + 0.04, 0.97, text, transform=ax.transAxes, va="top", fontsize=7)


def with_start(belief: Float[np.ndarray, "steps classes"]) -> Float[np.ndarray, "more classes"]:
    """Prepend the uniform belief a₀, which is not stored."""
    return np.vstack([np.full((1, belief.shape[1]), 1 / belief.shape[1]), belief])


def leading_rival(belief: Float[np.ndarray, "classes"], label: int) -> int:
    """The most probable class other than the true one."""
    return int(np.argsort(np.where(np.arange(len(belief)) == label, -1.0, belief))[-1])


def small_image(pixels: Num[np.ndarray, "channels height width"]) -> Image.Image:
    """A thumbnail of at most `SIDE` pixels; grey images are stretched to the full range."""
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else _stretched(pixels[0]))
    image.thumbnail((SIDE, SIDE))
    return image


def _stretched(plane: Num[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    low, high = float(plane.min()), float(plane.max())
    return ((plane - low) * (255 / ((high - low) or 1))).astype(np.uint8)


# Cards of the page, written as small SVG, a hundredth of the size of matplotlib's

IN_STEPS = {
    "easy": "right after the fewest steps",
    "hard": "right, with the most gained after the first step",
    "wrong": "and surest of it",
}
AT_ONCE = {"easy": "right, and surest of it", "hard": "right, but least sure", "wrong": "and surest of it"}
SLOWLY = "right, after more than one step"
"""Heading of hard examples if later steps did not help all of them."""
WIDTH, HEIGHT = 100, 48
TEXT = 160
"""Maximum characters of a text on a card."""
LOSSLESS = 64 * 64
"""Images up to this number of pixels are stored without loss."""
PAIR_EXAMPLES = 3
"""Maximum examples of a confused pair."""


def gallery_html(groups: Sequence[RunGroup]) -> str:
    """One gallery per system, the first unfolded; empty without examples."""
    shown = [group for group in groups if group.first.examples is not None and len(group.first.examples.labels)]
    asides = [f"seed {one.first.seed}" if len(one.runs) > 1 else one.first.data_label for one in shown]
    return _folded([(group.label, aside, _gallery(group.first)) for group, aside in zip(shown, asides, strict=True)])


def _folded(parts: Sequence[tuple[str, str, str]]) -> str:
    """Label, aside and HTML of each system: several can be unfolded, the first is."""
    if len(parts) == 1:
        return parts[0][2]
    return "\n".join(tables.details(*part, is_open=part is parts[0]) for part in parts)


def _gallery(run: RunRecord) -> str:
    assert run.examples is not None
    if run.has_exits:
        return _by_exit(run, run.examples)
    words = IN_STEPS if run.iterative else AT_ONCE
    parts = []
    for kind, rows in rows_by_kind(run.examples).items():
        if rows and kind in words:  # confused ones are shown with the mistakes
            cards = "\n".join(card_html(run, row) for row in rows)
            slowly = run.iterative and kind == "hard" and not _all_gained(run.examples, rows)
            heading = f'{kind.capitalize()} <span class="aside">{escape(SLOWLY if slowly else words[kind])}</span>'
            parts.append(f'<h4>{heading}</h4>\n<div class="gallery">{cards}</div>')
    return "\n".join(parts)


def _by_exit(run: RunRecord, examples: Examples) -> str:
    """Cards by exit, from the first to the last, right answers first."""
    parts = []
    for entry in run.test["halting"]:
        left = np.flatnonzero(examples.halt_step == entry["step"])
        rows = sorted(left.tolist(), key=lambda row: bool(examples.answers[row] != examples.labels[row]))
        if not rows:
            continue
        here = entry["correct"] + entry["wrong"]
        said = f"{run.work(entry['step'])}; {tables.percent(here / run.test['n'], 0)} of the test set leave here"
        said += f", {tables.percent(entry['correct'] / here, 0)} of them right" if here else ""
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
    """Whether later steps raised the probability of the true class in all rows."""
    place, label = np.array(rows), examples.labels[rows]
    scores = examples.log_beliefs[:, place, label]
    return bool((scores[examples.halt_step[place] - 1, np.arange(len(rows))] > scores[0]).all())


def rows_by_kind(examples: Examples) -> dict[str, list[int]]:
    """Rows of each kind in stored order."""
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
        return f'<dl class="cells">{tables.terms(shown_cells(run.columns, pixels))}</dl>'
    alt = f"The {pixels.size} features of a test input of class {truth}"
    return _drawing("input", 100, alt, f'<path d="{bars(drawn_numbers(pixels.ravel()))}"/>')


def _belief(examples: Examples, row: int) -> str:
    """SVG of the belief over steps: true class from below, rival from above."""
    label, halt = int(examples.labels[row]), int(examples.halt_step[row])
    belief = np.exp(examples.log_beliefs[:, row])
    belief, halt = (with_start(belief), halt) if len(belief) > 1 else (np.repeat(belief, 2, axis=0), 1)
    rival = leading_rival(belief[halt], label)
    across = WIDTH * np.sqrt(np.arange(len(belief)) / (len(belief) - 1))
    first, last = (tables.percent(float(belief[at, label]), 0) for at in (0, halt))
    areas = f'<path class="true" d="{_area(across, belief[:, label], floor=True)}"/>'
    areas += f'<path class="rival" d="{_area(across, belief[:, rival], floor=False)}"/>'
    alt = f"Belief in the true class: {first} at first, {last} at the end"
    return _drawing("belief", HEIGHT, alt, areas + _halt(across, halt))


def _drawing(kind: str, height: int, alt: str, content: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none"'
    return f'<svg class="{kind}" {size} role="img" aria-label="{alt}">{content}</svg>'


def _area(across: Float[np.ndarray, "x"], belief: Float[np.ndarray, "x"], *, floor: bool) -> str:
    edge = HEIGHT if floor else 0
    height = edge - HEIGHT * belief if floor else HEIGHT * belief
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, height, strict=True))
    return f"M0 {edge}L{line}L{WIDTH} {edge}z"


def _halt(across: Float[np.ndarray, "x"], halt: int) -> str:
    """A line at the halt, with later steps pale; empty if all steps were taken."""
    at = float(across[halt])
    pale = f'<rect class="after" x="{at:.1f}" y="0" width="{WIDTH - at:.1f}" height="{HEIGHT}"/>'
    line = f'<path class="halt" d="M{at:.1f} 0V{HEIGHT}"/>'
    return pale + line if halt < len(across) - 1 else ""


def _caption(run: RunRecord, row: int) -> str:
    assert run.examples is not None
    examples = run.examples
    label, answer, halt = int(examples.labels[row]), int(examples.answers[row]), int(examples.halt_step[row])
    sure = tables.percent(float(np.exp(examples.log_beliefs[halt - 1, row, answer])), 0)
    after = f" after {counted(halt, 'step')}" if run.iterative else ""
    after += f", {run.work(halt)}" if run.has_exits else ""
    is_right = answer == label
    verdict = f'<b class="{"right" if is_right else "mistake"}">{"✓" if is_right else "✗"} {_name(run, answer)}</b>'
    truth = "" if is_right else f", truly {_name(run, label)}"
    return f"<figcaption>{verdict}{truth}<br>{sure}{after}</figcaption>"


def _name(run: RunRecord, label: int) -> str:
    return escape(short(run.class_names[label], 18))


def data_uri(pixels: Num[np.ndarray, "channels height width"]) -> str:
    """Thumbnail as data URI: PNG for small images, JPEG for larger ones."""
    image = small_image(pixels)
    kind, options = ("png", {"optimize": True}) if image.width * image.height <= LOSSLESS else ("jpeg", {"quality": 80})
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def bars(features: Num[np.ndarray, "features"]) -> str:
    """SVG path of 100 × 100 with one bar per feature, upwards if positive."""
    finite = np.nan_to_num(features.astype(np.float64), posinf=0.0, neginf=0.0)
    top, bottom = max(finite.max(initial=0.0), 0.0), min(finite.min(initial=0.0), 0.0)
    unit = 100 / ((top - bottom) or 1.0)
    zero, pitch = top * unit, 100 / max(len(finite), 1)
    return "".join(
        f"M{i * pitch:.4g} {zero:.4g}v{-value * unit:.4g}h{0.8 * pitch:.4g}V{zero:.4g}z"
        for i, value in enumerate(finite)
    )


# Confused classes


def mistakes_html(groups: Sequence[RunGroup]) -> str:
    """Confused classes of each system; empty without predictions."""
    runs = [(group.label, group.first, run_confusion(group.first)) for group in groups]
    return _folded([(label, "", _mistakes(run, found)) for label, run, found in runs if found is not None])


def run_confusion(run: RunRecord) -> tables.Confusion | None:
    """Confusion matrix of the test set; None without valid predictions."""
    if not run.has_predictions:
        return None
    kept, classes = run.predictions(), len(run.class_names)
    if kept.log_beliefs.shape[1] != classes or not len(kept.labels):
        return None
    if kept.labels.min() < 0 or kept.labels.max() >= classes:
        return None
    return tables.confusion(kept.labels.numpy(), kept.log_beliefs.argmax(1).numpy(), run.class_names)


def _mistakes(run: RunRecord, found: tables.Confusion) -> str:
    parts = [_pairs(run, found)]
    if len(found.names) <= tables.MOST_CLASSES:
        parts.append(tables.html_table("Confusion matrix", tables.matrix_grid(found)))
    classes = tables.class_grid(found)
    left = len(found.names) - len(classes.rows)
    parts.append(tables.html_table("Precision and recall by class", classes))
    parts.append(tables.paragraph(f"{left:,} classes with a higher recall are left out." if left else "", "note"))
    return "\n".join(filter(None, parts))


def _pairs(run: RunRecord, found: tables.Confusion) -> str:
    pairs = found.pairs()
    if not pairs:
        return tables.paragraph("No mistakes on the test set.")
    items = [f"<li>{escape(tables.pair_words(found, *pair))}{_examples(run, *pair[:2])}</li>" for pair in pairs]
    return f"<h4>Confused most</h4>\n<ol>{''.join(items)}</ol>"


def _examples(run: RunRecord, true: int, answer: int) -> str:
    """Cards of stored examples of this mistake."""
    if run.examples is None:
        return ""
    rows = np.flatnonzero((run.examples.labels == true) & (run.examples.answers == answer))[:PAIR_EXAMPLES]
    cards = "\n".join(card_html(run, int(row)) for row in rows)
    return f'<div class="gallery">{cards}</div>' if len(rows) else ""
