from dataclasses import replace

import numpy as np
import pytest
import torch

import ricnet
from refusals import refusal
from ricnet.data import Dataset, Split
from ricnet.report.runs import RunRecord, read_run
from ricnet.report.statistics import Interval, mean_interval
from ricnet_paper.theory import premise


def clouds(rows: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    return Split(2 * torch.eye(4)[:3][labels] + torch.randn(rows, 4, generator=generator), labels)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset("clouds", clouds(96, 0), clouds(30, 1), clouds(60, 2), ("a", "b", "c"))


@pytest.fixture(scope="module")
def runs(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunRecord]]:
    folder = tmp_path_factory.mktemp("runs")
    small = {"epochs": 3, "width": 0.05}
    for seed in (0, 1):
        ricnet.train(dataset, out=folder / f"ric{seed}", seed=seed, horizon=4, **small)
    ricnet.train(dataset, method="supervised", out=folder / "sl", **small)
    names = {"ric": ("ric0", "ric1"), "sl": ("sl",)}
    return {method: [read_run(folder / name) for name in folders] for method, folders in names.items()}


@pytest.fixture(autouse=True)
def _data_at_hand(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(premise, "dataset_of", lambda config, data_dir: dataset)


def test_reports_every_step_and_epoch(runs: dict[str, list[RunRecord]]) -> None:
    finding = premise.examine(runs["ric"], runs["sl"])
    errors = [row for row in finding.rows if row["quantity"] == "probe error, train"]
    assert [(row["seed"], row["step"]) for row in errors] == [(seed, t) for seed in (0, 1) for t in (1, 2, 3, 4)]
    gap = np.mean([row["value"] for row in errors if row["step"] == 1]) - np.mean(
        [row["value"] for row in errors if row["step"] == 4]
    )
    half = mean_interval([errors[i]["value"] - errors[i + 3]["value"] for i in (0, 4)]).half_width
    assert half is not None
    assert finding.passed == (gap - half > 0)
    assert f"difference {100 * gap:+.2f} points" in finding.statement
    norms = [row for row in finding.rows if row["quantity"] == "classifier_norm" and row["system"] == "SL"]
    assert [row["value"] for row in norms] == [entry["train"]["classifier_norm"] for entry in runs["sl"][0].metrics]


@pytest.mark.parametrize(
    ("seeds", "passed", "words"),
    [
        ([[0.2, 0.1, 0.0, 0.0]] * 2, True, "Shown on training rows."),
        (
            [[0.2, 0.1, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]],
            False,
            "Not shown: on training rows the probe of the first step",
        ),
        ([[0.0] * 4] * 2, False, "Not shown: training thoughts are separable at every step."),
        ([[0.0, 0.0, 0.0, 0.1]] * 2, False, "Not shown: on training rows the probe of the first step"),
        ([[0.2, 0.1, 0.0, 0.0]], True, "by one seed, without an interval"),
        ([[0.1, 0.1, 0.0, 0.1]], False, "Not shown: on training rows the probe of the first step does not err more."),
    ],
)
def test_passes_just_where_the_first_probe_errs_more_than_seeds_vary(
    runs: dict[str, list[RunRecord]],
    monkeypatch: pytest.MonkeyPatch,
    seeds: list[list[float]],
    passed: bool,
    words: str,
) -> None:
    left = iter([error for seed in seeds for error in seed])
    monkeypatch.setattr(premise, "probe", lambda *_: (next(left), 0.5))
    finding = premise.examine(runs["ric"][: len(seeds)], [])
    assert finding.passed == passed
    assert words in finding.statement


def test_the_interval_must_lie_above_0() -> None:
    assert premise.is_shown(Interval(0.1, 0.09, 3))
    assert not premise.is_shown(Interval(0.1, 0.1, 3))
    assert not premise.is_shown(Interval(-0.1, 0.05, 3))
    assert premise.is_shown(Interval(0.01, None, 1))


def test_the_device_is_the_one_asked_for(runs: dict[str, list[RunRecord]], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(premise, "pick_device", lambda device: asked.append(device) or torch.device("cpu"))
    premise.examine(runs["ric"][:1], [], None, "cpu")
    premise.examine(runs["ric"][:1], [])
    assert asked == ["cpu", "auto"]


def test_thoughts_are_those_of_inference(runs: dict[str, list[RunRecord]], dataset: Dataset) -> None:
    """Step by step, by hand: the mean belief is fed back, whatever the run reports."""
    classifier = ricnet.load(runs["ric"][0].path)
    method, model = classifier.config.method, classifier.model
    found = premise.think(replace(method, readout="implied"), model, dataset.test)
    with torch.no_grad():
        context = model.refiner.read(model.backbone(dataset.test.inputs))
        thought, belief = torch.zeros(60, model.refiner.size), torch.full((60, 3), 1 / 3)
        for step in range(4):
            thought = model.refiner.think(context, thought, belief)
            np.testing.assert_allclose(found[step], thought, atol=1e-5)
            belief = method.policy(model.refiner.heads(thought)).log_mean().exp()


def test_a_probe_separates_what_is_separable_and_no_more() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    apart = np.eye(3)[labels] + 0.1 * rng.normal(size=(90, 3))
    assert premise.probe(apart, apart, labels, labels) == (0.0, 0.0)
    wrong = (labels + 1) % 3
    assert premise.probe(apart, apart, labels, wrong) == (0.0, 1.0)
    noise = rng.normal(size=(90, 3))
    assert premise.probe(noise, noise, labels, labels)[0] > 0.3


def test_a_large_split_is_thinned_evenly() -> None:
    split = Split(torch.arange(100.0)[:, None], torch.zeros(100, dtype=torch.int64))
    assert premise._at_most(split, 5).inputs.flatten().tolist() == [0, 24, 49, 74, 99]
    assert len(premise._at_most(split, 1000)) == 100


def test_bad_runs_are_named_and_missing_norms_told(runs: dict[str, list[RunRecord]]) -> None:
    for ric, named in (([], "RIC"), (runs["sl"], "sl")):
        with refusal(named):
            premise.examine(ric, [])
    bare = [replace(run, metrics=[{"epoch": 1, "val": {}}]) for run in runs["ric"]]
    assert "contain no ‖W‖" in premise.examine(bare, []).statement
