"""Write the tables of docs/evidence.md from the files in results/.

python scripts/write_evidence.py            # write
python scripts/write_evidence.py --check    # write nothing; fail if the page is not what the files give

<!-- evidence:claims -->     a row for each claim of the paper, for two algorithms
<!-- evidence:summary -->    number of verdicts of each kind
<!-- evidence:cost -->       compute time of the runs
<!-- evidence:tuning -->     number of runs of each method in the searches
<!-- /evidence -->           end of a generated part
"""

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from archive_results import log_scores
from ricnet.io import MARK
from ricnet.report.comparison import ACCURACY, ECE, NLL, TRAINING_SECONDS, Metric
from ricnet.report.runs import RunRecord, read_run
from ricnet.report.statistics import Difference, Interval, mean_interval, paired_difference
from ricnet_paper.fig6_generalization import LEVELS, generalization
from run_queue import stopped

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "evidence.md", ROOT / "results"
MARKED = re.compile(r"(<!-- evidence:(\S+) -->\n).*?(<!-- /evidence -->)", re.DOTALL)
ENOUGH = 3
"""Minimum seeds for a verdict other than undecided."""
NOT_RUN = "**not run**"
STOPPED = "**undecided** (RIC was stopped early)"
STEPS_GAP = Metric("", "steps", 2)
POINTS = Metric("", "points", 2, scale=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not what files give")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = fill(old, RESULTS)
    if check and new != old:
        sys.exit("write_evidence: docs/evidence.md is not what results/ gives; run scripts/write_evidence.py.")
    if not check:
        PAGE.write_text(new, encoding="utf-8")


def fill(text: str, results: Path) -> str:
    writers = {"claims": claims, "summary": summary, "cost": cost, "tuning": tuning}
    return MARKED.sub(lambda mark: f"{mark[1]}{writers[mark[2]](results)}\n{mark[3]}", text)


# Runs that are compared


def read(path: Path) -> RunRecord:
    """Read an archived run, once per version of the file: many cells need the same run."""
    return _read(path.resolve(), path.stat().st_mtime_ns)


@cache
def _read(path: Path, changed: int) -> RunRecord:
    return read_run(path)


@dataclass(frozen=True)
class Pairing:
    """Archived runs of RIC and of its references, paired by seed; {} in a name stands for the seed."""

    folder: str
    ours: str
    theirs: str = ""
    label: str = "SL"

    def runs(self, results: Path) -> list[RunRecord]:
        return [read(path) for path in self._found(results, self.ours).values()]

    def pairs(self, results: Path) -> list[tuple[RunRecord, RunRecord]]:
        ours, theirs = (self._found(results, name) for name in (self.ours, self.theirs))
        return [(read(ours[seed]), read(theirs[seed])) for seed in sorted(ours.keys() & theirs.keys())]

    def begun(self, results: Path) -> "Pairing":
        """With the runs of RIC that were stopped early, if there are no whole ones."""
        short = replace(self, ours=stopped(self.ours))
        return short if short.pairs(results) and not self.pairs(results) else self

    def _found(self, results: Path, name: str) -> dict[int, Path]:
        paths = {seed: results / self.folder / f"{name.format(seed)}.json" for seed in range(10)}
        return {seed: path for seed, path in paths.items() if path.is_file()}

    def named(self, runs: Sequence[RunRecord]) -> str:
        own = self.ours.format(_range([run.seed for run in runs]))
        return f"`{self.folder}/{own}`" + MARK * any(run.collapses for run in runs)


def _range(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"[{min(seeds)}-{max(seeds)}]"


Statistic = Callable[[RunRecord], float]


def of(metric: Metric) -> Statistic:
    def measure(run: RunRecord) -> float:
        value = metric.of(run)
        assert value is not None, f"{run.path} lacks {metric.name}"
        return value

    return measure


def verdict(found: Difference | Interval, direction: int) -> str:
    """Verdict from the sign that is claimed and the 95 % interval over seeds."""
    if found.n < ENOUGH or found.half_width is None:
        agrees = "agrees" if direction * found.mean > 0 else "disagrees"
        return f"**undecided** ({_seeds(found.n)}, {agrees})"
    return f"**{_word(found, direction)}** ({_seeds(found.n)})"


def _word(found: Difference | Interval, direction: int) -> str:
    if found.half_width is None or abs(found.mean) <= found.half_width:
        return "undecided"
    return "reproduced" if direction * found.mean > 0 else "contradicted"


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


# Cells: verdict, effects, file


def difference(
    results: Path, metric: Metric, direction: int, pairings: Sequence[Pairing], statistic: Statistic | None = None
) -> str:
    """Difference of RIC from each reference; the first decides the verdict, unless RIC was stopped early."""
    measure, decided = statistic or of(metric), ""
    effects, files = [], []
    for whole in pairings:
        pairing = whole.begun(results)
        pairs, early = pairing.pairs(results), pairing != whole
        if not pairs:
            continue
        found = paired_difference(*zip(*((measure(ours), measure(theirs)) for ours, theirs in pairs), strict=True))
        other = f"; {_word(found, direction)}" if decided and found.n >= ENOUGH and not early else ""
        decided = decided or f"{STOPPED if early else verdict(found, direction)}: "
        values = " − ".join(
            metric.write(float(np.mean([measure(run) for run in each]))) for each in zip(*pairs, strict=True)
        )
        gap = metric.write(found.mean, found.half_width, signed=True)
        examples = over_examples(metric, pairs) if statistic is None else ""
        end = f", RIC stopped at epoch {_spread([_epochs(ours) for ours, _ in pairs])}" if early else ""
        effects.append(f"{gap}{examples} against {pairing.label}{end} ({values}{other})")
        files.append(pairing.named([ours for ours, _ in pairs]))
    return f"{decided}{'; '.join([*effects, *dict.fromkeys(files)])}" if effects else NOT_RUN


def over_examples(metric: Metric, pairs: Sequence[tuple[RunRecord, RunRecord]]) -> str:
    """For a single seed, the interval over test examples: paired for NLL, which is stored per example; for accuracy
    as if the two systems had different test examples, which is wider."""
    if len(pairs) > 1 or metric not in (ACCURACY, NLL):
        return ""
    ours, theirs = pairs[0]
    if metric is ACCURACY:
        spread = sum(p * (1 - p) / run.test["n"] for run in pairs[0] for p in [of(ACCURACY)(run)])
        half: float | None = 1.96 * spread**0.5
    else:
        left, right = log_scores(ours), log_scores(theirs)
        half = mean_interval(right - left).half_width if left is not None and right is not None else None
    return f"{metric.write_half(half)} over test examples" if half is not None else ""


def own(results: Path, pairing: Pairing, metric: Metric, direction: int, statistic: Statistic, words: str) -> str:
    """Measurements of RIC alone, by seed."""
    runs = pairing.runs(results)
    if not runs:
        return NOT_RUN
    found = mean_interval([statistic(run) for run in runs])
    gap = metric.write(found.mean, found.half_width, signed=True)
    return f"{verdict(found, direction)}: {words} {gap}; {pairing.named(runs)}"


def by_step(run: RunRecord, name: str, step: int) -> float:
    return float(run.test["per_step"][step][name])


def refinement(results: Path, pairing: Pairing) -> str:
    """Figure 5b: ECE and confidence from the first step to the last."""
    runs = pairing.runs(results)
    if not runs:
        return NOT_RUN
    ece, sure = ([[by_step(run, name, t) for t in range(20)] for run in runs] for name in ("ece", "mean_confidence"))
    lowest = int(np.mean(ece, axis=0).argmin())
    words = (
        f"confidence {np.mean(sure, axis=0)[0]:.2f} at step 1, {np.mean(sure, axis=0)[-1]:.2f} at 20; ECE lowest at "
        f"step {lowest + 1} ({np.mean(ece, axis=0)[lowest]:.3f}); ECE of step 20 less that of step 1"
    )
    return own(results, pairing, ECE, -1, lambda run: by_step(run, "ece", -1) - by_step(run, "ece", 0), words)


def early_peak(results: Path, pairings: Sequence[Pairing]) -> str:
    """Figure 3: accuracy ahead of confidence by more than .3 in the first quarter, by less than a quarter of that at
    the end. Decided only if it is seen in all seeds or in none."""
    parts = []
    for pairing in pairings:
        runs = pairing.runs(results)
        if not runs:
            continue
        gaps = [[line["val"]["accuracy"] - line["val"]["mean_confidence"] for line in run.metrics] for run in runs]
        seen = [is_early_peak(gap) for gap in gaps]
        decided = f"{'reproduced' if all(seen) else 'contradicted'}" if len(set(seen)) == 1 else "undecided"
        if len(runs) < ENOUGH:
            decided = "undecided"
        epochs = [run.metrics[int(np.argmax(gap))]["epoch"] for run, gap in zip(runs, gaps, strict=True)]
        tops, ends = (mean_interval([pick(gap) for gap in gaps]) for pick in (max, lambda gap: gap[-1]))
        words = f"seen in {sum(seen)} of {len(seen)} seed{'s' * (len(seen) > 1)}"
        parts.append(
            f"**{decided}** ({words}): accuracy less confidence {ECE.write(tops.mean, tops.half_width)} at epoch "
            f"{_spread(epochs)} of {runs[0].metrics[-1]['epoch']}, {ECE.write(ends.mean, ends.half_width)} at the end; "
            f"{pairing.named(runs)}"
        )
    return ". ".join(parts) or NOT_RUN


def is_early_peak(gap: Sequence[float]) -> bool:
    top = int(np.argmax(gap))
    return gap[top] > 0.3 and top < len(gap) / 4 and abs(gap[-1]) < gap[top] / 4


def _epochs(run: RunRecord) -> int:
    return int(run.config["optimization"]["epochs"])


def _spread(epochs: Sequence[int]) -> str:
    return str(epochs[0]) if len(set(epochs)) == 1 else f"{min(epochs)} to {max(epochs)}"


def levels(run: RunRecord) -> dict[int, float]:
    """Validation accuracy at each level of training accuracy, as in Figure 6."""
    found = generalization([run])
    found = found[found["quantity"] == "level"]
    return {int(min(train * LEVELS, LEVELS - 1)): value for train, value in zip(found.train, found.value, strict=True)}


def equal_training(ours: RunRecord, theirs: RunRecord) -> float:
    """Mean difference of validation accuracy over the levels that both reach."""
    left, right = levels(ours), levels(theirs)
    return float(np.mean([left[level] - right[level] for level in left.keys() & right.keys()]))


def generalizes(results: Path, pairing: Pairing, seeds: tuple[int, int] | None = None) -> str:
    """`seeds` are those of RIC and of SL, if they differ."""
    pairs = pairing.pairs(results)
    if seeds is not None:
        names = (pairing.ours.format(seeds[0]), pairing.theirs.format(seeds[1]))
        pairs = [tuple(read(results / pairing.folder / f"{name}.json") for name in names)]  # type: ignore[list-item]
    pairs = [pair for pair in pairs if all(measured_training(run) for run in pair)]
    if not pairs:
        return f"{NOT_RUN}: training accuracy was not measured by epoch"
    found = mean_interval([equal_training(*pair) for pair in pairs])
    gap = POINTS.write(found.mean, found.half_width, signed=True)
    other = "" if seeds is None else f" (seeds {seeds[0]} and {seeds[1]})"
    named = pairing.named([ours for ours, _ in pairs])
    return f"{verdict(found, 1)}: {gap} points against {pairing.label}, mean over levels{other}; {named}"


def measured_training(run: RunRecord) -> bool:
    """Whether accuracy on training data without augmentation was measured while it was trained."""
    return bool(run.config["optimization"].get("measure_all"))


def ablation(
    results: Path, quantity: str, metric: Metric, variant: Pairing, direction: int, statistic: Statistic | None = None
) -> str:
    """Figure 9 from runs of Algorithm 1 by the paper's schedule if there are any; else from runs with short rounds,
    which are not decided."""
    if variant.pairs(results):
        return difference(results, metric, direction, [variant], statistic)
    with (results / "small" / "fig9.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == quantity]
    last = {row["system"]: row for row in rows if int(row["epoch"]) == int(row["epochs"])}
    texts = [
        metric.write(float(last[name]["mean"]), float(last[name]["half_width"]))
        for name in ("RIC", f"RIC, {variant.label}")
    ]
    own_words = "Only with a snapshot every 10 updates, 30 epochs, validation data, 3 seeds"
    return f"{NOT_RUN}. {own_words}: {texts[0]} against {texts[1]}; `small/fig9.csv`"


# The tables

ALGORITHM_1 = {
    "CIFAR-10": [Pairing("cifar10-half-resnet18-paper", "ric-seed{}", "supervised-seed{}", "SL 300")],
    "SVHN": [Pairing("svhn-half-resnet18-paper", "ric-seed{}", "supervised-seed{}", "SL 300")],
    "ImageWoof": [
        Pairing(f"imagewoof-{network}-paper", "ric-seed{}", f"supervised-{n}-seed{{}}", f"SL {n}{words}")
        for network, words in (("half-resnet18", ""), ("resnet34", " with ResNet-34"))
        for n in (300, 2000)
    ],
}
ON_POLICY = {
    name: [Pairing(f"{name.lower().replace('-', '')}-resnet34-fast", "ric-marginal-seed{}", "supervised-seed{}")]
    for name in ALGORITHM_1
}
PAPER = {
    "CIFAR-10": ("93.05 against 92.57 %", ".035 against .059"),
    "SVHN": ("95.86 against 95.80 %", ".018 against .033"),
    "ImageWoof": ("85.39 against 82.61 %", ".049 against .102"),
}
WOOF = "imagewoof-half-resnet18-paper"
VARIANT_TITLES = {"ppo": "PPO", "logistic-normal": "logistic-normal"}
"""Variants of Algorithm 1 in Figure 9, by the name of their runs."""
MARGIN = 0.01
"""Difference in ECE below which two systems count as equal."""
NOISY = {"aggregate": "aggregate labels, 9 % wrong", "worst": "worst labels, 40 % wrong"}


def tempered(pairings: Sequence[Pairing]) -> list[Pairing]:
    """Each reference as trained, then with a temperature."""
    return [
        Pairing(each.folder, each.ours, each.theirs + suffix, each.label + words)
        for suffix, words in (("", ""), ("-temperature", " + temperature"))
        for each in pairings
    ]


@cache
def rows(results: Path) -> list[tuple[str, str, str]]:
    """Claim and the cells of both columns, computed once for the table and the summary."""
    return list(_rows(results))


def _rows(results: Path) -> Iterator[tuple[str, str, str]]:
    both = (ALGORITHM_1, ON_POLICY)
    for name, (accuracy, _) in PAPER.items():
        cells = [difference(results, ACCURACY, 1, column[name]) for column in both]
        yield (f"Accuracy above SL's, {name} ({accuracy})", *cells)
    for name, (_, ece) in PAPER.items():
        cells = [difference(results, ECE, -1, tempered(column[name])) for column in both]
        yield (f"ECE below SL's, {name} ({ece})", *cells)
    for name, source in (("CIFAR-10", "higher return, Figure 2a"), ("ImageWoof", "not claimed; the same question")):
        cells = [difference(results, NLL, -1, tempered(column[name])) for column in both]
        yield (f"NLL below SL's, {name} ({source})", *cells)
    peaks = [early_peak(results, [each[0] for each in column.values() if each]) for column in both]
    yield ("Under-confident at first (ECE above .6 on CIFAR-10), then calibrated; validation data (Figure 3a)", *peaks)
    for name, words in NOISY.items():
        pairing = Pairing(f"cifar10n-{name}-half-resnet18", "ric-marginal-seed{}", "supervised-seed{}")
        cell = difference(results, ECE, -1, tempered([pairing]))
        paper = Pairing(f"cifar10n-{name}-half-resnet18-paper", "ric-seed{}", "supervised-seed{}", "SL 300")
        ours = difference(results, ECE, -1, tempered([paper]))
        yield (f"ECE below SL's with wrong labels: CIFAR-10N, {words}; clean test data (Figure 3)", ours, cell)
    woof = [column["ImageWoof"][0] for column in both]
    yield (
        "Over the steps confidence rises and ECE falls, ImageWoof (Figure 5b)",
        *(refinement(results, p) for p in woof),
    )
    right = [own(results, p, STEPS_GAP, 1, steps_gap, "steps where right less those where wrong") for p in woof]
    yield ("More steps where right than where wrong, ImageWoof (Figure 5c)", *right)
    ppo, normal = (Pairing(WOOF, "ric-seed{}", f"ric-{name}-seed{{}}", title) for name, title in VARIANT_TITLES.items())
    spo = ablation(results, "ece", ECE, ppo, -1)
    yield ("SPO better calibrated than PPO (Figure 9c)", spo, NOT_RUN)
    head = ablation(results, "accuracy", ACCURACY, normal, 1, mean_accuracy)
    yield (
        "Dirichlet learns faster than logistic-normal: validation accuracy, mean over epochs (Figure 9b)",
        head,
        NOT_RUN,
    )
    fast = generalizes(results, ON_POLICY["CIFAR-10"][0], (4, 0))
    ours = generalizes(results, ALGORITHM_1["CIFAR-10"][0])
    yield ("Higher validation accuracy at equal training accuracy, CIFAR-10 (Figures 2c, 6a)", ours, fast)
    both_woof = [generalizes(results, pairing) for pairing in woof]
    yield ("Higher validation accuracy at equal training accuracy, ImageWoof (Figure 6c)", *both_woof)
    for name, title in (("act", "ACT"), ("pondernet", "PonderNet")):
        paper = Pairing(WOOF, f"{name}-seed{{}}", "supervised-300-seed{}", "SL 300")
        pairing = Pairing("cifar10-resnet34-fast", f"{name}-seed{{}}", "supervised-seed{}")
        claim = f"{title}'s ECE is like SL's (.059 and .059 on CIFAR-10, .097 and .102 on ImageWoof)"
        yield (claim, alike(results, paper), alike(results, pairing))


def mean_accuracy(run: RunRecord) -> float:
    """Mean validation accuracy over all epochs: higher for a method that learns faster."""
    return float(np.mean([line["val"]["accuracy"] for line in run.metrics]))


def steps_gap(run: RunRecord) -> float:
    return float(run.test["mean_steps_correct"]) - float(run.test["mean_steps_wrong"])


def alike(results: Path, pairing: Pairing) -> str:
    """Equivalence: the interval must lie within the margin; including 0 is not enough."""
    pairs = pairing.pairs(results)
    if not pairs:
        return NOT_RUN
    found = paired_difference(*zip(*((of(ECE)(ours), of(ECE)(theirs)) for ours, theirs in pairs), strict=True))
    gap = ECE.write(found.mean, found.half_width, signed=True)
    named = pairing.named([ours for ours, _ in pairs])
    return f"**{likeness(found)}** ({_seeds(found.n)}): {gap} against {pairing.label}; {named}"


def likeness(found: Difference | Interval) -> str:
    if found.n < ENOUGH or found.half_width is None:
        return "undecided"
    if abs(found.mean) + found.half_width < MARGIN:
        return "reproduced"
    return "contradicted" if abs(found.mean) - found.half_width > MARGIN else "undecided"


def claims(results: Path) -> str:
    titles = ["Claim (the paper's numbers, RIC against SL)", "Algorithm 1 by the paper's schedule", "On-policy default"]
    return table(titles, rows(results))


VERDICTS = ("reproduced", "contradicted", "undecided", "not run")


def summary(results: Path) -> str:
    """Number of verdicts of each kind, by column."""
    cells = list(zip(*(row[1:] for row in rows(results)), strict=True))
    lines = []
    for title, column in zip(("Algorithm 1", "On-policy"), cells, strict=True):
        found = Counter(name for cell in column for name in re.findall(r"\*\*([a-z ]+)\*\*", cell))
        agree = sum(cell.count(", agrees)") for cell in column)
        counts = ", ".join(f"{found[name]} {name}" for name in VERDICTS if found[name])
        few = f" Of those undecided for want of seeds, {agree} agree in sign with the paper." if agree else ""
        lines.append(f"- **{title}**: {counts}.{few}")
    return "\n".join(lines)


def table(titles: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """The table in Markdown; its cells contain Markdown, so nothing is escaped."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *body))


COSTS = (
    ("cifar10-half-resnet18-paper", "ric-seed{}", ("supervised-seed{}",)),
    ("imagewoof-half-resnet18-paper", "ric-seed{}", ("supervised-300-seed{}", "supervised-2000-seed{}")),
    ("cifar10-resnet34-fast", "ric-marginal-seed{}", ("supervised-seed{}",)),
    ("svhn-resnet34-fast", "ric-marginal-seed{}", ("supervised-seed{}",)),
    ("imagewoof-resnet34-fast", "ric-marginal-seed{}", ("supervised-seed{}",)),
)


def cost(results: Path) -> str:
    """GPU seconds of the updates, and the resulting scores."""
    titles = [
        "Runs",
        "System",
        "Seeds",
        "Epochs",
        "GPU seconds",
        "… of RIC's",
        "Epochs in RIC's seconds",
        "Accuracy (%)",
        "NLL",
        "NLL + temperature",
    ]
    return table(
        titles, (row for folder, ours, theirs in COSTS for row in _cost_rows(results, folder, (ours, *theirs)))
    )


def _cost_rows(results: Path, folder: str, names: Sequence[str]) -> Iterator[list[str]]:
    most = 0.0
    for name in names:
        runs = Pairing(folder, name).runs(results)
        cooled = Pairing(folder, name + "-temperature").runs(results)
        seconds = float(np.mean([of(TRAINING_SECONDS)(run) for run in runs]))
        most = most or seconds
        epochs = _epochs(runs[0])
        means = [metric.write(float(np.mean([of(metric)(run) for run in runs]))) for metric in (ACCURACY, NLL)]
        after = NLL.write(float(np.mean([of(NLL)(run) for run in cooled])) if len(cooled) == len(runs) else None)
        spent = [f"{seconds:,.0f}", f"{seconds / most:.2f}", f"{epochs * most / seconds:,.0f}"]
        system = runs[0].method + MARK * any(run.collapses for run in runs)
        yield [f"`{folder}`", system, str(len(runs)), str(epochs), *spent, *means, after]


SEARCHES = {
    "cifar10-half-resnet18-paper": "choices of `--preset paper`, 40 epochs (SL 60)",
    "cifar10-half-resnet18": "the recipe of `fast`, 12 to 60 epochs",
    "marginal-credit": "credit and range of c, small and short",
}
"""Folders of results/search/, and the settings that were chosen there."""


def tuning(results: Path) -> str:
    """Archived runs of each method in the searches; runs with a temperature fitted afterwards do not count."""
    body = []
    for name, words in SEARCHES.items():
        files = [read(path) for path in sorted((results / "search" / name).glob("*.json"))]
        kinds = Counter(run.config["method"]["name"].split("-")[0] for run in files if not run.derived_from)
        body.append([f"`search/{name}`", words, str(kinds["ric"]), str(kinds["supervised"])])
    return table(["Archived search", "What was chosen", "Runs of RIC", "Runs of SL"], body)


if __name__ == "__main__":
    main()
