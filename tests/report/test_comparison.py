from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_runs import groups_of, rewrite, write_run, write_system
from recomputed import recompute
from ricnet.evaluation.evaluate import read_predictions
from ricnet.report.comparison import ACCURACY, ECE, RESULTS, STEPS, Comparison, Contrast, compare, interval_of, results
from ricnet.report.runs import RunGroup
from ricnet.report.statistics import (
    Difference,
    Percentiles,
    holm,
    mean_interval,
    paired_bootstrap,
    paired_difference,
)

COMPARED = ("accuracy", "ece", "nll", "brier")


@pytest.fixture(scope="module")
def root(five_seeds: Path) -> Path:
    return five_seeds


def folders(root: Path, method: str, seeds: int = 5) -> list[Path]:
    return [root / f"{method}-{seed}" for seed in range(seeds)]


def read(root: Path, *methods: str, seeds: int = 5) -> list[RunGroup]:
    return groups_of(*(folder for method in methods for folder in folders(root, method, seeds)))


@pytest.fixture(scope="module")
def found(root: Path) -> Comparison:
    return compare(read(root, "ric", "supervised", "act"))


def contrast(comparison: Comparison, label: str, metric: str) -> Contrast:
    return next(c for c in comparison.contrasts if c.system.label == label and c.metric.name == metric)


def verdicts(comparison: Comparison, label: str) -> set[str]:
    return {contrast(comparison, label, metric).verdict for metric in COMPARED}


def test_the_table_can_be_recomputed_from_the_predictions(root: Path, found: Comparison) -> None:
    for system, method in zip(found.systems, ("ric", "supervised", "act"), strict=True):
        numbers = [recompute(folder) for folder in folders(root, method)]
        for name in numbers[0]:
            expected = mean_interval([entry[name] for entry in numbers])
            interval = interval_of(system, next(metric for metric in RESULTS if metric.key == name))
            assert interval.mean == pytest.approx(expected.mean, abs=1e-6), name
            assert interval.half_width == pytest.approx(expected.half_width, abs=1e-6), name
            assert interval.n == 5


def test_differences_are_paired_by_seed_and_by_example_and_corrected_together(root: Path, found: Comparison) -> None:
    numbers = {m: [recompute(folder) for folder in folders(root, m)] for m in ("ric", "supervised")}
    own, base = ([read_predictions(folder) for folder in folders(root, m)] for m in ("supervised", "ric"))
    bootstrap = paired_bootstrap(own, base)
    for name in COMPARED:
        gaps = [a[name] - b[name] for a, b in zip(numbers["supervised"], numbers["ric"], strict=True)]
        one = contrast(found, "SL", name)
        assert one.reference.label == "RIC"
        assert one.seeds.mean == pytest.approx(np.mean(gaps), abs=1e-6)
        assert one.seeds.half_width == pytest.approx(mean_interval(gaps).half_width, abs=1e-5)
        assert one.examples == bootstrap[name]
        assert one.examples.low < one.seeds.mean < one.examples.high
    assert len(found.contrasts) == 8
    assert [c.p_corrected for c in found.contrasts] == holm([c.seeds.p_value for c in found.contrasts])


def test_verdicts_of_a_clear_case(root: Path, found: Comparison) -> None:
    assert verdicts(found, "SL") == {"worse"}
    assert verdicts(found, "ACT") == {"no difference shown"}
    turned = compare(read(root, "ric", "supervised", "act"), reference="SL")
    assert verdicts(turned, "RIC") == {"better"}
    assert [turned.is_better(system, ECE) for system in turned.systems] == [True, False, True]
    assert [system.label for system in turned.systems] == ["RIC", "SL", "ACT"]


def test_three_seeds_claim_nothing(root: Path) -> None:
    few = compare(read(root, "ric", "supervised", seeds=3))
    assert {c.verdict for c in few.contrasts} == {"too few seeds (3)"}
    one = compare(read(root, "ric", "supervised", seeds=1))
    assert results(read(root, "ric", "supervised", seeds=1)).contrasts == ()
    assert {(c.p_corrected, c.verdict) for c in one.contrasts} == {(None, "too few seeds (1)")}


@pytest.mark.parametrize(
    ("mean", "p", "low", "high", "accuracy", "ece"),
    [
        (0.1, 0.01, 0.05, 0.15, "better", "worse"),
        (-0.1, 0.01, -0.15, -0.05, "worse", "better"),
        *((*numbers, *2 * ("no difference shown",)) for numbers in (
            (0.1, 0.06, 0.05, 0.15),
            (0.1, 0.01, -0.01, 0.2),
            (0.1, 0.01, -0.2, -0.1),
            (0.0, 1.0, -0.1, 0.1),
            (float("nan"), float("nan"), 0.1, 0.2),
        )),
    ],
)  # fmt: skip
def test_a_verdict_needs_seeds_and_examples_to_agree(
    found: Comparison, mean: float, p: float, low: float, high: float, accuracy: str, ece: str
) -> None:
    one = replace(found.contrasts[0], seeds=Difference(mean, 0.1, 0.5, 5), examples=Percentiles(low, high))
    assert replace(one, metric=ACCURACY, p_corrected=p).verdict == accuracy
    assert replace(one, metric=ECE, p_corrected=p).verdict == ece
    alike = paired_difference([0.9, 0.8, 0.7, 0.6, 0.5], [0.8, 0.7, 0.6, 0.5, 0.4])
    assert replace(one, seeds=alike, p_corrected=None).verdict == "no difference shown"


def test_only_systems_on_the_same_data_are_compared(tmp_path: Path) -> None:
    runs, tasks = [], ["digits", "digits, 40 % flipped", "leaves"]
    for task, (data, noise) in zip(tasks, (("digits", 0.0), ("digits", 0.4), ("some/where/leaves", 0.0)), strict=True):
        for method in ("ric", "supervised"):
            runs += write_system(tmp_path / task, method, seeds=2, data=data, label_noise=noise)
    found = compare(groups_of(*runs), reference="SL")
    assert [system.first.data_label for system in found.systems][::2] == tasks
    named = {(c.system.first.data_label, c.reference.first.data_label) for c in found.contrasts}
    assert named == {(task, task) for task in tasks}
    assert {c.reference.first.method for c in found.contrasts} == {"SL"}
    assert len(found.contrasts) == 12


def test_a_single_system_needs_no_predictions_and_a_missing_number_is_no_zero(tmp_path: Path) -> None:
    runs = write_system(tmp_path, "ric", seeds=2)
    for run in runs:
        (run / "predictions.npz").unlink()
    found = compare(groups_of(*runs))
    assert (found.contrasts, found.note) == ((), "")
    rewrite(runs[0] / "evaluation.json", lambda evaluation: evaluation["test"].update(mean_steps=None))
    assert np.isnan(interval_of(*groups_of(*runs), STEPS).mean)


def test_a_repeated_seed_is_no_further_seed(tmp_path: Path) -> None:
    runs = [*write_system(tmp_path, "ric", seeds=2), write_run(tmp_path / "again", "ric", 1)]
    found = compare(groups_of(*runs, *write_system(tmp_path, "supervised", seeds=2)))
    assert {contrast.seeds.n for contrast in found.contrasts} == {2}
    assert interval_of(found.systems[0], ACCURACY).n == 2


def test_the_note_says_why_runs_cannot_be_paired(root: Path, tmp_path: Path) -> None:
    """Other seeds, other test examples, predictions of another run. The means are shown nevertheless."""

    def check(groups: list[RunGroup], *said: str) -> None:
        found = compare(groups)
        assert (found.systems, found.contrasts) == (tuple(groups), ())
        assert all(words in found.note for words in ("Differences are not tested. ", *said))

    uneven = [*read(root, "ric", seeds=3), *read(root, "supervised", seeds=2)]
    check(uneven, "SL (seeds 0 and 1", "supervised-0", "RIC (seeds 0, 1 and 2")
    elsewhere = groups_of(*write_system(tmp_path, "supervised", seeds=2, draw=1))
    check([*read(root, "ric", seeds=2), *elsewhere], "supervised-0", "ric-0", "examples")
    (tmp_path / "supervised-0" / "predictions.npz").write_bytes((root / "ric-0" / "predictions.npz").read_bytes())
    check([*read(root, "ric", seeds=2), *elsewhere], "supervised-0/predictions.npz", "NLL")
