"""The foot of the page: what was run, setting by setting, and the command that runs it again."""

import math
import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from ricnet.report.markup import details, paragraph, table, terms
from ricnet.report.runs import RunGroup, RunRecord, is_archive
from ricnet.report.tables import Cell
from ricnet.report.titles import flatten
from ricnet.report.words import TABLE, listing, number, percent, short


def systems_html(groups: Sequence[RunGroup]) -> str:
    alone = len(groups) == 1
    systems = "\n".join(_system(group, is_open=alone) for group in groups)
    return f'<section id="systems">\n<h2>What was run</h2>\n{systems}\n</section>'


def _system(group: RunGroup, *, is_open: bool) -> str:
    content = f'<dl class="settings">{terms(_settings(group).items())}</dl>\n'
    content += _seeds_table(group) if len(group.runs) > 1 else ""
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
    titles = ["Seed", "Test accuracy", "ECE", "NLL", "Mean steps", "Selected epoch", "Run seconds", "Folder"]
    rows = [[Cell(text) for text in _seed_texts(run)] for run in group.runs]
    return table(f"The seeds of {group.label}", titles, [False, *[True] * 6, False], rows)


def _seed_texts(run: RunRecord) -> list[str]:
    test, course = run.test, run.evaluation
    return [
        str(run.config.get("seed")),
        percent(test["accuracy"]),
        *(number(test[key], digits) for key, digits in (("ece", 3), ("nll", 3), ("mean_steps", 1))),
        str(course.get("selected_epoch", "–")),
        number(run.seconds, 0),
        short(run.path.name, TABLE),
    ]


def _weights_note(group: RunGroup) -> str:
    note = "Training with this config.json need not repeat it: the epoch is then chosen by what these settings answer."
    sources = listing([short(str(run.derived_from), TABLE) for run in group.runs])
    return paragraph(f"The weights of {sources}, read out differently. {note}", "note")


def _command(group: RunGroup) -> str:
    return f"<pre><code>{escape(command(group.first))}</code></pre>\n{paragraph(_command_note(group), 'note')}"


def _command_note(group: RunGroup) -> str:
    others = listing([str(seed) for seed in group.seeds[1:]]) if len(group.runs) > 1 else ""
    note = "This command repeats the run: config.json holds every setting."
    return f"{note} Add --seed for the others, {others}." if others else note


def command(run: RunRecord) -> str:
    """What to type to repeat the run."""
    settings, name = (run.path, run.path.stem) if is_archive(run.path) else (run.path / "config.json", run.path.name)
    return shlex.join(["ric", "train", "--config", str(settings), "--out", f"{name}-again"])
