"""Runs that differ in nothing but their seed are samples of one system: what tables and bands are made of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ricnet.report.runs import RunRecord, distinguish
from ricnet.report.titles import LATER, WITHOUT_EFFECT
from ricnet.report.words import TABLE, listing, short


@dataclass(frozen=True)
class RunGroup:
    label: str
    """What tables and legends call the system; unique among the groups of one report."""
    runs: tuple[RunRecord, ...]
    """In the order of their seeds, one of each."""
    repeats: tuple[RunRecord, ...] = ()
    """Further runs with the seed of one of these. They would count as seeds without being any, and are left out."""

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(_seed(run) for run in self.runs)


def group_seeds(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Groups in the order in which their first run was given. Of runs with the same seed the first is taken."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_system(run), []).append(run)
    ordered = [sorted(group, key=_seed) for group in groups.values()]
    labels = [speaker.label for speaker in distinguish([group[0] for group in ordered])]
    return [_group(label, group) for label, group in zip(labels, ordered, strict=True)]


def repeats_note(groups: Sequence[RunGroup]) -> str:
    """Which runs do not count, if any."""
    names = [short(run.path.name, TABLE) for group in groups for run in group.repeats]
    return f"Left out, for the settings and the seed are those of another run: {listing(names)}." if names else ""


def _group(label: str, runs: Sequence[RunRecord]) -> RunGroup:
    kept: dict[int, RunRecord] = {}
    for run in runs:
        kept.setdefault(_seed(run), run)
    return RunGroup(label, tuple(kept.values()), tuple(run for run in runs if kept[_seed(run)] is not run))


def _system(run: RunRecord) -> str:
    """A derived run is not what training with its settings gives: its epoch was chosen by another readout."""
    alike = {key: value for key, value in run.config.items() if key != "seed" and LATER.get(key) != value}
    course = {key: value for key, value in alike.get("optimization", {}).items() if key not in WITHOUT_EFFECT}
    alike |= {"optimization": {key: value for key, value in course.items() if LATER.get(key) != value}}
    numbers = json.loads(json.dumps(alike), parse_int=float)  # 2 and 2.0 are the same setting
    return json.dumps([numbers, run.derived_from is not None], sort_keys=True)


def _seed(run: RunRecord) -> int:
    return int(run.config.get("seed", 0))
