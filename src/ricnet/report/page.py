"""Writes the HTML report of one run or a comparison: results, figures and examples, settings, command to repeat it.

page.html is the template. The page is self-contained, without scripts. Names and settings are untrusted: the template
escapes every string.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from ricnet.errors import RicnetError, counted, listing
from ricnet.evaluation.choices import chosen_words
from ricnet.io import MARK, TABLE, read_json, short, write_atomically, writing
from ricnet.report import comparison as scores
from ricnet.report import tables
from ricnet.report.comparison import ACCURACY, ECE, NLL, SECONDS, STEPS, Comparison, interval_of, results
from ricnet.report.examples import card, gallery, input_words
from ricnet.report.figures import inline_svg
from ricnet.report.files import is_archive
from ricnet.report.names import flatten
from ricnet.report.pictures import Picture, mean_of, pictures, step_curves, with_examples
from ricnet.report.runs import RunGroup, RunRecord, group_seeds, judged_words
from ricnet.report.tables import Confusion, Grid, cells, number, percent

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
    return render(groups, pictures(groups))


def render(groups: Sequence[RunGroup], drawn: Sequence[Picture]) -> str:
    """The page with these figures; a section without content is left out."""
    runs, found = [run for group in groups for run in group.runs], results(groups)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["judged"] = lambda html: Markup(judged_words(str(html), runs))
    page = environment.get_template("page.html").render(
        title=page_title(groups),
        lead=_lead(found) if len(runs) > 1 else "",
        facts=_facts(runs[0]),
        results={
            "grid": tables.without_equal_data(tables.results_grid(found)),
            "caption": tables.results_caption(found),
            "contrasts": tables.without_equal_data(tables.contrasts_grid(found)) if found.contrasts else None,
            "contrasts_caption": tables.contrasts_caption(found),
            "reference": tables.references(found),
        },
        pictures=drawn,
        svg=lambda picture: inline_svg(picture.figure, picture.name, picture.alt),
        refinement=refinement_words(with_examples(groups)[0]) if with_examples(groups) else "",
        inputs=" ".join(filter(None, dict.fromkeys(input_words(group.first) for group in groups))),
        galleries=_galleries(groups),
        chosen=[f"{text[0].upper()}{text[1:]}." for text in chosen_words(runs[0].evaluation) if len(runs) == 1],
        guarantees=[entry for run in runs if (entry := _guarantees(run))],
        mistakes=[_mistakes(group, own) for group in groups if (own := run_confusion(group.first))],
        halting=_halting_grid([group for group in groups if group.first.iterative]),
        systems=[_system(group) for group in groups],
    )
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", page)  # a number stays with its sign


def page_title(groups: Sequence[RunGroup]) -> str:
    methods = list(dict.fromkeys(group.first.method for group in groups))
    data = list(dict.fromkeys(group.first.data_label for group in groups))
    what = listing(methods) if len(methods) < 6 else f"{len(methods)} systems"
    return f"{what} on {listing(data) if len(data) < 4 else f'{len(data)} data sets'}"


def _lead(found: Comparison) -> str:
    counts, total = {len(group.runs) for group in found.systems}, len(found.runs)
    each = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    seeds = f", {each} seeds each" if found.has_seeds else ""
    what = f"{len(found.systems)} systems{seeds}" if len(found.systems) > 1 else f"One system, {total} seeds"
    return f"{what}: {total} runs measured on test examples that none of them was trained on."


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    return [
        (metric.title, metric.write(metric.of(run), unit=True))
        for metric in FACTS
        if metric.of(run) is not None and (run.iterative or metric is not STEPS)
    ]


def refinement_words(group: RunGroup) -> str:
    """Sentences on the steps taken and on the test NLL at the halt, after the first step and at its lowest."""
    most, mean = max(run.max_steps for run in group.runs), mean_of(group, "mean_steps")
    stops = "always takes all of them" if mean == most else f"stops after {number(mean, 1)} on average"
    every = step_curves(group, "nll")[1].mean(axis=0)
    best = int(every.argmin())
    first, halt, lowest = (number(float(nll), 3) for nll in (every[0], mean_of(group, "nll"), every[best]))
    better = "better" if mean_of(group, "nll") < every[0] else "worse"
    ends = "the steps after the first change little" if first == halt else f"it ends {better} than its first step"
    return (
        f"{group.label} starts from the uniform belief and changes it in up to {counted(most, 'step')}; it {stops}. "
        f"On the test set {ends}: NLL {first} after the first, {halt} where it stops. If all examples stopped at the "
        f"same step, the lowest NLL would be {lowest}, after {counted(best + 1, 'step')}."
    )


def _halting_grid(groups: Sequence[RunGroup]) -> Grid:
    exits = any(group.first.has_exits for group in groups)
    columns = {key: title for key, title in HALTING.items() if exits or "cost" not in key}
    rows = [cells(group.label, *(_mean(group, key) for key in columns)) for group in groups]
    return Grid(["System", *columns.values()], rows)


def _mean(group: RunGroup, key: str) -> str:
    """Mean over the seeds that have this number."""
    found = [run.test[key] for run in group.runs if run.test.get(key) is not None]
    mean = sum(found) / len(found) if found else None
    return percent(mean, 0) if "cost" in key else number(mean, 1)


# Examples and mistakes, of the first seed of each system


def _galleries(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    shown = [group for group in groups if group.first.examples is not None and len(group.first.examples.labels)]
    return [
        {
            "label": group.label,
            "aside": f"seed {group.first.seed}" if len(group.runs) > 1 else group.first.data_label,
            "parts": gallery(group.first),
        }
        for group in shown
    ]


def run_confusion(run: RunRecord) -> Confusion | None:
    """Confusion matrix of the test set; None without valid predictions."""
    if not run.has_predictions:
        return None
    kept, classes = run.predictions(), len(run.class_names)
    fits = kept.log_beliefs.shape[1] == classes and len(kept.labels) and kept.labels.min() >= 0
    if not fits or kept.labels.max() >= classes:
        return None
    return tables.confusion(kept.labels.numpy(), kept.log_beliefs.argmax(1).numpy(), run.class_names)


def _mistakes(group: RunGroup, found: Confusion) -> dict[str, Any]:
    run, classes, pairs = group.first, tables.class_grid(found), []
    for true, answer, count in found.pairs():
        kept = run.examples
        alike = [] if kept is None else np.flatnonzero((kept.labels == true) & (kept.answers == answer)).tolist()
        pairs.append((tables.pair_words(found, true, answer, count), [card(run, row) for row in alike[:PAIR_EXAMPLES]]))
    return {
        "label": group.label,
        "aside": "",
        "pairs": pairs,
        "matrix": tables.matrix_grid(found) if len(found.names) <= tables.MOST_CLASSES else None,
        "classes": classes,
        "left": len(found.names) - len(classes.rows),
    }


# Guarantees


def _guarantees(run: RunRecord) -> dict[str, Any] | None:
    """Tables of prediction sets and early exits from guarantees.json; None for a run without calibration data."""
    path = run.path / "guarantees.json"
    if not path.is_file():
        return None
    try:
        entry = read_json(path)
        return {"label": run.label, **_set_grids(entry), "exits": _exit_grid(entry["exits"])}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RicnetError(f"{path} is damaged ({error}): run ric calibrate again.") from error


def _set_grids(entry: Mapping[str, Any]) -> dict[str, Grid]:
    """Coverage of all sets, and of one coverage by confidence and by class; empty without sets."""
    if not entry["sets"]:
        return {}
    titles = ["Guaranteed coverage", "Measured coverage", "95 % interval", "Classes per set"]
    rows = [
        cells(percent(one["coverage"]), *_covered(one["measured"]["coverage"], one["measured"]["mean_size"]))
        for one in entry["sets"]
    ]
    middle = entry["sets"][min(1, len(entry["sets"]) - 1)]
    measured = middle["measured"]
    by_class = zip(entry["classes"], measured["by_class"], strict=True)
    parts = [
        *(cells(f"up to {percent(top)} confidence", *_covered(*rest)) for top, *rest in measured["by_confidence"]),
        *[cells(str(name), *_covered(*rest)) for name, rest in by_class][: tables.MOST_CLASSES],
    ]
    return {"sets": Grid(titles, rows), "parts": Grid([f"Sets for {percent(middle['coverage'])}", *titles[1:]], parts)}


def _covered(share: Mapping[str, Any], size: float | None) -> list[str]:
    if share["share"] is None or size is None:
        return ["–"] * 3
    return [percent(share["share"]), f"{percent(share['low'])} to {percent(share['high'])}", f"{size:.2f}"]


def _exit_grid(exits: Sequence[Mapping[str, Any]]) -> Grid | None:
    if not exits:
        return None
    steps = exits[0]["mean_cost"] is None
    titles = ["Stop below", "Mean steps" if steps else "Share of compute"]
    rows = [
        cells(
            f"{one['threshold']:.3g}",
            f"{one['mean_steps']:.2f}" if steps else percent(one["mean_cost"]),
            *(percent(one[key]) for key in ("bound", "measured")),
        )
        for one in exits
    ]
    return Grid([*titles, "Answers lost, 95 % bound", "Answers lost, measured"], rows)


# Settings and commands


def _system(group: RunGroup) -> dict[str, Any]:
    run, several = group.first, len(group.runs) > 1
    if run.derived_from:
        sources = listing([short(str(each.derived_from), TABLE) for each in group.runs])
        note = f"Uses the weights of {sources} with other settings after training."
    else:
        note = "This command repeats the run: config.json holds every setting."
        others = [str(seed) for seed in group.seeds[1:]]
        note += f" Add --seed for the others, {listing(others)}." if others else ""
    seconds = SECONDS.write(interval_of(group, SECONDS).mean)
    time = "not trained" if run.derived_from else f"{seconds} s on {run.hardware.get('name', 'unknown')}"
    return {
        "label": group.label,
        "aside": f"{run.data_label}, {f'{len(group.runs)} seeds, ' * several}{time}",
        "settings": _settings(group).items(),
        "seeds": _seeds_grid(group) if several else None,
        "said": [*(f"Note: {note}" for note in run.notes), *(f"Hint: {hint}" for hint in run.hints)],
        "command": None if run.derived_from else command(run),
        "note": note,
    }


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


def _seeds_grid(group: RunGroup) -> Grid:
    metrics = (ACCURACY, ECE, NLL, STEPS, SECONDS)
    rows = [
        cells(
            str(run.seed) + MARK * bool(run.collapses),
            *(metric.write(metric.of(run), unit=True) for metric in metrics),
            str(run.evaluation.get("selected_epoch", "–")),
            short(run.path.name, TABLE),
        )
        for run in group.runs
    ]
    titles = ["Seed", *(metric.title for metric in metrics), "Selected epoch", "Folder"]
    return Grid(titles, rows, frozenset({0, len(titles) - 1}))


def command(run: RunRecord) -> str:
    """The command that repeats the run."""
    settings = run.path if is_archive(run.path) else run.path / "config.json"
    return shlex.join(["ric", "train", "--config", str(settings), "--out", f"{run.name}-again"])
