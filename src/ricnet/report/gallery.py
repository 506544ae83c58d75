"""The page's test inputs with the belief that grew over them (easy ones, hard ones, mistakes), and what is confused.

Cards are drawn by hand rather than by matplotlib: a card is a hundredth of a figure's size, and cards find their own
places on a phone.
"""

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Float, Num

from ricnet.evaluation.evaluate import KINDS, Examples, read_predictions
from ricnet.report.refinement import leading_rival, small_image, with_start
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
)
from ricnet.report.titles import percent, short, steps

IN_STEPS = {
    "easy": "right after the fewest steps",
    "hard": "right, with the most gained after the first step",
    "wrong": "and surest of it",
}
AT_ONCE = {"easy": "right, and surest of it", "hard": "right, but least sure", "wrong": "and surest of it"}
SLOWLY = "right, after more than one step"
"""Of hard ones, where some lost by their later steps."""
UNSORTED = {"right": "", "wrong": ""}
WIDTH, HEIGHT = 100, 48
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
    words = UNSORTED if run.examples.kind is None else IN_STEPS if run.iterative else AT_ONCE
    parts = []
    for kind, rows in rows_by_kind(run.examples).items():
        if rows and kind in words:  # those that are confused stand with the mistakes
            cards = "\n".join(card_html(run, row) for row in rows)
            said = (
                SLOWLY if words is IN_STEPS and kind == "hard" and not _all_gained(run.examples, rows) else words[kind]
            )
            aside = f' <span class="aside">{escape(said)}</span>' if said else ""
            parts.append(f'<h4>{kind.capitalize()}{aside}</h4>\n<div class="gallery">{cards}</div>')
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
    """In the order in which they are stored. Files of older versions tell right from wrong and no more."""
    if examples.kind is None:
        right = examples.answers == examples.labels
        return {"right": np.flatnonzero(right).tolist(), "wrong": np.flatnonzero(~right).tolist()}
    return {name: np.flatnonzero(examples.kind == code).tolist() for code, name in enumerate(KINDS)}


def card_html(run: RunRecord, row: int) -> str:
    assert run.examples is not None
    return f'<figure class="card">{_input(run, row)}{_belief(run.examples, row)}{_caption(run, row)}</figure>'


def _input(run: RunRecord, row: int) -> str:
    assert run.examples is not None
    pixels, truth = run.examples.inputs[row], escape(short(run.class_names[run.examples.labels[row]]))
    if pixels.ndim == 3:
        return f'<img src="{data_uri(pixels)}" alt="A test input of class {truth}">'
    alt = f"The {pixels.size} features of a test input of class {truth}"
    return _drawing("input", 100, alt, f'<path d="{bars(pixels.ravel())}"/>')


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
    after = f" after {steps(halt)}" if run.iterative else ""
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


def bars(features: Num[np.ndarray, "features"], width: float = 100, height: float = 100) -> str:
    """A bar for each feature, up where it is positive: the path of an SVG of this size."""
    finite = np.nan_to_num(features.astype(np.float64), posinf=0.0, neginf=0.0)
    top, bottom = max(finite.max(initial=0.0), 0.0), min(finite.min(initial=0.0), 0.0)
    unit = height / ((top - bottom) or 1.0)
    zero, pitch = top * unit, width / max(len(finite), 1)
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
    kept, classes = read_predictions(run.path), len(run.class_names)
    fit = kept.log_beliefs.shape[1:] == (classes,) and kept.labels.dtype.kind in "iu" and len(kept.labels)
    if not fit or kept.labels.min() < 0 or kept.labels.max() >= classes:
        return None
    return confusion(kept.labels, kept.log_beliefs.argmax(axis=1), run.class_names)


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
