"""`ric calibrate` gives a run labelled data for its guarantees; `ric monitor` compares new data with that data."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64, Num
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ricnet.apps.commands.decisions import open_model
from ricnet.apps.commands.evaluate import data_for
from ricnet.apps.commands.options import Calibrate, Monitor
from ricnet.data import Split, whole_path
from ricnet.data.inputs import read_inputs
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import pool_size
from ricnet.evaluation.shift import Comparison, Labelled, Summary, compare, judge, verdict
from ricnet.io import split_target
from ricnet.models import guarantees
from ricnet.models.classifier import Classifier
from ricnet.models.guarantees import require_calibration, set_rule
from ricnet.models.run import fingerprint, read_config
from ricnet.terminal import say


def calibrate(options: Calibrate) -> None:
    classifier = open_model(options.run, options.device)
    n = len(guarantees.calibrate(classifier, unseen_rows(classifier, options.data, options.data_dir)))
    most = math.floor(1e4 * n / (n + 1)) / 1e4
    say([f"calibrated with {n:,} examples, for a coverage of at most {most:g}"])
    say([f"sets     ric predict {options.run} --coverage {min(0.95, most):g}"], wrap=False)


def unseen_rows(classifier: Classifier, data: str, data_dir: Path | None) -> Split:
    """The labelled test rows of other data than that of the run."""
    own = split_target(whole_path(data))[0] == split_target(whole_path(classifier.config.data))[0]
    if not own:
        dataset = data_for(classifier, data, data_dir)
        known = {} if classifier.folder is None else read_config(classifier.folder).get("data", {})
        own = fingerprint(dataset) == known.get("fingerprint")
    if own:
        raise RicnetError(
            f"{data} was used to train the run; guarantees need labelled data that was not: give other data, or train "
            "with --calibration-fraction 0.1."
        )
    return dataset.test


def monitor(options: Monitor) -> None:
    classifier = open_model(options.run, options.device, *options.rule)
    known = require_calibration(classifier, "ric monitor")
    inputs, labels = _read(classifier, options)
    beliefs, steps = _answer(classifier, inputs, options.max_steps)
    new = Summary(beliefs.max(1), steps, beliefs.argmax(1))
    old = known.summary(known.stops(classifier.method, options.max_steps))
    found = compare(old, new, len(classifier.class_names), exits=bool(getattr(classifier.model, "costs", ())))
    judged = None
    if labels is not None:
        rule = set_rule(classifier, options.coverage, max_steps=options.max_steps)
        truth = labels.numpy()
        covered = rule.sets(beliefs, allow_empty=False)[range(len(truth)), truth]
        judged = judge(new.confidence, new.answers == truth, {options.coverage: covered})
    words = verdict(found, len(steps))
    if options.json:
        entry: dict[str, Any] = {"n": len(steps), "calibration_n": len(known), "verdict": words}
        entry |= {
            "comparisons": [asdict(each) for each in found],
            "labelled": None if judged is None else asdict(judged),
        }
        print(json.dumps(entry, indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_table(found))
    say([*_scores(judged), words], console)


def _read(classifier: Classifier, options: Monitor) -> tuple[Num[Tensor, "n ..."], Int64[Tensor, "n"] | None]:
    if options.labels:
        test = data_for(classifier, options.data, options.data_dir).test
        return test.inputs, test.labels
    _, rows, notes, problems = read_inputs((options.data,), classifier.input_shape, classifier.columns)
    say([*notes, *(f"skipped: {problem}" for problem in problems)])
    return rows, None


def _answer(classifier: Classifier, inputs: Num[Tensor, "n ..."], max_steps: int | None) -> Any:
    """Beliefs at the halt and steps, as arrays."""
    if not len(inputs):
        raise RicnetError("there are no new examples to compare; give at least one.")
    paths = [classifier.refine(part, max_steps) for part in inputs.split(pool_size(len(classifier.class_names)))]
    beliefs = torch.cat([path.final for path in paths]).double().softmax(-1).cpu().numpy()
    return beliefs, torch.cat([path.halt_step for path in paths]).cpu().numpy()


def _table(found: Sequence[Comparison]) -> Table:
    titles = ("", "calibration", "new", "stability index", "difference", "p-value")
    table = Table(*titles, box=None, padding=(0, 2, 0, 0))
    for each in found:
        means = ["" if mean is None else f"{mean:.3f}" for mean in (each.old, each.new)]
        shown = "shown" if each.differs else "not shown"
        table.add_row(each.name, *means, f"{each.stability:.3f} ({each.size})", shown, f"{each.p_value:.2g}")
    return table


def _scores(judged: Labelled | None) -> list[str]:
    if judged is None:
        return []
    right, error, over = judged.accuracy, judged.calibration_error, judged.overconfidence
    lines = [
        f"accuracy {right.share or 0:.1%} ({right.low:.1%} to {right.high:.1%})",
        f"calibration error {error.value:.3f} ({error.low:.3f} to {error.high:.3f})",
        f"confidence − accuracy {over.value:+.3f} ({over.low:+.3f} to {over.high:+.3f})",
    ]
    return lines + [
        f"coverage of sets for {wanted:g}: {got.share or 0:.1%} ({got.low:.1%} to {got.high:.1%}), measured"
        for wanted, got in judged.coverage.items()
    ]
