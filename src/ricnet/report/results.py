"""The head of the page: what came out, in numbers."""

from collections.abc import Sequence

from ricnet.errors import RicnetError
from ricnet.report import formats, tables
from ricnet.report.comparison import Comparison, compare, ranking, summarize
from ricnet.report.markup import details, paragraph, table, terms
from ricnet.report.runs import RunGroup, RunRecord, repeats_note
from ricnet.report.words import listing, number, percent


def results_html(groups: Sequence[RunGroup]) -> str:
    runs = [run for group in groups for run in group.runs]
    lead = _lead_alone(runs[0]) if len(runs) == 1 else _lead(groups)
    facts = _facts(runs[0]) if len(runs) == 1 else ""
    numbers = _comparison(groups) if has_seeds(groups) else _runs_table(runs) + paragraph(repeats_note(groups), "note")
    return "\n".join(filter(None, [paragraph(lead, "lead"), facts, numbers]))


def has_seeds(groups: Sequence[RunGroup]) -> bool:
    """Whether there is anything to average: one run of each system is shown as it is."""
    return any(len(group.runs) > 1 for group in groups)


def compare_as_far_as_possible(groups: Sequence[RunGroup], reference: str | None = None) -> tuple[Comparison, str]:
    """With differences where runs can be paired; otherwise the means alone, and why."""
    try:
        return compare(groups, reference), ""
    except RicnetError as error:
        return summarize(groups), f"Differences are not tested. {error}"


def _lead(groups: Sequence[RunGroup]) -> str:
    counts = {len(group.runs) for group in groups}
    total = sum(len(group.runs) for group in groups)
    each = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    seeds = f", {each} seeds each" if max(counts) > 1 else ""
    what = f"{len(groups)} systems{seeds}" if len(groups) > 1 else f"One system, {total} seeds"
    return f"{what}: {total} runs measured on test examples that none of them was trained on."


def _lead_alone(run: RunRecord) -> str:
    test = run.test
    right = f"Of {test['n']:,} test examples it had never seen, this classifier gets {percent(test['accuracy'])} right"
    return f"{right}, and it is {percent(test['mean_confidence'])} sure of its answers on average."


def _facts(run: RunRecord) -> str:
    facts = {
        "test accuracy": percent(run.test["accuracy"]),
        "calibration error (ECE)": number(run.test["ece"], 3),
        "steps on average": number(run.test["mean_steps"], 1) if run.iterative else None,
        "trained in": f"{number(run.seconds, 0)} s" if run.seconds is not None else None,
    }
    return f'<dl class="facts">{terms((name, fact) for name, fact in facts.items() if fact)}</dl>'


def _runs_table(runs: Sequence[RunRecord]) -> str:
    columns, rows = tables.comparison(runs)
    numbers = table("The runs", [column.title for column in columns], [column.numeric for column in columns], rows)
    return numbers + paragraph(tables.caption(runs), "note")


def _comparison(groups: Sequence[RunGroup]) -> str:
    found, excuse = compare_as_far_as_possible(groups)
    grid = formats.systems_grid(found)
    parts = [table("The systems", grid.titles, grid.numeric, grid.rows)]
    parts += [paragraph(line, "note") for line in (formats.caption(found), *ranking(found), excuse)]
    return "\n".join([*parts, _differences(found)])


def _differences(found: Comparison) -> str:
    """Behind a click: four rows for every system are too many to stand between a reader and the figures."""
    if not found.contrasts:
        return ""
    grid = formats.contrasts_grid(found)
    references = listing(list(dict.fromkeys(contrast.reference.label for contrast in found.contrasts)))
    content = table("The differences", grid.titles, grid.numeric, grid.rows)
    content += paragraph(formats.contrasts_caption(found), "note")
    return details(f"Differences from {references}", "with intervals and verdicts", content, is_open=False)
