"""Search for recipes of photographs and of small images, with the same candidates for SL and for RIC on-policy.

    python scripts/study_recipes.py imagewoof-resnet18 cifar10-whitened --data-dir DIR --jobs 4 --minutes 7 --deadline 9
    python scripts/study_recipes.py --show

Each search changes one part of the preset `fast` after another. A stage starts from the winner of the stage before,
which is read from the archives, so that a search can be split over days. A candidate is judged by the NLL of validation
rows after a cross-fitted temperature, averaged over both methods. The lowest NLL wins, but the earlier settings stay
unless their NLL is higher by more than one standard error of the difference over validation rows. That error does not
contain the noise between seeds. A candidate with a run that diverged cannot win.

After the last stage the result and the settings before the search are trained with seeds that chose nothing, by
Algorithm 1 too. Test rows are removed when the data is read, so that no training or judging can see them. Results are
kept in results/search/recipes and not measured again; scripts/write_questions.py writes them to
docs/questions/recipes.md.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archive_results import UNIT
from recipe_candidates import SEARCHES, Settings, Times
from ricnet.data import Dataset, whole_path
from ricnet.evaluation.choices import calibrated_scores, is_as_good
from ricnet.evaluation.evaluate import read_predictions
from ricnet.io import read_json, write_atomically
from ricnet.models.config import Config
from ricnet.models.run import RunFolder
from ricnet.report.comparison import ACCURACY, Metric
from ricnet.training.api import pick_device
from ricnet.training.recipes import configure
from run_queue import Job, add_options, archive_of, read, store, work
from write_evidence import table as markdown
from write_questions import gap, mean

ARCHIVES = Path(__file__).resolve().parents[1] / "results" / "search" / "recipes"
JUDGES = {"supervised": "SL", "ric-on-policy": "RIC, on-policy"}
"""Methods that choose."""
CONFIRMED = JUDGES | {"ric": "RIC, Algorithm 1"}
"""Methods that may be trained with the result."""
SEED = 0
METRICS = NLL, _ = Metric("nll_tempered", "NLL"), replace(ACCURACY, title="Accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("searches", nargs="*", metavar="SEARCH", help=f"in this order: {', '.join(SEARCHES)}")
    add_options(parser, ARCHIVES)
    options = parser.parse_args()
    if unknown := [name for name in options.searches if name not in SEARCHES]:
        parser.error(f"{unknown[0]}: there is no such search; the searches are {', '.join(SEARCHES)}")
    if not options.show:
        work(partial(unfinished, options), finish, options)
    print(table(options.to))


# The queue


@dataclass(frozen=True)
class Trial:
    search: str
    method: str
    settings: Settings
    seed: int = SEED

    @property
    def name(self) -> str:
        """With a hash of the settings, so that stages share runs."""
        key = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:10]
        return f"{self.search}-{self.method}-seed{self.seed}-{key}"

    def result(self, archives: Path) -> dict[str, Any] | None:
        path = archives / f"{self.name}.json"
        return read_json(path) if path.is_file() else None


Step = tuple[str, list[Settings]]
"""Title of a stage, and the settings that it compares; the first are those of the stage before."""


def walk(name: str, archives: Path) -> tuple[list[Step], Settings, list[Trial]]:
    """The stages up to the first unfinished one, the settings that have won so far, and the trials that are missing."""
    search, steps = SEARCHES[name], list[Step]()
    now = {**search.fixed, **search.start}
    for title, changes in search.stages.items():
        tried = [now, *(settings for change in changes if (settings := changed(now, change)) != now)]
        steps.append((title, tried))
        trials = [Trial(name, method, settings) for settings, method in product(tried, JUDGES)]
        if missing := [trial for trial in trials if trial.result(archives) is None]:
            return steps, now, missing
        now = winner(tried, [log_scores(name, settings, archives) for settings in tried])
    last = [Trial(name, *each) for each in product(search.methods, (now, search.fixed), search.seeds)]
    return steps, now, [trial for trial in last if trial.result(archives) is None]


def changed(now: Settings, change: Settings) -> Settings:
    return now | {k: round(now[k] * value, 6) if isinstance(value, Times) else value for k, value in change.items()}


def winner(tried: Sequence[Settings], scores: Sequence[Tensor | None]) -> Settings:
    """The settings with the highest mean log-score; the first ones if they are within a standard error of it."""
    whole = {place: each for place, each in enumerate(scores) if each is not None}
    if not whole:
        return tried[0]
    best = max(whole, key=lambda place: float(whole[place].mean()))
    return tried[0] if 0 in whole and is_as_good(whole[0], whole[best]) else tried[best]


def log_scores(name: str, settings: Settings, archives: Path) -> Tensor | None:
    """The tempered log-score of each validation row, averaged over the methods that choose; None if one diverged."""
    found = [result for method in JUDGES if (result := Trial(name, method, settings).result(archives))]
    if len(found) < len(JUDGES) or any(result["diverged"] for result in found):
        return None
    return UNIT * torch.tensor([result["log_scores"] for result in found]).double().mean(0)


def unfinished(options: argparse.Namespace) -> list[Job]:
    return [job(trial, options) for name in options.searches for trial in walk(name, options.to)[2]]


def job(trial: Trial, options: argparse.Namespace) -> Job:
    name = SEARCHES[trial.search].data
    how = {key: trial.settings[key] for key in ("resolution", "oversize") if key in trial.settings}
    data = store(name, options, keep_test=False, **how)
    config = configuration(trial, opened(data, trial.settings.get("train_fraction", 1.0)), pick_device(options.device))
    return Job(trial.name, replace(config, data=whole_path(name)), data, options.device)


opened = lru_cache(read)


def configuration(trial: Trial, dataset: Dataset, device: torch.device) -> Config:
    changes = trial.settings | {"seed": trial.seed, "calibration": "none", "halt_rule": "value"}
    if (share := changes.pop("average_share", None)) is not None:
        updates = changes["epochs"] * (len(dataset.train) // changes["batch_size"])
        changes["average"] = 1 - 1 / max(1.0, share * updates)
    return configure(dataset, trial.method, "fast", device, **changes)


def finish(job: Job, folder: RunFolder, archives: Path) -> None:
    """Write the validation results of a run, or that it diverged."""
    began = read_json(folder.config)
    began["config"]["data"] = Path(job.config.data).name
    entry = {name: began[name] for name in ("ricnet", "config", "hardware")} | {"diverged": folder.has_diverged}
    if not folder.has_diverged:
        evaluation, outcome = read_json(folder.evaluation), read_predictions(folder.path, "val")
        scores = calibrated_scores(outcome.log_beliefs, outcome.labels)
        entry |= {name: evaluation[name] for name in ("selected_epoch", "seconds")}
        entry |= {name: evaluation["val"][name] for name in ("accuracy", "nll", "ece", "mean_steps")}
        entry |= {"nll_tempered": -float(scores.mean()), "log_scores": (scores / UNIT).round().int().tolist()}
    text = json.dumps(entry, separators=(",", ":")) + "\n"
    write_atomically(archive_of(job, archives), lambda draft: draft.write_text(text, encoding="utf-8"))


# The tables

READING = (
    "Validation data, which chose the settings; NLL after a cross-fitted temperature. Stages: seed 0, differences ± a "
    "standard error over validation rows. Results: other seeds, ± half-width of the 95 % Student-t interval over seeds."
)


def table(archives: Path) -> str:
    """Every stage of every search, and the results against the settings before."""
    walks = {name: walk(name, archives) for name in SEARCHES}
    stages = [row for name, each in walks.items() for step in each[0] for row in stage_rows(name, step, archives)]
    ends = [end_row(name, method, walks[name][1], archives) for name, method in product(SEARCHES, CONFIRMED)]
    titles = ["Search", "Stage", "Settings", *JUDGES.values(), "NLL less that of the first"]
    compared = [f"{metric.title}{words}" for metric in METRICS for words in ("", " less that before")]
    tables = (titles, stages), (["Search", "Method", "Seeds", *compared], [row for row in ends if row])
    return (
        "\n\n".join([*(markdown(*each) for each in tables if each[1]), READING])
        if stages
        else "No run is archived yet."
    )


def stage_rows(name: str, step: Step, archives: Path) -> list[list[str]]:
    """A row for each settings that both methods were trained with: NLL and accuracy, and the difference in NLL."""
    (title, tried), body = step, []
    scores = [log_scores(name, settings, archives) for settings in tried]
    for settings, own in zip(tried, scores, strict=True):
        found = [result for method in JUDGES if (result := Trial(name, method, settings).result(archives))]
        if len(found) < len(JUDGES):
            continue
        cells = [
            "diverged" if result["diverged"] else " / ".join(m.write(result[m.name], unit=True) for m in METRICS)
            for result in found
        ]
        first, difference = scores[0], ""
        if own is not None and first is not None and settings is not tried[0]:
            less = first - own
            difference = NLL.write(float(less.mean()), float(less.std() / len(less) ** 0.5), signed=True)
        change = {key: value for key, value in settings.items() if tried[0].get(key) != value} or settings
        body.append([name, title, f"`{json.dumps(change)}`", *cells, difference])
    return body


def end_row(name: str, method: str, now: Settings, archives: Path) -> list[str]:
    """The result of a search less the settings before it, with seeds that chose nothing; empty without runs."""
    sides = [
        {s: found for s in SEARCHES[name].seeds if (found := Trial(name, method, settings, s).result(archives))}
        for settings in (now, SEARCHES[name].fixed)
    ]
    seeds = [s for s in SEARCHES[name].seeds if all(s in side and not side[s]["diverged"] for side in sides)]
    if not seeds:
        return []
    cells = []
    for metric in METRICS:
        ours, theirs = ([side[s][metric.name] for s in seeds] for side in sides)
        cells += [mean(ours, metric), gap(ours, theirs, metric)]
    return [name, CONFIRMED[method], str(len(seeds)), *cells]


if __name__ == "__main__":
    main()
