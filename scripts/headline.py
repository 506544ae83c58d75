"""README's table of results, and the paper's Table 1 beside ours; scripts/write_results.py writes both.

Both use all seeds in results/: means with t-intervals over seeds, and differences paired by seed.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ricnet.errors import RicnetError
from ricnet.io import MARK
from ricnet.report.comparison import ACCURACY, ECE, NLL, Metric
from ricnet.report.runs import collapse_note
from ricnet.report.statistics import mean_interval, paired_difference
from ricnet.report.tables import Cell, Grid, markdown_table
from write_evidence import Pairing, of

DEVIATIONS = (
    "`--preset paper` deviates from the paper's text, or chooses what it leaves open: head gain .01, decoupled weight "
    "decay, sigmoid range of c, log-ratios clamped to ±10, uniform step weights, standardised advantages, bf16 encoder "
    "on a GPU, V(s₁) never asked."
)
"""Note beside every table of docs/ with results of that preset; README links to the list."""
OURS = (ACCURACY, ECE, NLL)


@dataclass(frozen=True)
class Row:
    data: str
    system: str
    folder: str
    runs: str
    sl: str = ""
    """Runs of SL for the comparison; empty for SL itself."""


PAPER = "RIC, Algorithm 1"
HEADLINE = (
    Row("ImageWoof, ½ ResNet-18", PAPER, "imagewoof-half-resnet18-paper", "ric-seed{}", "supervised-2000-seed{}"),
    Row("", "SL", "imagewoof-half-resnet18-paper", "supervised-2000-seed{}"),
    Row("", "SL + temperature", "imagewoof-half-resnet18-paper", "supervised-2000-seed{}-temperature"),
    Row("CIFAR-10, ½ ResNet-18", PAPER, "cifar10-half-resnet18-paper", "ric-seed{}", "supervised-seed{}"),
    Row("", "SL", "cifar10-half-resnet18-paper", "supervised-seed{}"),
    Row("", "SL + temperature", "cifar10-half-resnet18-paper", "supervised-seed{}-temperature"),
    Row(
        *("CIFAR-10, ResNet-34", "RIC on-policy"),
        *("cifar10-resnet34-fast", "ric-marginal-seed{}", "supervised-seed{}"),
    ),
    Row("", "RIC closed form", "cifar10-resnet34-fast", "ric-closed-form-seed{}", "supervised-seed{}"),
    Row("", "SL", "cifar10-resnet34-fast", "supervised-seed{}"),
    Row("", "SL + temperature", "cifar10-resnet34-fast", "supervised-seed{}-temperature"),
)
LESS = {"ECE less SL's": (ECE, ""), "NLL less that of SL + temperature": (NLL, "-temperature")}
"""Columns of differences: metric, and suffix of the names of SL's runs."""

ON_POLICY = {
    name: Pairing(f"{name.lower().replace('-', '')}-resnet34-fast", "ric-marginal-seed{}", "supervised-seed{}")
    for name in ("CIFAR-10", "SVHN", "ImageWoof")
}


def headline(results: Path) -> str:
    """README's table, and three sentences about it."""
    titles = ["Data, network", "System, epochs", "Seeds", *(metric.heading for metric in OURS), *LESS]
    rows = [[Cell(text) for text in _row(results, row)] for row in HEADLINE]
    note = collapse_note(run for row in HEADLINE for run in Pairing(row.folder, row.runs).runs(results))
    lines = [_algorithm_1(results), _default(results), READING, *([note] if note else [])]
    words = "\n".join(textwrap.fill(f"- {line}", 158, subsequent_indent="  ", break_on_hyphens=False) for line in lines)
    return f"{markdown_table(Grid(titles, rows, frozenset({0, 1})))}\n\n{words}"


READING = (
    "Test data, as trained unless a row says temperature; ECE with 15 bins. Mean ± half-width of the 95 % Student-t "
    "interval over seeds; differences are paired by seed; if it includes 0, no difference is shown. One H200. "
    "[Deviations of `--preset paper`](docs/evidence.md#deviations-of-paper-from-the-text)."
)


def _algorithm_1(results: Path) -> str:
    """The first row compared with SL of as many epochs, as trained and with a temperature."""
    row = HEADLINE[0]
    trained, cooled = (Pairing(row.folder, row.runs, row.sl + end) for end in ("", "-temperature"))
    seeds = len(trained.runs(results))
    accuracy, ece = (_decided(results, trained, metric, seeds) for metric in (ACCURACY, ECE))
    ece_cooled, nll_cooled = (_decided(results, cooled, metric, seeds) for metric in (ECE, NLL))
    return (
        f"**Algorithm 1 on ImageWoof**, {seeds} seeds. Less SL at equal epochs: accuracy, in points, {accuracy}; ECE "
        f"{ece}. Less SL + temperature: ECE {ece_cooled}; NLL {nll_cooled}."
    )


def _decided(results: Path, pairing: Pairing, metric: Metric, seeds: int) -> str:
    """The paired difference, with a remark if its interval includes 0."""
    text = less(results, pairing, metric, seeds)
    values = ([of(metric)(run) for run in runs] for runs in zip(*pairing.pairs(results), strict=True))
    found = paired_difference(*values)
    shown = found.half_width is not None and abs(found.mean) > found.half_width
    return text if shown else f"{text} (undecided)"


def _default(results: Path) -> str:
    gaps = ", ".join(f"{name} {less(results, pairing, ACCURACY)}" for name, pairing in ON_POLICY.items())
    return (
        f"**On-policy, the default for images**: accuracy less SL's, in points: {gaps}. "
        "ImageWoof by an earlier recipe, with `--oversize 1`."
    )


def _row(results: Path, row: Row) -> list[str]:
    runs = Pairing(row.folder, row.runs).runs(results)
    if not runs:
        raise RicnetError(f"README.md's table needs {row.folder}/{row.runs.format('N')}.json; {results} has none.")
    scores = _written(results, row.folder, row.runs, OURS)
    epochs = str(runs[0].config["optimization"]["epochs"])
    gaps = [
        less(results, Pairing(row.folder, row.runs, row.sl + end), metric, len(runs)) if row.sl else ""
        for metric, end in LESS.values()
    ]
    system = row.system + MARK * any(run.collapses for run in runs)
    return [row.data, f"{system}, {epochs}", str(len(runs)), *scores, *gaps]


def _written(results: Path, folder: str, name: str, metrics: Sequence[Metric]) -> list[str]:
    """Mean and interval of each metric; empty if there is no run."""
    runs = Pairing(folder, name).runs(results)
    found = [(metric, mean_interval([of(metric)(run) for run in runs])) for metric in metrics if runs]
    return [metric.write(own.mean, own.half_width) for metric, own in found]


def less(results: Path, pairing: Pairing, metric: Metric, seeds: int | None = None) -> str:
    """The paired difference, with the number of pairs unless it is `seeds`."""
    pairs = pairing.pairs(results)
    if not pairs:
        return "not run"
    found = paired_difference(*zip(*((of(metric)(ours), of(metric)(theirs)) for ours, theirs in pairs), strict=True))
    text = metric.write(found.mean, found.half_width, signed=True)
    return text if found.n == seeds else f"{text} ({found.n} seed{'s' * (found.n > 1)})"


TABLE_1 = {
    "CIFAR-10": ("92.57 / .059", "92.51 / .059", "92.43 / .059", "93.05 / .035"),
    "SVHN": ("95.80 / .033", "95.68 / .033", "95.79 / .033", "95.86 / .018"),
    "ImageWoof": ("82.61 / .102", "83.62 / .097", "83.68 / .097", "85.39 / .049"),
}
"""Numbers of the paper: SL, ACT, PonderNet, RIC."""
SYSTEMS = {
    "SL": ("supervised-seed{}", "supervised-300-seed{}"),
    "ACT": ("act-seed{}", "act-300-seed{}"),
    "PonderNet": ("pondernet-seed{}", "pondernet-300-seed{}"),
    "RIC": ("ric-seed{}", "ric-marginal-seed{}"),
}
"""Names of archived runs; the first that exists is used."""


def table1(results: Path) -> str:
    """The paper's Table 1 beside ours."""
    titles = ["Data", "System", "The paper", "`--preset paper`, ½ ResNet-18", "`fast`, ResNet-34"]
    rows = []
    for data, paper in TABLE_1.items():
        folders = [f"{data.lower().replace('-', '')}-{rest}" for rest in ("half-resnet18-paper", "resnet34-fast")]
        for i, (system, names) in enumerate(SYSTEMS.items()):
            ours = [_first(results, folder, names) for folder in folders]
            rows.append([Cell(text) for text in ("" if i else data, system, paper[i], *ours)])
    reading = (
        "Test accuracy in % / ECE, as trained; ours also / NLL, with ± half-width of the 95 % Student-t interval over "
        "seeds and the number of seeds in brackets. RIC is Algorithm 1 in the first two columns of numbers (2000 "
        "epochs; the others 300) and on-policy with marginal credit in the third (all 120 epochs on CIFAR-10, 30 on "
        "SVHN, 200 on ImageWoof). The paper has a ResNet-34 and 5 seeds. Networks, epochs and the choice of the epoch "
        "(validation accuracy, validation accuracy, validation NLL) differ between the columns: compare systems "
        "within a column."
    )
    return f"{markdown_table(Grid(titles, rows, frozenset(range(5))))}\n\n{reading} {DEVIATIONS}"


def _first(results: Path, folder: str, names: Sequence[str]) -> str:
    for name in names:
        if runs := Pairing(folder, name).runs(results):
            return f"{' / '.join(_written(results, folder, name, OURS))} ({len(runs)})"
    return "not run"
