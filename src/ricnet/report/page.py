"""Writes the HTML report of one run or a comparison: results, figures and examples, settings, command to repeat it.

The page is self-contained, without scripts. Names and settings are untrusted: every string is escaped.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ricnet.errors import RicnetError, counted, listing
from ricnet.evaluation.choices import chosen_words
from ricnet.io import MARK, TABLE, read_json, short, write_atomically, writing
from ricnet.report import comparison as scores
from ricnet.report.comparison import ACCURACY, ECE, NLL, SECONDS, STEPS, Comparison, interval_of, results
from ricnet.report.examples import cards_html, gallery, input_words
from ricnet.report.figures import inline_svg
from ricnet.report.files import is_archive
from ricnet.report.names import flatten
from ricnet.report.pictures import Picture, mean_of, pictures, step_curves, with_examples
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, judged_words
from ricnet.report.tables import (
    MOST_CLASSES,
    Cell,
    Confusion,
    Grid,
    class_grid,
    confusion,
    contrasts_caption,
    contrasts_grid,
    details,
    html_table,
    matrix_grid,
    number,
    pair_words,
    paragraph,
    percent,
    references,
    results_caption,
    results_grid,
    scrolling,
    terms,
)

SECTIONS = {
    "refinement": ("How it refines", ""),
    "gallery": (
        "Examples, right and wrong",
        "Test inputs with the belief over steps, from left to right: the true class in blue from below, its strongest "
        "rival in orange from above, all other classes grey. The first steps are drawn wider; a line marks the halt.",
    ),
    "calibration": (
        "Is its confidence worth believing?",
        "A calibrated classifier with confidence 80 % is right 80 times in 100.",
    ),
    "selection": ("When is it better not to answer?", ""),
    "guarantees": (
        "What is guaranteed",
        "Calibration examples that chose nothing give guarantees for inputs drawn like them. Beside each guarantee "
        "stands what was measured on the test set; coverage by class or by confidence is measured, not guaranteed.",
    ),
    "mistakes": ("What it confuses", "Confused classes on the test set, the commonest first."),
    "steps": ("Steps and halting", ""),
    "training": ("Training", ""),
}
HALTING = {
    "mean_steps": "Mean steps",
    "mean_steps_correct": "when right",
    "mean_steps_wrong": "when wrong",
    "mean_cell_evaluations": "Steps computed",
    "mean_cost": "Share of compute",
    "mean_cost_correct": "of it when right",
    "mean_cost_wrong": "of it when wrong",
}
"""Columns of the table of halting; the last three only for runs with exits."""
FACTS = (
    *(ACCURACY, scores.BASE_RATE, scores.BALANCED_ACCURACY, scores.ROC_AUC, scores.AVERAGE_PRECISION),
    *(ECE, scores.CONFIDENCE, STEPS, scores.COST, SECONDS),
)
PAIR_EXAMPLES = 3
"""Maximum examples of a confused pair."""


def write_page(runs: Sequence[RunRecord], path: Path) -> Path:
    html = page_html(group_seeds(runs))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda draft: draft.write_text(html, encoding="utf-8"))
    return path


def page_html(groups: Sequence[RunGroup]) -> str:
    home = resources.files("ricnet.report")
    runs = [run for group in groups for run in group.runs]
    sections = [_section(key, parts, groups) for key, parts in _contents(groups).items() if parts]
    return Template((home / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(page_title(groups)),
        css=(home / "page.css").read_text(encoding="utf-8"),
        results=_unbroken(judged_words(results_html(groups), runs)),
        sections=_unbroken("\n".join([*(judged_words(section, runs) for section in sections), systems_html(groups)])),
    )


def _unbroken(html: str) -> str:
    """Put a no-break space between a number and %."""
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html)


def _contents(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """HTML parts of each section; empty without data."""
    parts: dict[str, list[str]] = {key: [] for key in SECTIONS}
    for picture in pictures(groups):
        parts[picture.section].append(_figure(picture))
    parts["gallery"] += filter(None, [gallery_html(groups)])
    parts["mistakes"] += filter(None, [mistakes_html(groups)])
    parts["guarantees"] += filter(None, [guarantees_html(groups)])
    return parts


def page_title(groups: Sequence[RunGroup]) -> str:
    methods = list(dict.fromkeys(group.first.method for group in groups))
    data = list(dict.fromkeys(group.first.data_label for group in groups))
    what = listing(methods) if len(methods) < 6 else f"{len(methods)} systems"
    return f"{what} on {listing(data) if len(data) < 4 else f'{len(data)} data sets'}"


def _section(key: str, parts: Sequence[str], groups: Sequence[RunGroup]) -> str:
    title, intro = SECTIONS[key]
    words = paragraph(intro)
    if key == "refinement":
        words = paragraph(refinement_words(with_examples(groups)[0]))
    elif key == "gallery":
        words = paragraph(" ".join(filter(None, [intro, *dict.fromkeys(input_words(g.first) for g in groups)])))
    elif key == "calibration" and len(groups) == len(groups[0].runs) == 1:
        chosen = chosen_words(groups[0].first.evaluation)
        words += "".join(paragraph(f"{text[0].upper()}{text[1:]}.", "note") for text in chosen)
    elif key == "steps":
        words = _halting_table([group for group in groups if group.first.iterative])
    return "\n".join(
        [f'<section id="{key}">', f"<h2>{escape(title)}</h2>", *filter(None, [words]), *parts, "</section>"]
    )


def _figure(picture: Picture) -> str:
    drawing = inline_svg(picture.figure, picture.name, picture.alt)
    return f"<figure>{scrolling(picture.alt, drawing)}\n<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _halting_table(groups: Sequence[RunGroup]) -> str:
    exits = any(group.first.has_exits for group in groups)
    columns = {key: title for key, title in HALTING.items() if exits or "cost" not in key}
    rows = [[Cell(group.label), *(Cell(_mean(group, key)) for key in columns)] for group in groups]
    return html_table("Steps taken", Grid(["System", *columns.values()], rows))


def _mean(group: RunGroup, key: str) -> str:
    """Mean over the seeds that have this number."""
    found = [run.test[key] for run in group.runs if run.test.get(key) is not None]
    mean = sum(found) / len(found) if found else None
    return percent(mean, 0) if "cost" in key else number(mean, 1)


def refinement_words(group: RunGroup) -> str:
    """Steps taken, and NLL on the test set at the halt against the first step, compared as written."""
    most, mean = max(run.max_steps for run in group.runs), mean_of(group, "mean_steps")
    stops = "always takes all of them" if mean == most else f"stops after {number(mean, 1)} on average"
    every = step_curves(group, "nll")[1].mean(axis=0)
    best = int(every.argmin())
    first, halt, lowest = (number(float(nll), 3) for nll in (every[0], mean_of(group, "nll"), every[best]))
    better = "better" if mean_of(group, "nll") < every[0] else "worse"
    ends = "the steps after the first change little" if first == halt else f"it ends {better} than its first step"
    return (
        f"{group.label} starts from the uniform belief and changes it in up to {counted(most, 'step')}; it {stops}. "
        f"On the test set {ends}: NLL {first} after the first, {halt} where it stops, lowest after "
        f"{counted(best + 1, 'step')}, {lowest}."
    )


# Examples and mistakes


def gallery_html(groups: Sequence[RunGroup]) -> str:
    """One gallery per system; empty without examples."""
    parts = []
    for group in groups:
        run, examples = group.first, group.first.examples
        if examples is not None and len(examples.labels):
            aside = f"seed {run.seed}" if len(group.runs) > 1 else run.data_label
            parts.append((group.label, aside, gallery(run, examples)))
    return _folded(parts)


def _folded(parts: Sequence[tuple[str, str, str]]) -> str:
    """Label, aside and HTML of each system; of several the first is unfolded."""
    if len(parts) == 1:
        return parts[0][2]
    return "\n".join(details(*part, is_open=part is parts[0]) for part in parts)


def mistakes_html(groups: Sequence[RunGroup]) -> str:
    """Confused classes of each system; empty without predictions."""
    found = [(group.label, group.first, run_confusion(group.first)) for group in groups]
    return _folded([(label, "", _mistakes(run, own)) for label, run, own in found if own is not None])


def run_confusion(run: RunRecord) -> Confusion | None:
    """Confusion matrix of the test set; None without valid predictions."""
    if not run.has_predictions:
        return None
    kept, classes = run.predictions(), len(run.class_names)
    fits = kept.log_beliefs.shape[1] == classes and len(kept.labels) and kept.labels.min() >= 0
    if not fits or kept.labels.max() >= classes:
        return None
    return confusion(kept.labels.numpy(), kept.log_beliefs.argmax(1).numpy(), run.class_names)


def _mistakes(run: RunRecord, found: Confusion) -> str:
    items = []
    for true, answer, count in found.pairs():
        items.append(f"<li>{escape(pair_words(found, true, answer, count))}")
        if run.examples is not None:
            rows = np.flatnonzero((run.examples.labels == true) & (run.examples.answers == answer))[:PAIR_EXAMPLES]
            items.append(cards_html(run, rows) if len(rows) else "")
        items.append("</li>")
    parts = [
        f"<h4>Confused most</h4>\n<ol>{''.join(items)}</ol>" if items else paragraph("No mistakes on the test set.")
    ]
    if len(found.names) <= MOST_CLASSES:
        parts.append(html_table("Confusion matrix", matrix_grid(found)))
    classes = class_grid(found)
    left = len(found.names) - len(classes.rows)
    parts.append(html_table("Precision and recall by class", classes))
    parts.append(paragraph(f"{left:,} classes with a higher recall are left out." * bool(left), "note"))
    return "\n".join(filter(None, parts))


# Results


def guarantees_html(groups: Sequence[RunGroup]) -> str:
    """Prediction sets and early exits of each run with calibration data, from its guarantees.json."""
    found = []
    for run in (run for group in groups for run in group.runs):
        path = run.path / "guarantees.json"
        if not path.is_file():
            continue
        try:
            found += [paragraph(run.label) * (len(groups) > 1), *_promises(read_json(path))]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RicnetError(f"{path} is damaged ({error}): run ric calibrate again.") from error
    return "".join(found)


def _promises(entry: Mapping[str, Any]) -> list[str]:
    tables = []
    if entry["sets"]:
        rows = [
            [Cell(percent(one["coverage"])), *_covered(one["measured"]["coverage"], one["measured"]["mean_size"])]
            for one in entry["sets"]
        ]
        titles = ["Guaranteed coverage", "Measured coverage", "95 % interval", "Classes per set"]
        tables.append(html_table("prediction sets", Grid(titles, rows)))
        middle = entry["sets"][min(1, len(entry["sets"]) - 1)]
        by_class = [
            [Cell(str(name)), *_covered(share, size)]
            for name, (share, size) in zip(entry["classes"], middle["measured"]["by_class"], strict=True)
        ][:MOST_CLASSES]
        by_confidence = [
            [Cell(f"up to {percent(top)} confidence"), *_covered(share, size)]
            for top, share, size in middle["measured"]["by_confidence"]
        ]
        rest = Grid([f"Sets for {percent(middle['coverage'])}", *titles[1:]], [*by_confidence, *by_class])
        tables.append(
            details("By confidence and by class", "measured", html_table("sets by class", rest), is_open=False)
        )
    if entry["exits"]:
        exits = [
            [
                Cell(f"{one['threshold']:.3g}"),
                Cell(f"{one['mean_steps']:.2f}" if one["mean_cost"] is None else percent(one["mean_cost"])),
                Cell(percent(one["bound"])),
                Cell(percent(one["measured"])),
            ]
            for one in entry["exits"]
        ]
        work = "Mean steps" if entry["exits"][0]["mean_cost"] is None else "Share of compute"
        titles = ["Stop below", work, "Answers lost, 95 % bound", "Answers lost, measured"]
        tables.append(html_table("early exits", Grid(titles, exits)))
    return tables


def _covered(share: Mapping[str, Any], size: float | None) -> list[Cell]:
    if share["share"] is None or size is None:
        return [Cell("–")] * 3
    return [
        Cell(percent(share["share"])),
        Cell(f"{percent(share['low'])} to {percent(share['high'])}"),
        Cell(f"{size:.2f}"),
    ]


def results_html(groups: Sequence[RunGroup]) -> str:
    found = results(groups)
    parts = [html_table("The results", results_grid(found)), paragraph(results_caption(found), "note")]
    if found.contrasts:  # folded, since it is long
        content = html_table("The differences", contrasts_grid(found)) + paragraph(contrasts_caption(found), "note")
        summary = f"Differences from {references(found)}"
        parts.append(details(summary, "with intervals and verdicts", content, is_open=False))
    if len(found.runs) > 1:
        return "\n".join([paragraph(_lead(found), "lead"), *parts])
    (run,) = found.runs
    facts = {
        metric.title: metric.write(metric.of(run), unit=True)
        for metric in FACTS
        if metric.of(run) is not None and (run.iterative or metric is not STEPS)
    }
    return "\n".join([f'<dl class="facts">{terms(facts.items())}</dl>', *parts, _said(run)])


def _said(run: RunRecord) -> str:
    """Notes and hints of the run."""
    lines = [*(f"Note: {note}" for note in run.notes), *(f"Hint: {hint}" for hint in run.hints)]
    return "".join(paragraph(line, "note") for line in lines)


def _lead(found: Comparison) -> str:
    counts, total = {len(group.runs) for group in found.systems}, len(found.runs)
    each = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    seeds = f", {each} seeds each" if found.has_seeds else ""
    what = f"{len(found.systems)} systems{seeds}" if len(found.systems) > 1 else f"One system, {total} seeds"
    return f"{what}: {total} runs measured on test examples that none of them was trained on."


# Settings and commands


def systems_html(groups: Sequence[RunGroup]) -> str:
    alone = len(groups) == 1
    systems = "\n".join(_system(group, is_open=alone) for group in groups)
    return f'<section id="systems">\n<h2>What was run</h2>\n{systems}\n</section>'


def _system(group: RunGroup, *, is_open: bool) -> str:
    content = f'<dl class="settings">{terms(_settings(group).items())}</dl>\n'
    content += _seeds_table(group) if len(group.runs) > 1 else ""
    content += "" if is_open else _said(group.first)
    if group.first.derived_from:
        sources = listing([short(str(run.derived_from), TABLE) for run in group.runs])
        note = f"Uses the weights of {sources} with other settings after training."
    else:
        content += f"<pre><code>{escape(command(group.first))}</code></pre>\n"
        note = "This command repeats the run: config.json holds every setting."
        if len(group.runs) > 1:
            note += f" Add --seed for the others, {listing([str(seed) for seed in group.seeds[1:]])}."
    content += paragraph(note, "note")
    return details(group.label, _aside(group), content, is_open=is_open)


def _settings(group: RunGroup) -> dict[str, Any]:
    run = group.first
    alone = len(group.runs) == 1
    return {
        **{key: value for key, value in flatten(run.config).items() if alone or key != "seed"},
        **{f"{split} examples": f"{count:,}" for split, count in run.data.get("rows", {}).items()},
        **{"hardware" if key == "name" else key: value for key, value in run.hardware.items()},
        "ricnet": run.version,
        **({"selected epoch": run.evaluation.get("selected_epoch")} if alone else {}),
    }


def _aside(group: RunGroup) -> str:
    run, seconds = group.first, SECONDS.write(interval_of(group, SECONDS).mean)
    time = "not trained" if run.derived_from else f"{seconds} s on {run.hardware.get('name', 'unknown')}"
    seeds = f"{len(group.runs)} seeds, " if len(group.runs) > 1 else ""
    return f"{run.data_label}, {seeds}{time}"


def _seeds_table(group: RunGroup) -> str:
    metrics = (ACCURACY, ECE, NLL, STEPS, SECONDS)
    rows = [
        [
            str(run.seed) + MARK * bool(run.collapses),
            *(metric.write(metric.of(run), unit=True) for metric in metrics),
            str(run.evaluation.get("selected_epoch", "–")),
            short(run.path.name, TABLE),
        ]
        for run in group.runs
    ]
    titles = ["Seed", *(metric.title for metric in metrics), "Selected epoch", "Folder"]
    grid = Grid(titles, [[Cell(text) for text in row] for row in rows], frozenset({0, len(titles) - 1}))
    return html_table(f"The seeds of {group.label}", grid)


def command(run: RunRecord) -> str:
    """The command that repeats the run."""
    settings, name = (run.path, run.path.stem) if is_archive(run.path) else (run.path / "config.json", run.path.name)
    return shlex.join(["ric", "train", "--config", str(settings), "--out", f"{name}-again"])
