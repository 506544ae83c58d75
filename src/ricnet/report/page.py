"""One self-contained HTML page about a run or a comparison: no scripts, nothing loaded from elsewhere.

Class names, labels and settings come from strangers' files, so every string passes `escape` on its way in.
"""

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from ricnet.report.figures import Picture, pictures
from ricnet.report.runs import RunRecord, flatten
from ricnet.report.svg import inline_svg
from ricnet.report.tables import caption, comparison
from ricnet.report.words import listing, number, percent

SECTIONS = {
    "refinement": (
        "How it refines",
        "The classifier does not answer at once. It begins with an even belief, improves it step by step, and stops "
        "when it expects nothing more to gain.",
    ),
    "calibration": (
        "Is its confidence worth believing?",
        "A calibrated classifier that is 80 % sure is right 80 times in 100.",
    ),
    "steps": ("Steps and halting", ""),
    "training": ("Training", ""),
}


def write_page(runs: Sequence[RunRecord], out: Path) -> Path:
    """Write the page to `out`, or as report.html into it where `out` is a folder."""
    path = out / "report.html" if out.is_dir() else out
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_html(runs), encoding="utf-8")
    return path


def page_html(runs: Sequence[RunRecord]) -> str:
    home = resources.files("ricnet.report")
    drawn = pictures(runs)
    sections = [_section(key, [p for p in drawn if p.section == key], runs) for key in SECTIONS]
    return Template((home / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(_title(runs)),
        css=(home / "page.css").read_text(encoding="utf-8"),
        headline=_headline(runs),
        sections="\n".join([*filter(None, sections), _what_was_run(runs)]),
    )


def _title(runs: Sequence[RunRecord]) -> str:
    methods = listing(list(dict.fromkeys(run.method for run in runs)))
    return f"{methods} on {listing(list(dict.fromkeys(run.data_label for run in runs)))}"


def _headline(runs: Sequence[RunRecord]) -> str:
    return f'<p class="lead">{escape(_lead(runs))}</p>\n{_facts(runs[0]) if len(runs) == 1 else ""}{_table(runs)}'


def _lead(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs side by side, measured on test examples that none of them was trained on."
    test = runs[0].test
    right = f"Of {test['n']:,} test examples it had never seen, this classifier gets {percent(test['accuracy'])} right"
    return f"{right}, and it is {percent(test['mean_confidence'])} sure of its answers on average."


def _facts(run: RunRecord) -> str:
    facts = {
        "test accuracy": percent(run.test["accuracy"]),
        "calibration error (ECE)": number(run.test["ece"], 3),
        "steps on average": number(run.test["mean_steps"], 1) if run.iterative else None,
        "trained in": f"{number(run.evaluation.get('seconds'), 0)} s",
    }
    return f'<dl class="facts">{_terms((name, fact) for name, fact in facts.items() if fact)}</dl>\n'


def _table(runs: Sequence[RunRecord]) -> str:
    columns, rows = comparison(runs)
    head = "".join(f'<th scope="col"{_kind(column.numeric)}>{escape(column.title)}</th>' for column in columns)
    body = ""
    for cells in rows:
        texts = [f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text) for cell in cells]
        rest = zip(columns[1:], texts[1:], strict=True)
        values = "".join(f"<td{_kind(column.numeric)}>{text}</td>" for column, text in rest)
        body += f'<tr><th scope="row" class="word">{texts[0]}</th>{values}</tr>\n'
    table = f'<table class="comparison"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
    return f'{_scrolling("Comparison of the runs", table)}\n<p class="note">{escape(caption(runs))}</p>'


def _kind(numeric: bool) -> str:
    return "" if numeric else ' class="word"'


def _section(key: str, drawn: Sequence[Picture], runs: Sequence[RunRecord]) -> str:
    if not drawn:
        return ""
    title, intro = SECTIONS[key]
    words = intro if key != "steps" else " ".join(_halting_words(run) for run in runs if run.iterative)
    paragraph = f"<p>{escape(words)}</p>\n" if words else ""
    figures = "\n".join(_figure(picture) for picture in drawn)
    return f'<section id="{key}">\n<h2>{escape(title)}</h2>\n{paragraph}{figures}\n</section>'


def _figure(picture: Picture) -> str:
    drawing = inline_svg(picture.figure, picture.name, picture.alt)
    return f"<figure>{_scrolling(picture.alt, drawing)}\n<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _scrolling(name: str, content: str) -> str:
    """Wide things scroll inside their own box; the box takes the keyboard, so that keys can scroll it too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'


def _halting_words(run: RunRecord) -> str:
    test = run.test
    when = [("when right", test.get("mean_steps_correct")), ("when wrong", test.get("mean_steps_wrong"))]
    detail = listing([f"{number(mean, 1)} {name}" for name, mean in when if mean is not None] or ["all alike"])
    cost = test.get("mean_cell_evaluations")
    paid = f", which costs {number(cost, 1)} evaluations of its recurrent cell" if cost is not None else ""
    return f"{run.label} stops after {number(test['mean_steps'], 1)} steps on average ({detail}){paid}."


def _what_was_run(runs: Sequence[RunRecord]) -> str:
    details = "\n".join(_run_details(run, is_open=len(runs) == 1) for run in runs)
    return f'<section id="runs">\n<h2>What was run</h2>\n{details}\n</section>'


def _run_details(run: RunRecord, is_open: bool) -> str:
    rows = run.data.get("rows", {})
    settings = {
        **flatten(run.config),
        **{f"{split} examples": f"{count:,}" for split, count in rows.items()},
        **{"hardware" if key == "name" else key: value for key, value in run.hardware.items()},
        "ricnet": run.version,
        "selected epoch": run.evaluation.get("selected_epoch"),
        "seconds": number(run.evaluation.get("seconds"), 0),
    }
    aside = f"{run.data_label}, {number(run.evaluation.get('seconds'), 0)} s on {run.hardware.get('name', 'unknown')}"
    return (
        f'<details class="run"{" open" * is_open}><summary><h3>{escape(run.label)}</h3> '
        f'<span class="aside">{escape(aside)}</span></summary>\n'
        f'<dl class="settings">{_terms(settings.items())}</dl>\n'
        f"<pre><code>{escape(command(run))}</code></pre>\n"
        '<p class="note">This command repeats the run where every other setting is the preset’s; '
        "the run’s config.json holds them all.</p></details>"
    )


def command(run: RunRecord) -> str:
    """What to type to repeat the run."""
    flags = {"--method": run.config["method"]["name"]}
    settings = {key.rpartition(".")[2]: value for key, value in flatten(run.config).items()}
    flags |= {f"--{key}": settings.get(key) for key in ("preset", "encoder", "target", "seed")}
    given = [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]
    return shlex.join(["ric", "train", run.data_name, *given])


def _terms(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape('–' if value is None else str(value))}</dd></div>"
        for name, value in pairs
    )
