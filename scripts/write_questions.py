"""Write the tables of docs/questions/ from the files in results/.

python scripts/write_questions.py            # write
python scripts/write_questions.py --check    # write nothing; fail if a page is not what the files give

<!-- question:NAME -->     output of the function NAME of this file
<!-- /question -->         end of the output

All numbers of measurements stand between these marks, so that none can differ from its file.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headline import DEVIATIONS, less
from ricnet.io import read_json
from ricnet.report.comparison import ACCURACY, ECE, NLL, Metric
from ricnet.report.runs import RunRecord
from ricnet.report.statistics import mean_interval, paired_difference
from write_evidence import RESULTS, ROOT, WOOF, Pairing, by_step, of, read, steps_gap, table

PAGES = ROOT / "docs" / "questions"
MARKED = re.compile(r"(<!-- question:(\S+) -->\n).*?(<!-- /question -->)", re.DOTALL)
PERCENT, SCORE, STEPS = Metric("", "", 1, scale=100), Metric("", "", 3), Metric("", "", 1)
POINTS, TWO = Metric("", "", 2, scale=100), Metric("", "", 2)
READING = "Mean ± half-width of the 95 % Student-t interval over seeds; differences are paired by seed."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not what files give")
    check = parser.parse_args().check
    for page in sorted(PAGES.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = fill(old, RESULTS)
        if check and new != old:
            sys.exit(f"write_questions: {page.name} is not what results/ gives; run scripts/write_questions.py.")
        if not check:
            page.write_text(new, encoding="utf-8")


def fill(text: str, results: Path) -> str:
    return MARKED.sub(lambda mark: f"{mark[1]}{WRITERS[mark[2]](results)}\n{mark[3]}", text)


def mean(values: Sequence[float], metric: Metric) -> str:
    found = mean_interval(values)
    return metric.write(found.mean, found.half_width)


def gap(ours: Sequence[float], theirs: Sequence[float], metric: Metric) -> str:
    found = paired_difference(ours, theirs)
    return metric.write(found.mean, found.half_width, signed=True)


# Refining

REFINED = {
    "Algorithm 1, ImageWoof": Pairing(WOOF, "ric-seed{}"),
    "Algorithm 1, CIFAR-10": Pairing("cifar10-half-resnet18-paper", "ric-seed{}"),
    "On-policy, ImageWoof": Pairing("imagewoof-resnet34-fast", "ric-marginal-seed{}"),
    "On-policy, CIFAR-10": Pairing("cifar10-resnet34-fast", "ric-marginal-seed{}"),
    "On-policy, SVHN": Pairing("svhn-resnet34-fast", "ric-marginal-seed{}"),
    "On-policy, CIFAR-10N worst": Pairing("cifar10n-worst-half-resnet18", "ric-marginal-seed{}"),
    "Closed form, CIFAR-10": Pairing("cifar10-resnet34-fast", "ric-closed-form-seed{}"),
}


def refining(results: Path) -> str:
    titles = [
        *("Algorithm, data", "Seeds", "Confidence, step 1, 20", "ECE, step 1, 2, 5, 20", "NLL, step 1, 2, 5, 20"),
        *("ECE, step 20 less 1", "NLL, step 20 less 1", "Mean steps, right, wrong", "Right less wrong", "File"),
    ]
    body = []
    for name, pairing in REFINED.items():
        runs = pairing.runs(results)
        own = [f"`{pairing.folder}/{pairing.ours.format('*')}`"]
        body.append([name, str(len(runs)), *_over_steps(runs), *_steps_taken(runs), *own])
    return f"{table(titles, body)}\n\nTest data, all examples, whether they had stopped or not. {READING} {DEVIATIONS}"


def _over_steps(runs: Sequence[RunRecord]) -> list[str]:
    def at(name: str, step: int) -> float:
        return float(np.mean([by_step(run, name, step - 1) for run in runs]))

    levels = [
        ", ".join(f"{at(name, step):.3f}" for step in steps)
        for name, steps in (("mean_confidence", (1, 20)), ("ece", (1, 2, 5, 20)), ("nll", (1, 2, 5, 20)))
    ]
    ends = [[[by_step(run, name, step) for run in runs] for step in (-1, 0)] for name in ("ece", "nll")]
    return [*levels, *(gap(last, first, SCORE) for last, first in ends)]


def _steps_taken(runs: Sequence[RunRecord]) -> list[str]:
    means = [float(np.mean([run.test[f"mean_steps_{name}"] for run in runs])) for name in ("correct", "wrong")]
    found = mean_interval([steps_gap(run) for run in runs])
    return [", ".join(STEPS.write(value) for value in means), STEPS.write(found.mean, found.half_width, signed=True)]


ROUNDS = {"no-snapshot": 0, "snapshot-every-5-epochs": 5, "snapshot-every-50-epochs": 50}
"""Files, and the life of a snapshot in epochs; 0 for one update."""
EPOCHS = (10, 50, 200, 800)


def rounds(results: Path) -> str:
    titles = [
        *("Snapshot", "Rounds", *(f"Confidence, epoch {n}" for n in EPOCHS)),
        *("Test accuracy (%)", "Test ECE, step 1, 20", "Test NLL, step 1, 20"),
    ]
    body = []
    for name, life in ROUNDS.items():
        run = read(results / "search" / "digits-rounds" / f"{name}.json")
        words = f"every {life} epochs" if life else "every update (on-policy)"
        count = run.metrics[-1]["epoch"] // life if life else run.metrics[-1]["update"]
        sure = {line["epoch"]: line["val"]["mean_confidence"] for line in run.metrics}
        found = [f"{sure[min(sure, key=lambda epoch, n=n: abs(epoch - n))]:.2f}" for n in EPOCHS]
        steps = [", ".join(f"{by_step(run, key, step):.3f}" for step in (0, -1)) for key in ("ece", "nll")]
        body.append([words, f"{count:,}", *found, ACCURACY.write(of(ACCURACY)(run)), *steps])
    reading = "Confidence is that on validation data. One seed each; `search/digits-rounds/`."
    return f"{table(titles, body)}\n\n{reading} {DEVIATIONS}"


# Calibration

CALIBRATED = {
    "Algorithm 1, ImageWoof (SL: 2000 epochs)": Pairing(WOOF, "ric-seed{}", "supervised-2000-seed{}"),
    "Algorithm 1, CIFAR-10 (SL: 300)": Pairing("cifar10-half-resnet18-paper", "ric-seed{}", "supervised-seed{}"),
    **{
        f"On-policy, {name}": Pairing(
            f"{name.lower().replace('-', '')}-resnet34-fast", "ric-marginal-seed{}", "supervised-seed{}"
        )
        for name in ("ImageWoof", "CIFAR-10", "SVHN")
    },
    "Closed form, CIFAR-10": Pairing("cifar10-resnet34-fast", "ric-closed-form-seed{}", "supervised-seed{}"),
    "SL with a cap on confidence, CIFAR-10": Pairing(
        "cifar10-resnet34-fast", "supervised-cap-seed{}", "supervised-seed{}"
    ),
    "Anytime with cap and value, CIFAR-10": Pairing(
        "cifar10-resnet34-fast", "anytime-matched-seed{}", "supervised-seed{}"
    ),
}


def calibration(results: Path) -> str:
    titles = [
        *("System", "Seeds", "ECE", "ECE less SL's", "ECE less SL + temperature's", "NLL less SL's"),
        *("NLL less SL + temperature's", "With μ + temperature: ECE less SL + temperature's", "… NLL", "File"),
    ]
    body = []
    for name, pairing in CALIBRATED.items():
        runs = pairing.runs(results)
        cooled = _against(pairing, "", "-temperature")
        both = _against(pairing, "-mu-temperature", "-temperature")
        texts = [less(results, each, metric, len(runs)) for metric in (ECE, NLL) for each in (pairing, cooled)]
        read_out = [less(results, both, metric, len(runs)) for metric in (ECE, NLL)]
        file = f"`{pairing.folder}/{pairing.ours.format('*')}`"
        body.append([name, str(len(runs)), mean([of(ECE)(run) for run in runs], ECE), *texts, *read_out, file])
    return f"{table(titles, body)}\n\nTest data, ECE with 15 bins. {READING} {DEVIATIONS}"


def _against(pairing: Pairing, ours: str, theirs: str) -> Pairing:
    return Pairing(pairing.folder, pairing.ours + ours, pairing.theirs + theirs)


def decay(results: Path) -> str:
    """SL by `--preset paper` for 60 epochs with both readings of its weight decay."""
    titles = ["SL, 60 epochs", "Validation accuracy (%)", "ECE", "NLL", "NLL + temperature"]
    body = []
    for words, name in (("decoupled (AdamW, the preset)", "adamw"), ("coupled (Adam)", "adam")):
        plain, cooled = (
            read(results / "search" / "cifar10-half-resnet18-paper" / f"supervised-{name}{end}.json")
            for end in ("", "-temperature")
        )
        val = plain.evaluation["val"]
        scores = [PERCENT.write(val["accuracy"]), *(SCORE.write(val[key]) for key in ("ece", "nll"))]
        body.append([words, *scores, SCORE.write(cooled.evaluation["val"]["nll"])])
    reading = "Validation data, one seed; `search/cifar10-half-resnet18-paper/supervised-*`."
    return f"{table(titles, body)}\n\n{reading} {DEVIATIONS}"


# Wrong labels

RIVALS = ("SL", "SL + temperature", "Anytime, confidence cap", "gradient boosting")
Cells = Mapping[str, Sequence[Mapping[str, Any]]]
"""Cases of a study, each with its seeds."""


def tables_with_wrong_labels(results: Path) -> str:
    """Difference in log-loss between RIC and other systems on generated tables."""
    body = []
    for file, ric in (("label_noise", "RIC, on-policy"), ("label_noise_20000", "RIC, on-policy, marginal credit")):
        for case, seeds in _cases(json.loads((results / f"{file}.json").read_text(encoding="utf-8"))).items():
            ours = [seed[ric]["log_loss"] for seed in seeds]
            gaps = [gap(ours, [seed[rival]["log_loss"] for seed in seeds], SCORE) for rival in RIVALS]
            errors = [np.mean([seed[name]["ece"] for seed in seeds]) for name in (ric, "SL", "SL + temperature")]
            ece = ", ".join(f"{error:.3f}" for error in errors)
            body.append([case, str(len(seeds)), mean(ours, SCORE), *gaps, ece, f"`{file}.json`"])
    titles = [
        *("Rows, wrong labels", "Seeds", "RIC's log-loss", *(f"less {rival}" for rival in RIVALS)),
        *("ECE: RIC, SL, SL + temperature", "File"),
    ]
    reading = (
        "RIC on-policy (joint credit, with 20,000 rows marginal credit), 10,000 test rows with as many wrong labels."
    )
    return f"{table(titles, body)}\n\n{reading} {READING}"


def _cases(study: Mapping[str, Any]) -> Cells:
    """Grouped by the part of the name before the seed, for example "1000 rows, 0.1 wrong, seed 0"."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, scores in study.items():
        rows, wrong, _ = name.split(", ")
        share = 100 * float(wrong.split()[0])
        found.setdefault(f"{int(rows.split()[0]):,} rows, {share:.0f} % wrong", []).append(scores)
    return found


def people(results: Path) -> str:
    """CIFAR-10N, evaluated on noisy labels of the same kind and on clean labels."""
    titles = [
        *("Labels", "Judged by", "Seeds", "ECE: RIC, SL, SL + temperature", "ECE less SL's"),
        *("ECE less SL + temperature's", "NLL less SL's", "NLL less SL + temperature's", "File"),
    ]
    body = []
    for kind, words in (("aggregate", "aggregate, 9 % wrong"), ("worst", "worst, 40 % wrong")):
        folder = f"cifar10n-{kind}-half-resnet18"
        pairing = Pairing(folder, "ric-marginal-seed{}", "supervised-seed{}")
        for split, judge in (("val", "validation labels, wrong alike"), ("test", "test labels, clean")):
            ece, nll = (Metric(name, "", 3, split=split) for name in ("ece", "nll"))
            cooled = _against(pairing, "", "-temperature")
            runs = [each.runs(results) for each in (pairing, *_theirs(pairing), *_theirs(cooled))]
            levels = ", ".join(ece.write(float(np.mean([of(ece)(run) for run in own]))) for own in runs)
            gaps = [less(results, each, metric, len(runs[0])) for metric in (ece, nll) for each in (pairing, cooled)]
            body.append([words, judge, str(len(runs[0])), levels, *gaps, f"`{folder}/ric-marginal-seed*`"])
    return f"{table(titles, body)}\n\nRIC on-policy, as trained, less SL. {READING}"


def _theirs(pairing: Pairing) -> list[Pairing]:
    return [Pairing(pairing.folder, pairing.theirs)]


# Early exits

EXITS = {
    "CIFAR-10, ResNet-18, 8 exits": "clean-anytime",
    "… aggregate labels, 9 % wrong": "aggregate-anytime",
    "… worst labels, 40 % wrong": "worst-anytime",
    "CIFAR-10, ResNet-34, 16 exits": "clean-resnet34-anytime",
    "SST-2, frozen MiniLM, 6 exits": "sst2-anytime",
}
SHARES = (0.25, 0.4, 0.5)


def early_exits(results: Path) -> str:
    """The value against confidence at equal compute, and both against the whole network."""
    body = []
    for words, name in EXITS.items():
        files = [json.loads(path.read_text()) for path in sorted((results / "search/exits").glob(f"{name}-seed*.json"))]
        for share in SHARES:
            value, sure, whole = (
                _measured(files, *each) for each in (("value", share), ("confidence", share), ("value", 1.0))
            )
            cells = [
                f"{PERCENT.write(float(np.mean(each['accuracy'])))} / {SCORE.write(float(np.mean(each['nll'])))}"
                for each in (value, sure, whole)
            ]
            gaps = [
                gap(value["nll"], sure["nll"], SCORE),
                gap(value["accuracy"], sure["accuracy"], POINTS),
                gap(value["accuracy"], whole["accuracy"], POINTS),
            ]
            body.append([words, str(len(files)), f"{share:g}", *cells, *gaps, f"`{name}-seed*`"])
    titles = [
        *("Data, network", "Seeds", "Share of compute", "By value", "By confidence", "Whole network"),
        *("NLL, value less confidence", "Accuracy, value less confidence", "Accuracy, value less whole", "File"),
    ]
    reading = (
        "Test accuracy in % / NLL; accuracy differences in points. Trained by cross-entropy at every exit beside a "
        "value (`--method anytime`), a temperature for each exit; files are in `results/search/exits/`."
    )
    return f"{table(titles, body)}\n\n{reading} {READING}"


def _measured(files: Sequence[Mapping[str, Any]], rule: str, budget: float) -> dict[str, list[float]]:
    found = [row["test"] for file in files for row in file["rules"] if (row["rule"], row["budget"]) == (rule, budget)]
    return {key: [row[key] for row in found] for key in ("accuracy", "nll")}


# Frozen encoders

ENCODED = (
    ("few_images", "20", "CIFAR-10, 20 images a class"),
    ("few_images", "50", "CIFAR-10, 50 a class"),
    ("few_images", "500", "CIFAR-10, 500 a class"),
    ("texts", "sst2", "SST-2"),
    ("texts", "spam", "SpamAssassin mails"),
)
LOGISTIC = "logistic regression"


def encoders(results: Path) -> str:
    """Difference from logistic regression on the features of a frozen encoder."""
    body = []
    for file, case, words in ENCODED:
        rows = [row for row in json.loads((results / f"{file}.json").read_text()) if row["case"] == case]
        frozen = next(row["encoder"] for row in rows if row["method"] == "RIC, on-policy")
        rows = sorted((row for row in rows if row["encoder"] == frozen), key=lambda row: row["seed"])
        base = [row for row in rows if row["method"] == LOGISTIC]
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == method]
            levels = [mean([row[key] for row in own], metric) for key, metric in SHOWN.items()]
            gaps = [
                gap([row[key] for row in own], [row[key] for row in base], SHOWN[key]) if method != LOGISTIC else ""
                for key in ("accuracy", "nll")
            ]
            seconds = f"{np.mean([row['seconds'] for row in own]):.1f}"
            body.append([words, method, str(len(own)), *levels, *gaps, seconds, f"`{file}.json`"])
    titles = [
        *("Data", "System", "Seeds", "Accuracy (%)", "NLL", "ECE"),
        *("Accuracy less logistic regression's", "NLL less logistic regression's", "Seconds", "File"),
    ]
    return f"{table(titles, body)}\n\nTest data. {READING} Seconds of a fit, once features are known."


SHOWN = {"accuracy": TWO, "nll": SCORE, "ece": SCORE}


# Parity


def parity(results: Path, file: str = "parity.json") -> str:
    entry = json.loads((results / file).read_text(encoding="utf-8"))
    steps, most = entry["settings"]["steps"], entry["trained_up_to"]
    titles = [
        *("System", "Seeds", f"Accuracy (%), 1–{most} non-zero", f"… {most + 1}–{entry['entries']}"),
        *(f"At step {n} (%)" for n in (1, 3, steps, 2 * steps)),
        *("Mean steps, 1–4 non-zero", f"… {most - 3}–{most}", "CPU seconds"),
    ]
    names = list(dict.fromkeys(run["system"] for run in entry["runs"]))
    body = [_parity_row(name, [run for run in entry["runs"] if run["system"] == name], steps, most) for name in names]
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    own_words = (
        f"{entry['updates']:,} updates of {entry['settings']['batch']} new vectors, {steps} steps in training, "
        f"{entry['settings']['tested']:,} test vectors for each number of non-zero entries. Mean ± half-width of the "
        f"95 % Student-t interval over seeds. `{entry['command']}`; one CPU thread a run, {versions}."
    )
    return f"{table(titles, body)}\n\n{own_words}"


def _parity_row(name: str, runs: Sequence[dict[str, Any]], steps: int, most: int) -> list[str]:
    def mean(values: Sequence[float], metric: Metric) -> str:
        found = mean_interval(values)
        return metric.write(found.mean, found.half_width)

    percent, few = Metric("", "", 1, scale=100), Metric("", "", 1)
    counts = (range(1, 5), range(most - 3, most + 1))
    by_step = [mean([run["inside_by_step"][n - 1] for run in runs], percent) for n in (1, 3, steps, 2 * steps)]
    taken = [
        mean([float(np.mean([run["steps_by_count"][str(n)] for n in each])) for run in runs], few) for each in counts
    ]
    seconds = f"{np.mean([run['seconds'] for run in runs]):,.0f}"
    ends = [mean([run[part] for run in runs], percent) for part in ("inside", "beyond")]
    return [name, str(len(runs)), *ends, *by_step, *taken, seconds]


# Guarantees

LEVELS, TESTED, COMPARED = (0.9, 0.95, 0.99), ("lac", "aps", "raps"), ("RIC", "SL")
BOUNDED = {"lost": "right → wrong", "changed": "answer differs", "brier": "Brier score rises"}


def prediction_sets(results: Path) -> str:
    """Coverage and size of sets; the difference is taken with empty sets allowed, at equal coverage, too."""
    entry = _guarantees(results)
    body = []
    for data in dict.fromkeys(run["data"] for run in entry["sets"]):
        ours, theirs = ([run for run in entry["sets"] if (run["data"], run["system"]) == (data, s)] for s in COMPARED)
        rows = f"{data}, {ours[0]['population'] // 2:,}"
        for level in LEVELS:
            cells = [_set_cells(level, score, ours, theirs) for score in TESTED]
            body.append([rows, f"{100 * level:g}", *(cell for own in cells for cell in own)])
    titles = ["Data, calibration rows", "Level (%)"]
    titles += [f"{score}: {what}" for score in TESTED for what in ("RIC", "SL", "size RIC − SL", "… at equal coverage")]
    settings = entry["settings"]
    reading = (
        f"Measured coverage in % / mean number of classes in a set, over {settings['splits']} random splits of the "
        f"held-out rows into halves and {settings['seeds']} seeds (CIFAR-10: one model). Sets are never empty, as "
        "`predict_set` gives them, so coverage may be above the level. The last column of a score allows empty sets, "
        "which puts RIC and SL at the level unless scores tie (phoneme). Differences: mean ± half-width of the 95 % "
        "Student-t interval over training seeds, paired by seed, on the same splits."
    )
    return f"{table(titles, body)}\n\n{reading}"


def _guarantees(results: Path) -> dict[str, Any]:
    return dict(json.loads((results / "guarantees.json").read_text(encoding="utf-8")))


def _set_cells(level: float, score: str, ours: Sequence[Any], theirs: Sequence[Any]) -> list[str]:
    sides = [[_row(run, level=level, score=score) for run in runs] for runs in (ours, theirs)]
    levels = [
        f"{100 * np.mean([row['coverage'] for row in rows]):.1f} / {np.mean([row['size'] for row in rows]):.2f}"
        if rows
        else "–"
        for rows in sides
    ]
    keys = ("size", "size_with_empty") if theirs else ()
    gaps = [gap([row[key] for row in sides[0]], [row[key] for row in sides[1]], SCORE) for key in keys]
    return [*levels, *(gaps or ["–", "–"])]


def _row(run: Mapping[str, Any], **wanted: Any) -> dict[str, Any]:
    return next(row for row in run["rows"] if all(row[key] == value for key, value in wanted.items()))


def guaranteed_exits(results: Path) -> str:
    """Compute with a guaranteed loss, and by the loss measured on the same examples."""
    entry = _guarantees(results)
    limits = list(dict.fromkeys(row["limit"] for row in entry["exits"][0]["rows"]))
    body = []
    for system in dict.fromkeys(run["system"] for run in entry["exits"]):
        runs = [run for run in entry["exits"] if run["system"] == system]
        for loss, words in BOUNDED.items():
            cells = []
            for limit in limits:
                rows = [_row(run, loss=loss, limit=limit) for run in runs]
                saved = [
                    f"{100 * (1 - np.mean([row[key] for row in rows])):.1f}" for key in ("compute", "compute_plain")
                ]
                cells += [*saved, _worst(rows, "violations"), _worst(rows, "violations_plain")]
            body.append([system, words, *cells])
    whats = ("saved (%)", "saved by measured loss (%)", "violations (%)", "… by measured loss")
    titles = ["Digits, 3 exits", "Loss", *(f"ε = {100 * limit:g} %: {what}" for limit in limits for what in whats)]
    reading = (
        "Exits, by loss against the whole network. Saved: mean share of multiply-adds, over simulations and seeds; by "
        "measured loss: the cheapest threshold whose loss on the same examples is within ε, which guarantees nothing."
    )
    return f"{table(titles, body)}\n\n{reading} {_simulated(entry)}"


def _worst(rows: Sequence[Mapping[str, float]], key: str) -> str:
    """Largest share of violations of a seed."""
    return f"{100 * max(row[key] for row in rows):.1f}"


def _simulated(entry: Mapping[str, Any]) -> str:
    settings = entry["settings"]
    delta, n = settings["delta"], settings["calibrations"]
    most = 100 * (delta + 2 * (delta * (1 - delta) / n) ** 0.5)
    return (
        "Violations: simulations in which the loss in the population is above ε, of the seed with most; "
        f"allowed are δ = {100 * delta:g} % plus 2 Monte-Carlo standard errors, {most:.1f} %. {n:,} simulations of "
        f"{settings['examples']:,} calibration examples drawn from the held-out rows, for each seed."
    )


def guaranteed_answers(results: Path) -> str:
    """Share of examples answered with a limited error among them."""
    entry = _guarantees(results)
    limits = [row["limit"] for row in entry["abstention"][0]["rows"]]
    body = []
    for data, system in dict.fromkeys((run["data"], run["system"]) for run in entry["abstention"]):
        same = [
            [run for run in entry[part] if (run["data"], run["system"]) == (data, system)]
            for part in ("sets", "abstention")
        ]
        error = 100 * (1 - np.mean([run["accuracy"] for run in same[0]]))
        cells = []
        for limit in limits:
            rows = [_row(run, limit=limit) for run in same[1]]
            cells += [f"{100 * np.mean([row['answered'] for row in rows]):.1f}", _worst(rows, "violations")]
        body.append([data, system, str(len(same[0])), f"{error:.1f}", *cells])
    titles = ["Data", "System", "Seeds", "Error without abstention (%)"]
    titles += [f"ε = {100 * limit:g} %: {what}" for limit in limits for what in ("answered (%)", "violations (%)")]
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    minutes = sum(run["seconds"] for part in ("sets", "exits") for run in entry[part]) / 60
    time = f"{minutes:.0f} CPU minutes of training and prediction on one thread"
    made = f"`{'`, then `'.join(entry['command'])}`; {time}, {versions}."
    reading = (
        "Error among the answered at most ε. Answered: mean share over simulations and seeds; nothing is answered if "
        "no threshold is shown to keep ε."
    )
    return f"{table(titles, body)}\n\n{reading} {_simulated(entry)} {made}"


# Studies that write their tables themselves, with the functions above


def little_data(results: Path) -> str:
    from study_little_data import table

    return table(results / "little-data")


def recipes(results: Path) -> str:
    from study_recipes import table

    return table(results / "search" / "recipes")


def default_kinds(results: Path) -> str:
    from study_default import kinds, table

    return table(kinds(_default_runs(results)), differences=True)


def default_data(results: Path) -> str:
    from study_default import table

    return table(_default_runs(results))


def claims_on_tables(results: Path) -> str:
    from study_claims_on_tables import table

    return table(json.loads((results / "claims_on_tables.json").read_text(encoding="utf-8"))["runs"])


def few_photographs(results: Path) -> str:
    """Sixty photographs of each of five breeds: test scores of each system."""
    entry = json.loads((results / "few_photographs.json").read_text(encoding="utf-8"))
    metrics, reference = (ACCURACY, NLL, ECE), "SL"
    body = []
    for name, runs in entry["runs"].items():
        seeds = sorted(runs.keys() & entry["runs"][reference].keys())
        scores = [mean([run[metric.name] for run in runs.values()], metric) for metric in metrics]
        less = [
            gap(
                [runs[s][metric.name] for s in seeds], [entry["runs"][reference][s][metric.name] for s in seeds], metric
            )
            for metric in (ACCURACY, NLL)
        ]
        seconds = f"{np.mean([run['seconds'] for run in runs.values()]):.0f}"
        title = f"RIC, {name}" if name != reference else name
        body.append([title, str(len(runs)), *scores, *(less if name != reference else ["", ""]), seconds])
    titles = [
        "System",
        "Seeds",
        *(metric.heading for metric in metrics),
        "Accuracy less SL's",
        "NLL less SL's",
        "CPU s",
    ]
    return f"{table(titles, body)}\n\nTest data. {READING} {entry['made_with']}."


def _default_runs(results: Path) -> dict[str, Any]:
    return dict(read_json(results / "default_method.json")["runs"])


WRITERS: dict[str, Callable[[Path], str]] = {
    **{"refining": refining, "rounds": rounds, "calibration": calibration, "decay": decay},
    **{"tables": tables_with_wrong_labels, "people": people, "early-exits": early_exits, "encoders": encoders},
    **{name: partial(parity, file=f"{name}.json") for name in ("parity", "parity-32", "parity-32-ric")},
    **{"sets": prediction_sets, "guaranteed-exits": guaranteed_exits, "guaranteed-answers": guaranteed_answers},
    **{"little-data": little_data, "few-photographs": few_photographs, "recipes": recipes},
    **{"claims-on-tables": claims_on_tables},
    **{"default-kinds": default_kinds, "default-data": default_data},
}


if __name__ == "__main__":
    main()
