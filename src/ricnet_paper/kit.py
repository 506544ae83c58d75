"""Shared by all items of the paper: from runs to a tidy table, from a table to panels, Markdown and LaTeX.

A table has one row per number, with mean and 95 % interval over seeds, and the conditions of the runs. Figures are
drawn from the CSV file as read back, so the file contains everything that a figure shows.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet import RicnetError
from ricnet.errors import counted, listing
from ricnet.io import MARK
from ricnet.methods import METHODS
from ricnet.nets.encoders import choose_encoder
from ricnet.report import figures
from ricnet.report.comparison import ACCURACY, ECE, ECE_SIGNED, NLL, STEPS, TRAIN_ACCURACY, Metric
from ricnet.report.figures import band, cuts_bands, integer_ticks, look_of
from ricnet.report.runs import RunRecord, collapse_note
from ricnet.report.tables import Grid, escape_latex, latex_table, markdown_table
from ricnet.studies.experiments import Experiment, Runs
from ricnet_paper.scales import GIVEN, Scale

Measure = Callable[[Sequence[RunRecord]], Any]
"""From the runs of an experiment to rows with a `value`; the other columns are the same for every seed."""
SPLITS = {"train": "train_eval", "validation": "val", "test": "test"}
"""Names of the splits in metrics.jsonl. Its `train` is measured on augmented inputs and not shown."""
WIDTH = 7.0
"""Width of a figure in inches, the text width of most journals."""
SMALL = 6.5
"""Smallest font size in points."""
LINE = 125
"""Characters of that size per line."""
SELECTED = {"accuracy": "accuracy", "nll": "NLL", "calibrated": "NLL after calibration"}
"""Criterion of epoch selection, in words."""
MOST_POINTS = 250
"""Maximum points of a drawn curve."""
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
"""A line style of matplotlib."""


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper. `draw` and `write` need only the table, as read from its CSV file."""

    name: str
    """On the command line and of its files, for example fig2."""
    title: str
    experiments: Callable[[Scale], list[Experiment]]
    tabulate: Callable[[Scale, Runs], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure] | None = None
    write: Callable[[pd.DataFrame], Mapping[str, str | bytes]] | None = None
    """Contents of further files by their suffix, for example md and tex."""


def item(
    name: str,
    title: str,
    experiments: Callable[[Scale], list[Experiment]],
    measure: Measure,
    draw: Callable[[pd.DataFrame], Figure] | None = None,
    write: Callable[[pd.DataFrame], Mapping[str, str | bytes]] | None = None,
    usable: Callable[[Sequence[RunRecord]], Sequence[RunRecord]] = list,
) -> Item:
    """An item whose table holds one measurement of all its experiments."""

    def table(scale: Scale, runs: Runs) -> pd.DataFrame:
        return tabulate(scale, experiments(scale), runs, measure, usable)

    return Item(name, title, experiments, table, draw, write)


def tabulate(
    scale: Scale,
    experiments: Sequence[Experiment],
    runs: Runs,
    measure: Measure,
    usable: Callable[[Sequence[RunRecord]], Sequence[RunRecord]] = list,
) -> pd.DataFrame:
    """Apply `measure` to the `usable` runs of each experiment and average over seeds.

    An experiment without runs becomes one row with the reason in `missing`. `seeds` counts usable runs, `asked` the
    seeds of the experiment. `n` counts the seeds that have this number.
    """
    parts = []
    for experiment in experiments:
        finished = runs.get(experiment, ())
        used = usable(finished)
        facts = {
            "benchmark": experiment.benchmark.label,
            "system": _system(experiment, runs),
            "seeds": len(used),
            "asked": len(finished) if finished and scale.name == GIVEN else len(experiment.seeds),
            "scale": scale.name,
            **(_conditions(used[0]) if used else {}),
            **({"collapsed": note} if (note := collapse_note(used)) else {}),
        }
        rows = over_seeds(pd.DataFrame(measure(used))) if used else pd.DataFrame({"missing": [""]})
        rows["missing"] = None if used else _reason(experiment, runs, scale)
        parts += [facts | row for row in rows.to_dict("records")]
    return pd.DataFrame(parts)


def over_seeds(observed: pd.DataFrame) -> pd.DataFrame:
    """Merge rows that differ only in `value` into its mean, the half-width of its 95 % t interval, and n."""
    keys = [name for name in observed if name != "value"]
    groups = observed.groupby(keys, sort=False, dropna=False)
    seeds = np.full((groups.size().max(), groups.ngroups), np.nan)
    values = observed["value"].astype(float)
    seeds[groups.cumcount(), groups.ngroup()] = values.where(np.isfinite(values))
    mean, half_width = band(seeds)
    table = observed[keys].drop_duplicates(ignore_index=True)
    return table.assign(mean=mean, half_width=half_width, n=np.isfinite(seeds).sum(axis=0))


def curves(runs: Sequence[RunRecord], split: str, quantity: str) -> list[dict[str, Any]]:
    """One row per run and measured epoch."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        key = SPLITS[split]
        tags = {"split": split, "quantity": quantity}
        found = [{**tags, "epoch": epoch, "value": score} for epoch, score in run.curve(quantity, key).items()]
        rows += found
        if not found:
            raise RicnetError(f"{run.path} has no {key}.{quantity} in metrics.jsonl: train it with --measure-all.")
    return rows


def measured(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """The runs that measured every split during training; all of them if none did."""
    return [r for r in runs if all(any(entry.get(key) for entry in r.metrics) for key in SPLITS.values())] or runs


def _system(experiment: Experiment, runs: Runs) -> str:
    """Title of the system as in reports, taken from its runs or from those of another experiment.

    Without any runs, a method has its own title unless another system is called so. Variants without runs, and systems
    with settings (`ric:gamma=0.9`), keep their name on the command line.
    """
    alike = [runs.get(experiment, ()), *(found for other, found in runs.items() if other.system == experiment.system)]
    called = [found[0].method for found in alike if found]
    if not called and experiment.system in METHODS:
        title, others = METHODS[experiment.system].title, {found[0].method for found in runs.values() if found}
        return title if title not in others else experiment.system
    return called[0] if called and ":" not in experiment.system else experiment.system


def _reason(experiment: Experiment, runs: Runs, scale: Scale) -> str:
    """Why an experiment has no runs. Data is available if another system was trained on it."""
    if scale.name == GIVEN:
        return "not among the given runs"
    data = experiment.benchmark.data
    here = experiment in runs or any(found and other.benchmark.data == data for other, found in runs.items())
    return "no run finished" if here else f"{Path(data).name} is not here"


def _conditions(run: RunRecord) -> dict[str, Any]:
    config, shape = run.config, tuple(int(side) for side in run.data["input_shape"])
    return {
        "network": network_name(config["network"]["encoder"], config["network"]["width"], shape),
        "input": f"{shape[0]} features" if len(shape) == 1 else " × ".join(str(side) for side in shape),
        "epochs": int(config["optimization"]["epochs"]),
        "preset": str(config["preset"]),
        "select": str(config["optimization"].get("select", "accuracy")),
    }


def network_name(encoder: str, width: float, shape: tuple[int, ...]) -> str:
    """Name of the encoder that is built; `auto` depends on the input shape."""
    return choose_encoder(encoder, shape) + (f", width {width:g}" if width != 1 else "")


def conditions(table: pd.DataFrame) -> str:
    """The conditions of all rows in one sentence; differing ones name their benchmark or system."""
    forms: Mapping[str, Callable[[Any], str]] = {
        "network": str,
        "input": lambda shape: f"inputs {shape}",
        "epochs": lambda count: counted(int(count), "epoch"),
        "preset": lambda name: f"preset {name}",
        "select": lambda rule: "last epoch" if rule == "last" else f"epoch by validation {SELECTED.get(rule, rule)}",
    }
    parts = []
    for name in [name for name in forms if name in table]:
        known = table.dropna(subset=[name])
        owner = next((one for one in ("benchmark", "system") if (known.groupby(one)[name].nunique() == 1).all()), None)
        whose = known[owner] if owner else known["system"] + " on " + known["benchmark"]
        owners = {
            forms[name](value): listing(list(own.unique())) for value, own in whose.groupby(known[name], sort=False)
        }
        parts += [listing([f"{form} ({own})" for form, own in owners.items()])] if len(owners) > 1 else [*owners]
    names, described = listing(distinct(table, "scale")), ", ".join(filter(None, parts))
    head = "As run" if names == GIVEN else f"Scale {names}"
    noted = [note.removesuffix(".") for note in distinct(table, "collapsed")]
    return ". ".join([f"{head}: {described}" if described else head, *noted])


def mark(table: pd.DataFrame) -> str:
    """After the name of a system or benchmark of which a run collapsed in training."""
    return MARK * bool(distinct(table, "collapsed"))


def distinct(table: pd.DataFrame, name: str) -> list[str]:
    """Distinct values of a column in order of appearance."""
    return [str(value) for value in table[name].dropna().unique()] if name in table else []


def first(table: pd.DataFrame, name: str) -> float | None:
    """First number of a column, or None."""
    found = list(table[name].dropna()) if name in table else []
    return float(found[0]) if found else None


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write integers without a decimal point, also in columns with empty cells."""
    table.convert_dtypes().to_csv(path, index=False, encoding="utf-8")


def read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


# From a table to a figure


def thin(table: pd.DataFrame) -> pd.DataFrame:
    """Select at most MOST_POINTS rows, evenly spaced; nothing is smoothed."""
    return table.iloc[figures.thin(len(table), MOST_POINTS)]


def draw_curve(ax: Axes, table: pd.DataFrame, x: str, **line: Any) -> None:
    """Draw mean and interval against the column `x`."""
    if table.empty:
        return
    at, mean, half = (thin(table.sort_values(x))[name].to_numpy(float) for name in (x, "mean", "half_width"))
    shade, dash = line.pop("color"), line.pop("linestyle", "-")
    figures.draw_curve(ax, at, mean, half, shade, dash, floor=-np.inf, **({"linewidth": 1.1} | line))


def system_line(system: str, points: int, dash: Dash = "-") -> dict[str, Any]:
    """Line style of a system with about six markers, to distinguish systems without colour."""
    look, every = look_of(system), max(1, min(points, MOST_POINTS) // 6)
    # Markers of different systems are placed at different points, so that they do not cover each other.
    first = (every // 2) * (look.marker == "s") + (every // 4) * (look.marker == "^")
    style = {"color": look.colour, "linestyle": dash, "marker": look.marker, "markevery": (first, every)}
    return style | {"markersize": 3.2, "markerfacecolor": "white", "markeredgewidth": 0.8}


def draw_systems(ax: Axes, table: pd.DataFrame, dash: Dash = "-") -> None:
    """Draw one curve per system against epochs."""
    for system, own in table.groupby("system", sort=False):
        draw_curve(ax, own, "epoch", **system_line(str(system), len(own), dash))
    ax.set_xlabel("epoch")
    integer_ticks(ax, 4)


def fit(ax: Axes, values: Float[np.ndarray, "n"] | pd.Series) -> None:
    """Set the vertical range by the means; bands of three seeds would be far wider."""
    known = np.asarray(values)[np.isfinite(values)]
    if known.size:
        margin = 0.07 * max(np.ptp(known), 0.01)
        ax.set_ylim(known.min() - margin, known.max() + margin)


def note_missing(ax: Axes, table: pd.DataFrame) -> None:
    """Name missing systems in the panel. Call it last."""
    missing = table.dropna(subset=["missing"]) if "missing" in table else table[:0]
    if len(missing) and len(missing) == len(table):
        _close(ax, "\n".join(distinct(missing, "missing")))
    elif len(missing):
        lines = [f"missing: {row.system} ({row.missing})" for row in missing.itertuples()]
        # Only a legend finds a place without curves.
        blank = [Line2D([], [], linestyle="none", label=textwrap.fill(line, 30)) for line in lines]
        ax.legend(handles=blank, loc="best", handlelength=0, handletextpad=0)


def _close(ax: Axes, reason: str) -> None:
    """Write the reason into an empty panel and remove its ticks, except those of a shared axis."""
    text = textwrap.fill(f"missing: {reason}", 24)
    ax.text(0.5, 0.5, text, transform=ax.transAxes, va="center", ha="center", fontsize=7)
    ax.tick_params(bottom=False, labelbottom=False)
    ax.set_xlabel("")
    if len(ax.get_shared_y_axes().get_siblings(ax)) == 1:
        ax.tick_params(left=False, labelleft=False)
        ax.set_ylabel("")


def system_handles(table: pd.DataFrame) -> list[Artist]:
    """One legend entry per system, with its number of seeds."""
    return [
        Line2D([], [], linewidth=1.1, label=system_label(system, own), **system_line(system, 1) | {"markevery": None})
        for system, own in table.groupby("system", sort=False)
    ]


def system_label(system: str, table: pd.DataFrame) -> str:
    return f"{system}{mark(table)} ({seeds(table)})"


def seeds(table: pd.DataFrame) -> str:
    """5 seeds; 4 of 5 seeds if one is missing; 3 to 5 of 5 seeds if panels differ."""
    found = table[table["seeds"] > 0]
    if found.empty:
        return "missing"
    asked, least, most = int(found["asked"].max()), int(found["seeds"].min()), int(found["seeds"].max())
    span = f"{most}" if least == most else f"{least} to {most}"
    some = span if least == asked else f"{span} of {asked}"
    return f"{some} seed{'s' * (asked > 1)}"


def intervals(table: pd.DataFrame, shape: str = "Bands") -> str:
    """A note on the intervals; empty if nothing is drawn."""
    if table["half_width"].notna().any():
        return f"{shape}: 95 % Student-t intervals over seeds"
    return "A single seed has no interval" if table["mean"].notna().any() else ""


def legend(figure: Figure, handles: Sequence[Artist], notes: Sequence[str], columns: int = 6) -> None:
    """Legend below the panels, with notes. Call it last: it checks whether intervals are cut."""
    cut = "Intervals are cut at the panel's edge" if cuts_bands(figure) else ""
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": min(columns, len(handles))}
    box = figure.legend(handles=list(handles), title=fill_lines([*notes, cut]), title_fontsize=SMALL, **where)
    box.get_title().set_multialignment("center")


def fill_lines(notes: Sequence[str]) -> str:
    """Join notes into lines of at most LINE characters; break only notes longer than a line."""
    lines: list[str] = []
    for note in filter(None, notes):
        longer = f"{lines[-1]}. {note}" if lines else note
        lines[-1:] = [longer] if len(longer) <= LINE else [*lines[-1:], *textwrap.wrap(note, LINE)]
    return "\n".join(lines)


# From a table to Markdown and LaTeX


NEEDS = r"% needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[T1]{fontenc}"
MEANS = "Mean ± half-width of the 95 % Student-t interval over seeds."
METRICS = {
    "train accuracy": replace(TRAIN_ACCURACY, title="train acc., %"),
    "val accuracy": replace(ACCURACY, title="val. acc., %", split="val"),
    "val nll": replace(NLL, title="val. NLL", split="val"),
    "test accuracy": replace(ACCURACY, title="test acc., %"),
    "test ece": replace(ECE, title="test ECE"),
    "test ece signed": replace(ECE_SIGNED, title="conf. − acc."),
    "test nll": replace(NLL, title="test NLL"),
    "mean steps": replace(STEPS, title="mean steps"),
}
"""Metrics by their names in CSV files, with short titles."""


def measure(runs: Sequence[RunRecord], names: Iterable[str]) -> pd.DataFrame:
    """These metrics of each run, with test set size and number of ECE bins."""
    rows = [{"quantity": name, "value": METRICS[name].of(run)} for name in names for run in runs]
    return pd.DataFrame(rows).assign(examples=int(runs[0].test["n"]), bins=int(runs[0].test["ece_bins"]))


def write_cell(metric: Metric, table: pd.DataFrame, intervals: bool = True) -> str:
    """The number in the first row; a dash if there is none."""
    return metric.write(first(table[:1], "mean"), first(table[:1], "half_width") if intervals else None)


def facts(table: pd.DataFrame) -> str:
    """Note below a table of one benchmark: data, conditions, meaning of ±."""
    size, bins = first(table, "examples"), first(table, "bins")
    counts = f", test n = {size:,.0f}, ECE with {bins:.0f} bins" if size and bins else ""
    return f"{distinct(table, 'benchmark')[0]}{counts}. {conditions(table)}. {MEANS}"


def gaps(table: pd.DataFrame) -> list[str]:
    """Sentences about missing systems and seeds."""
    missing = table.dropna(subset=["missing"]).groupby("benchmark", sort=False)
    found = [f"{listing(distinct(own, 'system'))} on {b}: {'; '.join(distinct(own, 'missing'))}." for b, own in missing]
    partly = table[(table.quantity == "test accuracy") & (table.seeds != table.asked)]
    return found + [
        f"{system} on {benchmark}: {seeds(own)} finished."
        for (benchmark, system), own in partly.groupby(["benchmark", "system"], sort=False)
    ]


def write_markdown(grid: Grid, note: str) -> str:
    return f"{markdown_table(grid)}\n\n{note}\n"


def write_latex(grid: Grid, title: str, note: str, head: Sequence[str] | None = None) -> str:
    """`head` replaces the line of titles, for titles that span columns; it is LaTeX."""
    caption = rf"\textbf{{{escape_latex(title)}.}} {escape_latex(note)}"
    return f"{NEEDS}\n{latex_table(grid, caption, head, shrink=True)}\n"
