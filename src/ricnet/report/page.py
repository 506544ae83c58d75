"""Writes the HTML report of one run or a comparison: results, figures and examples, settings, command to repeat it.

The page is self-contained, without scripts. Names and settings may come from strangers: every string is escaped.
"""

import math
import re
import shlex
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from ricnet.errors import counted, listing
from ricnet.evaluation.choices import chosen_words, rule_words
from ricnet.io import MARK, TABLE, short, write_atomically, writing
from ricnet.report.comparison import (
    ACCURACY,
    AVERAGE_PRECISION,
    BALANCED_ACCURACY,
    BASE_RATE,
    ECE,
    NLL,
    ROC_AUC,
    SECONDS,
    STEPS,
    Comparison,
    Metric,
    compare_as_far_as_possible,
    has_seeds,
    ranking,
)
from ricnet.report.examples import gallery_html, input_words, mistakes_html
from ricnet.report.figures import inline_svg
from ricnet.report.files import is_archive
from ricnet.report.names import flatten
from ricnet.report.pictures import Picture, looks_ahead, mean_of, pictures, step_curves, with_examples
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, judged_words, repeats_note
from ricnet.report.tables import (
    Cell,
    Grid,
    contrasts_caption,
    contrasts_grid,
    details,
    html_table,
    number,
    paragraph,
    percent,
    references,
    runs_caption,
    runs_grid,
    scrolling,
    systems_caption,
    systems_grid,
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
    "mistakes": ("What it confuses", "Confused classes on the test set, the commonest first."),
    "steps": ("Steps and halting", ""),
    "training": ("Training", ""),
}
HALTING = {
    "mean_steps": "Mean steps",
    "mean_steps_correct": "when right",
    "mean_steps_wrong": "when wrong",
    "mean_cell_evaluations": "Steps computed",
}
COMPUTE = {
    "mean_cost": "Share of compute",
    "mean_cost_correct": "of it when right",
    "mean_cost_wrong": "of it when wrong",
}
"""Further columns for runs with exits."""


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
    return parts


def page_title(groups: Sequence[RunGroup]) -> str:
    methods = list(dict.fromkeys(group.first.method for group in groups))
    data = list(dict.fromkeys(group.first.data_label for group in groups))
    what = listing(methods) if len(methods) < 6 else f"{len(methods)} systems"
    return f"{what} on {listing(data) if len(data) < 4 else f'{len(data)} data sets'}"


def _section(key: str, parts: Sequence[str], groups: Sequence[RunGroup]) -> str:
    title, intro = SECTIONS[key]
    shown = dict.fromkeys(input_words(group.first) for group in groups) if key == "gallery" else {}
    words = paragraph(" ".join(filter(None, [intro, *shown])))
    if key == "refinement":
        words = paragraph(refinement_words(with_examples(groups)[0]))
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
    """Sentences about calibration on validation data, for a page about one run."""
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    return [f"{words[0].upper()}{words[1:]}." for words in chosen_words(groups[0].first.evaluation)] if alone else []


def _halting_words(groups: Sequence[RunGroup]) -> str:
    """A sentence for one system, a table for several."""
    steppers = [group for group in groups if group.first.iterative]
    if len(steppers) == 1:
        return paragraph(_halting_sentence(steppers[0]))
    costs = COMPUTE if any(group.first.has_exits for group in steppers) else {}
    rows = [[Cell(group.label), *(Cell(_mean(group, key)) for key in (*HALTING, *costs))] for group in steppers]
    return html_table("Steps taken", Grid(["System", *HALTING.values(), *costs.values()], rows))


def _halting_sentence(group: RunGroup) -> str:
    mean, right, wrong, cost = (_mean(group, key) for key in HALTING)
    ahead = f" It computes {cost} steps, including the one whose value stops it." if looks_ahead(group) else ""
    taken = f"{group.label} stops after {mean} steps on average ({right} when right, {wrong} when wrong)."
    if group.first.has_exits:
        mean, right, wrong = (_mean(group, key) for key in COMPUTE)
        ahead = f" Its mean share of compute is {mean} ({right} when right, {wrong} when wrong)."
    return f"{taken}{ahead} {halting_rule(group)}".strip()


def _mean(group: RunGroup, key: str) -> str:
    """Mean over the seeds that have this number."""
    found = [run.test[key] for run in group.runs if run.test.get(key) is not None]
    mean = sum(found) / len(found) if found else None
    return percent(mean, 0) if key in COMPUTE else number(mean, 1)


# Sentences about steps


def refinement_words(group: RunGroup) -> str:
    """Steps taken, and the gain over the first step."""
    return f"{_course(group)} {_gain(group)}"


def halting_rule(group: RunGroup) -> str:
    """The halting rule, if it was chosen on validation data."""
    rule = group.first.rule
    return f"It stops {rule_words(rule)}; validation data chose this rule." if rule else ""


def _course(group: RunGroup) -> str:
    most, mean = max(run.max_steps for run in group.runs), mean_of(group, "mean_steps")
    start = f"{group.label} starts from the uniform belief and changes it in up to {counted(most, 'step')}"
    if mean == most:
        return f"{start}; it always takes all of them."
    return f"{start}; it stops after {number(mean, 1)} on average."


def _gain(group: RunGroup) -> str:
    """NLL on the test set at the halt against the first step, compared as written."""
    every = step_curves(group, "nll")[1].mean(axis=0)
    first, halt, best = float(every[0]), mean_of(group, "nll"), int(every.argmin())
    lowest = f"lowest after {counted(best + 1, 'step')}, {number(float(every[best]), 3)}"
    shown = f"NLL {number(first, 3)} after the first, {number(halt, 3)} where it stops, {lowest}"
    if number(first, 3) == number(halt, 3):
        return f"On the test set the steps after the first change little: {shown}."
    better = "better than its first step" if halt < first else "worse than its first step"
    return f"On the test set it ends {better}: {shown}."


# Results


def results_html(groups: Sequence[RunGroup]) -> str:
    runs = [run for group in groups for run in group.runs]
    lead = _lead_alone(runs[0]) if len(runs) == 1 else _lead(groups)
    facts = _facts(runs[0]) if len(runs) == 1 else ""
    said = _said(runs[0]) if len(runs) == 1 else ""
    if has_seeds(groups):
        numbers = _comparison(groups)
    else:
        notes = [runs_caption(runs), repeats_note(groups)]
        numbers = html_table("The runs", runs_grid(runs)) + "".join(paragraph(note, "note") for note in notes)
    return "\n".join(filter(None, [paragraph(lead, "lead"), facts, numbers, said]))


def _said(run: RunRecord) -> str:
    """Notes and hints of the run."""
    lines = [*(f"Note: {note}" for note in run.notes), *(f"Hint: {hint}" for hint in run.hints)]
    return "".join(paragraph(line, "note") for line in lines)


def _lead(groups: Sequence[RunGroup]) -> str:
    counts = {len(group.runs) for group in groups}
    total = sum(len(group.runs) for group in groups)
    each = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    seeds = f", {each} seeds each" if max(counts) > 1 else ""
    what = f"{len(groups)} systems{seeds}" if len(groups) > 1 else f"One system, {total} seeds"
    return f"{what}: {total} runs measured on test examples that none of them was trained on."


def _lead_alone(run: RunRecord) -> str:
    test = run.test
    seen = "unseen test examples" if run.judged_on == "test" else "validation examples"
    right = f"Accuracy {percent(test['accuracy'])} on {test['n']:,} {seen}"
    return f"{right}, with a mean confidence of {percent(test['mean_confidence'])}."


def _facts(run: RunRecord) -> str:
    def score(metric: Metric) -> str | None:
        return None if metric.of(run) is None else metric.write(metric.of(run), unit=True)

    facts = {
        "test accuracy": score(ACCURACY),
        "base rate (commonest class)": score(BASE_RATE),
        "balanced accuracy": score(BALANCED_ACCURACY),
        "ROC AUC": score(ROC_AUC),
        "average precision": score(AVERAGE_PRECISION),
        "calibration error (ECE)": score(ECE),
        "steps on average": number(run.test["mean_steps"], 1) if run.iterative else None,
        "share of compute": percent(run.test["mean_cost"]) if run.test.get("mean_cost") is not None else None,
        "trained in": f"{number(run.seconds, 0)} s" if run.seconds is not None else None,
    }
    return f'<dl class="facts">{terms((name, fact) for name, fact in facts.items() if fact)}</dl>'


def _comparison(groups: Sequence[RunGroup]) -> str:
    found, excuse = compare_as_far_as_possible(groups)
    parts = [html_table("The systems", systems_grid(found))]
    parts += [paragraph(line, "note") for line in (systems_caption(found), *ranking(found), excuse)]
    return "\n".join([*parts, _differences(found)])


def _differences(found: Comparison) -> str:
    """Table of differences, folded, since it is long."""
    if not found.contrasts:
        return ""
    content = html_table("The differences", contrasts_grid(found)) + paragraph(contrasts_caption(found), "note")
    return details(f"Differences from {references(found)}", "with intervals and verdicts", content, is_open=False)


# Settings and commands


def systems_html(groups: Sequence[RunGroup]) -> str:
    alone = len(groups) == 1
    systems = "\n".join(_system(group, is_open=alone) for group in groups)
    return f'<section id="systems">\n<h2>What was run</h2>\n{systems}\n</section>'


def _system(group: RunGroup, *, is_open: bool) -> str:
    content = f'<dl class="settings">{terms(_settings(group).items())}</dl>\n'
    content += _seeds_table(group) if len(group.runs) > 1 else ""
    content += "" if is_open else _said(group.first)
    content += _weights_note(group) if group.first.derived_from else _command(group)
    return details(group.label, _aside(group), content, is_open=is_open)


def _settings(group: RunGroup) -> dict[str, Any]:
    run = group.first
    alone = len(group.runs) == 1
    course = {
        "selected epoch": run.evaluation.get("selected_epoch"),
        "run seconds": number(run.seconds, 0),
    }
    return {
        **{key: value for key, value in flatten(run.config).items() if alone or key != "seed"},
        **{f"{split} examples": f"{count:,}" for split, count in run.data.get("rows", {}).items()},
        **{"hardware" if key == "name" else key: value for key, value in run.hardware.items()},
        "ricnet": run.version,
        **(course if alone else {}),
    }


def _aside(group: RunGroup) -> str:
    run = group.first
    if run.derived_from:
        seeds = f"{len(group.runs)} seeds, " if len(group.runs) > 1 else ""
        return f"{run.data_label}, {seeds}not trained"
    seconds = [math.nan if each.seconds is None else each.seconds for each in group.runs]
    time = f"{number(sum(seconds) / len(seconds), 0)} s"
    seeds = f"{len(group.runs)} seeds of about {time}" if len(group.runs) > 1 else time
    return f"{run.data_label}, {seeds} on {run.hardware.get('name', 'unknown')}"


def _seeds_table(group: RunGroup) -> str:
    metrics = (ACCURACY, ECE, NLL, STEPS)
    titles = ["Seed", *(metric.title for metric in metrics), "Selected epoch", SECONDS.title, "Folder"]
    rows = [
        [
            str(run.config.get("seed")) + MARK * bool(run.collapses),
            *(metric.write(metric.of(run), unit=True) for metric in metrics),
            str(run.evaluation.get("selected_epoch", "–")),
            SECONDS.write(run.seconds),
            short(run.path.name, TABLE),
        ]
        for run in group.runs
    ]
    grid = Grid(titles, [[Cell(text) for text in row] for row in rows], frozenset({0, len(titles) - 1}))
    return html_table(f"The seeds of {group.label}", grid)


def _weights_note(group: RunGroup) -> str:
    note = "Training with this config.json may select another epoch."
    sources = listing([short(str(run.derived_from), TABLE) for run in group.runs])
    return paragraph(f"Uses the weights of {sources} with other settings after training. {note}", "note")


def _command(group: RunGroup) -> str:
    note = "This command repeats the run: config.json holds every setting."
    if len(group.runs) > 1:
        note += f" Add --seed for the others, {listing([str(seed) for seed in group.seeds[1:]])}."
    return f"<pre><code>{escape(command(group.first))}</code></pre>\n{paragraph(note, 'note')}"


def command(run: RunRecord) -> str:
    """The command that repeats the run."""
    settings, name = (run.path, run.path.stem) if is_archive(run.path) else (run.path / "config.json", run.path.name)
    return shlex.join(["ric", "train", "--config", str(settings), "--out", f"{name}-again"])
