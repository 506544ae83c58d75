"""Write the tables of README.md and of both results.md in docs/, and the figures of results/, from the runs there.

python scripts/write_results.py            # write
python scripts/write_results.py --check    # write nothing; fail if a text is not what the runs give

Tables are written between the marks that ask for them:

<!-- results:headline -->  README's table: at most ten rows, each under its algorithm's name
<!-- results:kinds -->     SL, RIC and common alternatives, for each kind of data
<!-- results:table1 -->    the paper's Table 1 beside ours, for Algorithm 1 and for the default
<!-- results:NAME -->      the runs of results/NAME, in short
<!-- results:summary -->   trained systems and SL + temperature of every folder of results/ but EARLIER, in one table
<!-- results:all -->       the runs of every folder, each under its own heading, with all columns
<!-- /results -->          end of a generated part
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from by_kind import by_kind
from claims import sentences
from headline import DEVIATIONS, headline, table1
from pace import pace_figure
from ricnet.errors import RicnetError, listing
from ricnet.io import MARK
from ricnet.report.comparison import (
    ACCURACY,
    BRIER,
    CELLS,
    ECE,
    NLL,
    RATE,
    STEPS,
    TRAIN_ACCURACY,
    TRAINING_SECONDS,
    Metric,
    interval_of,
)
from ricnet.report.figures import house_style
from ricnet.report.names import ALGORITHMS
from ricnet.report.runs import RunGroup, RunRecord, by_task, collapse_note, distinguish, group_seeds, repeats_note
from ricnet.report.tables import Cell, Grid, markdown_safe, markdown_table
from write_evidence import read

MARKED = re.compile(r"(<!-- results:(\S+) -->\n).*?(<!-- /results -->)", re.DOTALL)
ALL = "all"
EARLIER = (
    *("cifar10-resnet34", "cifar10-resnet34-120", "cifar10-resnet34-first", "cifar10-resnet34-second"),
    *("cifar10n-aggregate-resnet34", "cifar10n-worst-resnet34", "imagewoof-resnet34"),
)
"""Folders whose runs have recipes of earlier versions."""
CURVES = "curves.png"
"""Figure beside the runs, if there are curves."""
ORDER = (
    *(algorithm + readout for algorithm in ALGORITHMS for readout in ("", ", readout mu", ", readout implied")),
    *("SL", "SL, confidence cap", "Anytime", "ACT", "PonderNet"),
)
"""Order of systems in a table, each followed by itself with a temperature; others follow by name."""
IN_SHORT = (ACCURACY, ECE, NLL, STEPS)
COLUMNS = (*IN_SHORT, CELLS, BRIER, TRAIN_ACCURACY)
ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "docs/results.md", "docs/archive/results.md")
COMPARED = (*ALGORITHMS, "SL")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a text is not what the runs give")
    check = parser.parse_args().check
    try:
        if not check:
            draw_curves(ROOT / "results")
        stale = [name for name in TEXTS if refresh(ROOT / name, ROOT / "results", write=not check)]
    except RicnetError as error:
        sys.exit(f"write_results: {error}")
    if check and stale:
        sys.exit(f"write_results: {' and '.join(stale)} is not what results/ gives; run scripts/write_results.py.")


def refresh(path: Path, results: Path, *, write: bool) -> bool:
    """Write the text anew; return whether it changed."""
    old = path.read_text(encoding="utf-8")
    new = fill(old, results, path.name)
    if write and new != old:
        path.write_text(new, encoding="utf-8")
        print(f"{path.name}: written")
    return new != old


def draw_curves(results: Path) -> None:
    """Draw the curves of SL and of RIC's algorithms only, so that they stay visible."""
    for name in archived(results):
        shown = [group for group in read_groups(results / name) if group.first.method in COMPARED]
        if any(run.metrics for group in shown for run in group.runs):
            with house_style():
                pace_figure(shown).savefig(results / name / CURVES, dpi=200)
            print(f"results/{name}/{CURVES}: drawn")


def fill(text: str, results: Path, source: str) -> str:
    """The text with everything between its marks replaced; `source` is its name in messages."""
    return MARKED.sub(partial(_filled, results=results, source=source), text)


def _filled(mark: re.Match[str], results: Path, source: str) -> str:
    opening, name, closing = mark.groups()
    if name in WRITERS:
        return opening + WRITERS[name](results) + "\n" + closing
    if name == ALL:
        blocks = [_section(results / each) for each in archived(results)]
    elif name in archived(results):
        blocks = [block(results / name, IN_SHORT)]
    else:
        raise RicnetError(f"{source} asks for results:{name}, but {results / name} holds no archived runs.")
    return opening + "\n\n".join(blocks) + "\n" + closing


def archived(results: Path) -> list[str]:
    return sorted({path.parent.name for path in results.glob("*/*.json")})


def read_groups(folder: Path) -> list[RunGroup]:
    """The systems of a folder of archived runs, in the order of the tables."""
    return _ordered(group_seeds(distinguish([read(path) for path in sorted(folder.glob("*.json"))])))


def _ordered(groups: Sequence[RunGroup]) -> list[RunGroup]:
    return sorted(groups, key=lambda group: (_place(group.first.method), group.label.removesuffix(MARK)))


def _place(name: str) -> int:
    plain = name.removesuffix(" + temperature")
    return ORDER.index(plain) if plain in ORDER else len(ORDER)


def _section(folder: Path) -> str:
    """Heading, table and, if drawn, curves of a folder, for docs/archive/."""
    image = f"![Scores over seconds of training, {folder.name}](../../results/{folder.name}/{CURVES})"
    return "\n\n".join([f"## {folder.name}", block(folder), *([image] if (folder / CURVES).is_file() else [])])


def summary(results: Path) -> str:
    """A row for each trained system, and for SL + temperature, of the folders with today's recipes."""
    titles = ["Folder of `results/`", "System", "Seeds", "Epochs", *(metric.heading for metric in IN_SHORT)]
    rows, trained = [], []
    for name in archived(results):
        groups = [] if name in EARLIER else read_groups(results / name)
        trained += [run for group in groups for run in group.runs if not run.derived_from]
        shown = [group for group in groups if not group.first.derived_from or group.label.startswith(COOLED)]
        for i, group in enumerate(shown):
            texts = _texts(group, IN_SHORT, ())
            rows.append([Cell(text) for text in ("" if i else name, *texts)])
    note = collapse_note(trained)
    return f"{markdown_table(Grid(titles, rows, frozenset({0, 1})))}" + (f"\n\n{note}" if note else "")


COOLED = "SL + temperature"


WRITERS = {"headline": headline, "kinds": by_kind, "table1": table1, "summary": summary}
"""Tables of more than one folder, by the name in their mark."""


def block(folder: Path, columns: Sequence[Metric] = COLUMNS) -> str:
    """A table for each data set with its conclusions, and one explanation of all tables."""
    groups = read_groups(folder)
    parts = [part for alike in by_task(groups) for part in _data_set(_labelled_alone(alike), columns)]
    return "\n\n".join([*parts, caption(groups, f"results/{folder.name}")])


def _labelled_alone(alike: Sequence[RunGroup]) -> list[RunGroup]:
    """Labels without the data set, for a table of one data set."""
    return _ordered(group_seeds([run for group in alike for run in group.runs]))


def _data_set(groups: Sequence[RunGroup], columns: Sequence[Metric]) -> list[str]:
    run = groups[0].first
    shape = " × ".join(str(side) for side in run.data.get("input_shape", []))
    inputs = f", {shape}" if shape else ""
    title = f"**{run.data_title}**{inputs}, {listing(_distinct(groups, _network))}; {_sizes(run)}."
    shown = "\n".join(f"- {markdown_safe(line)}" for line in sentences(groups))
    return [title, markdown_table(grid(groups, columns)), *([shown] if shown else [])]


def _sizes(run: RunRecord) -> str:
    purposes = {"train": "to train on", "val": "to choose the epoch", "test": "to test"}
    rows = {"test": run.test["n"], **run.data.get("rows", {})}
    return listing([f"{rows[split]:,} {purpose}" for split, purpose in purposes.items() if split in rows])


def grid(groups: Sequence[RunGroup], columns: Sequence[Metric]) -> Grid:
    """One row per system. Training times are empty if another row has the same weights."""
    times = (TRAINING_SECONDS, RATE)
    titles = ["System", "Seeds", "Epochs", *(metric.heading for metric in (*columns, *times))]
    rows = [[Cell(text) for text in _texts(group, columns, times)] for group in groups]
    return Grid(titles, rows)


def _texts(group: RunGroup, columns: Sequence[Metric], times: Sequence[Metric]) -> list[str]:
    run = group.first
    epochs = str(run.config.get("optimization", {}).get("epochs", "–"))
    found = [interval_of(group, metric) for metric in columns]
    numbers = [metric.write(own.mean, own.half_width) for metric, own in zip(columns, found, strict=True)]
    means = [metric.write(interval_of(group, metric).mean) for metric in times]
    taken = means if not run.derived_from else ["–"] * len(times)
    return [group.label, str(len(group.runs)), epochs, *numbers, *taken]


def caption(groups: Sequence[RunGroup], place: str) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    seeds = "Mean ± half-width of the 95 % Student-t interval over seeds." if several else "One seed each."
    derived = "Rows without seconds are the weights of a trained row, read out or calibrated differently."
    example = next((group.first.path.name for group in groups if not group.first.derived_from), "RUN.json")
    again = (
        f"`ric report {place}/*.json` shows them all, `ric train --config {place}/{example} --out again` repeats one"
    )
    lines = [
        f"{seeds} ECE with {listing(_distinct(groups, _bins))} bins;",
        f"the epoch is {listing(_distinct(groups, _selection))}.",
        "Training seconds are of the updates alone, by the run's log of images/s, of which the table has the median.",
        derived if any(group.first.derived_from for group in groups) else "",
        f"{'; '.join(_distinct(groups, _machine))}. {again}.",
        collapse_note(run for group in groups for run in group.runs),
        repeats_note(groups),
        DEVIATIONS if any(group.first.config.get("preset") == "paper" for group in groups) else "",
    ]
    return " ".join(filter(None, lines))


def _distinct(groups: Sequence[RunGroup], describe: Callable[[RunRecord], str]) -> list[str]:
    return list(dict.fromkeys(describe(run) for group in groups for run in group.runs))


def _network(run: RunRecord) -> str:
    network = run.config.get("network", {})
    width = network.get("width", 1)
    return f"{network.get('encoder', 'unknown')}" + (f" of width {width:g}" if width != 1 else "")


def _selection(run: RunRecord) -> str:
    by = run.config.get("optimization", {}).get("select", "accuracy")
    return "the last" if by == "last" else f"chosen by validation {by if by == 'accuracy' else by.upper()}"


def _bins(run: RunRecord) -> str:
    return str(run.test["ece_bins"])


def _machine(run: RunRecord) -> str:
    name, torch, python = (run.hardware.get(key, "unknown") for key in ("name", "torch", "python"))
    return f"{name}, PyTorch {torch}, Python {python}, ricnet {run.version}"


if __name__ == "__main__":
    main()
