"""Runs that differ in nothing but their seed are samples of one system: what tables and bands are made of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ricnet.report.runs import RunRecord, distinguish


@dataclass(frozen=True)
class RunGroup:
    label: str
    """What tables and legends call the system; unique among the groups of one report."""
    runs: tuple[RunRecord, ...]
    """In the order of their seeds."""

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(int(run.config.get("seed", 0)) for run in self.runs)


def group_seeds(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Groups in the order in which their first run was given."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        alike = {key: value for key, value in run.config.items() if key != "seed"}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(run)
    ordered = [sorted(group, key=lambda run: int(run.config.get("seed", 0))) for group in groups.values()]
    labels = [speaker.label for speaker in distinguish([group[0] for group in ordered])]
    return [RunGroup(label, tuple(group)) for label, group in zip(labels, ordered, strict=True)]
