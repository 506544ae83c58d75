"""One self-contained HTML page about a run or a comparison: no scripts, nothing loaded from elsewhere.

Class names, labels and settings come from strangers' files, so every string passes `escape` on its way in.
"""

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from ricnet.io import writing
from ricnet.report.figures import inline_svg
from ricnet.report.gallery import gallery_html
from ricnet.report.markup import paragraph, scrolling, table
from ricnet.report.mistakes import mistakes_html
from ricnet.report.pictures import Picture, pictures, speakers
from ricnet.report.results import results_html
from ricnet.report.runs import RunGroup, RunRecord, group_seeds
from ricnet.report.step_words import halting_rule, refinement_words
from ricnet.report.steps import looks_ahead
from ricnet.report.systems import systems_html
from ricnet.report.tables import Cell
from ricnet.report.thumbnails import BARS
from ricnet.report.words import listing, number
from ricnet.training.console import chosen_words

SECTIONS = {
    "refinement": ("How it refines", ""),
    "gallery": (
        "Examples, right and wrong",
        "Test inputs and what was believed of them: the true class in blue from the floor, its strongest rival in "
        "orange from the ceiling, all others grey between them. Where there are steps, they run from left to right, "
        "the first ones wider, and a line marks the stop.",
    ),
    "calibration": (
        "Is its confidence worth believing?",
        "A calibrated classifier that is 80 % sure is right 80 times in 100.",
    ),
    "selection": ("When is it better not to answer?", ""),
    "mistakes": ("What it confuses", "On the test set: which classes are taken for which, the commonest first."),
    "steps": ("Steps and halting", ""),
    "training": ("Training", ""),
}
HALTING = {
    "mean_steps": "Mean steps",
    "mean_steps_correct": "when right",
    "mean_steps_wrong": "when wrong",
    "mean_cell_evaluations": "Steps computed",
}


def write_page(runs: Sequence[RunRecord], out: Path) -> Path:
    """Write the page to `out`, or as report.html into it where `out` is a folder."""
    path = out / "report.html" if out.is_dir() else out
    html = page_html(group_seeds(runs))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    return path


def page_html(groups: Sequence[RunGroup]) -> str:
    home = resources.files("ricnet.report")
    sections = [_section(key, parts, groups) for key, parts in _contents(groups).items() if parts]
    return Template((home / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(page_title(groups)),
        css=(home / "page.css").read_text(encoding="utf-8"),
        results=_unbroken(results_html(groups)),
        sections=_unbroken("\n".join([*sections, systems_html(groups)])),
    )


def _unbroken(html: str) -> str:
    """A line does not end between a number and its sign."""
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html)


def _contents(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """What each section shows; nothing where the runs have no data for it."""
    parts: dict[str, list[str]] = {key: [] for key in SECTIONS}
    for picture in pictures(groups):
        parts[picture.section].append(_figure(picture))
    parts["gallery"] += filter(None, [gallery_html(groups)])
    parts["mistakes"] += filter(None, [mistakes_html(groups)])
    return parts


def page_title(groups: Sequence[RunGroup]) -> str:
    methods = list(dict.fromkeys(group.first.method for group in groups))
    data = list(dict.fromkeys(group.first.data_label for group in groups))
    what = listing(methods) if len(methods) < 6 else f"{len(methods)} systems"
    return f"{what} on {listing(data) if len(data) < 4 else f'{len(data)} data sets'}"


def _section(key: str, parts: Sequence[str], groups: Sequence[RunGroup]) -> str:
    title, intro = SECTIONS[key]
    in_bars = key == "gallery" and any(group.first.examples and group.first.examples.are_rows for group in groups)
    words = paragraph(f"{intro} {BARS}" if in_bars else intro)
    if key == "refinement":
        words = paragraph(refinement_words(speakers(groups)[0]))
    elif key == "steps":
        words = _halting_words(groups)
    elif key == "calibration":
        words += "".join(paragraph(sentence, "note") for sentence in _fitted(groups))
    return "\n".join(
        [f'<section id="{key}">', f"<h2>{escape(title)}</h2>", *filter(None, [words]), *parts, "</section>"]
    )


def _figure(picture: Picture) -> str:
    drawing = inline_svg(picture.figure, picture.name, picture.alt)
    return f"<figure>{scrolling(picture.alt, drawing)}\n<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _fitted(groups: Sequence[RunGroup]) -> list[str]:
    """What a run alone chose on validation data."""
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    return [f"{words[0].upper()}{words[1:]}." for words in chosen_words(groups[0].first.evaluation)] if alone else []


def _halting_words(groups: Sequence[RunGroup]) -> str:
    """A sentence about one system, a table about several."""
    steppers = [group for group in groups if group.first.iterative]
    if len(steppers) == 1:
        return paragraph(_halting_sentence(steppers[0]))
    rows = [[Cell(group.label), *(Cell(_mean(group, key)) for key in HALTING)] for group in steppers]
    return table("Steps taken", ["System", *HALTING.values()], [False] + [True] * len(HALTING), rows)


def _halting_sentence(group: RunGroup) -> str:
    mean, right, wrong, cost = (_mean(group, key) for key in HALTING)
    ahead = f" With the step whose value says stop, it computes {cost}." if looks_ahead(group) else ""
    taken = f"{group.label} stops after {mean} steps on average ({right} when right, {wrong} when wrong)."
    return f"{taken}{ahead} {halting_rule(group)}".strip()


def _mean(group: RunGroup, key: str) -> str:
    """A seed without a mistake has no mean over its mistakes: it is left out."""
    found = [run.test[key] for run in group.runs if run.test.get(key) is not None]
    return number(sum(found) / len(found), 1) if found else "–"
