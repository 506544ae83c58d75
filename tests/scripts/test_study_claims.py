"""scripts/study_claims.py: settings and names of the missing runs, which the tables of docs/evidence.md must find."""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import study_claims as study
import write_evidence
from queued import train_here, write_data
from ricnet.data import Dataset, Split
from ricnet.models.config import Config, from_json
from study_claims import PARTS, System, configuration
from write_evidence import NOT_RUN, RESULTS

CPU = torch.device("cpu")
SYSTEMS = [system for part in PARTS.values() for system in part]


def configured(name: str) -> Config:
    """Settings of the first system with this name, for images of the right number but a small size."""
    system = next(system for system in SYSTEMS if system.name == name)
    parts = [
        Split(torch.zeros(1, 3, 16, 16, dtype=torch.uint8).expand(rows, -1, -1, -1), torch.arange(rows) % 10)
        for rows in (8_123, 10, 10)
    ]
    return configuration(system, system.data, Dataset("images", *parts, tuple("abcdefghij")), CPU)


def archived(name: str) -> Config:
    path = RESULTS / f"{name}.json"
    return from_json(json.loads(path.read_text(encoding="utf-8"))["config"], str(path))


@pytest.mark.parametrize(
    ("name", "reference", "epochs", "changes"),
    [
        ("ric", "imagewoof-resnet34-paper/supervised-300-seed0", 2000, {}),
        ("supervised-2000", "imagewoof-resnet34-paper/supervised-300-seed0", 2000, {}),
        ("act", "imagewoof-half-resnet18-paper/supervised-300-seed1", 300, {}),
        ("pondernet", "imagewoof-half-resnet18-paper/supervised-300-seed1", 300, {}),
        ("ric-ppo", "imagewoof-half-resnet18-paper/ric-seed1", 2000, {"objective": "ppo"}),
        ("ric-logistic-normal", "imagewoof-half-resnet18-paper/ric-seed1", 2000, {"head": "logistic-normal"}),
        ("ric-sampled-feedback", "imagewoof-half-resnet18-paper/ric-seed1", 2000, {"feedback": "sample"}),
        ("supervised-cap-2000", "imagewoof-half-resnet18-paper/supervised-2000-seed1", 2000, {"uniform_mix": 0.0099}),
        ("anytime-matched", "imagewoof-half-resnet18-paper/ric-seed1", 2000, {}),
        ("ric-1-pass", "imagewoof-half-resnet18-paper/ric-seed1", 2000, {"passes_per_snapshot": 1}),
        ("ric-20-passes", "imagewoof-half-resnet18-paper/ric-seed1", 2000, {"passes_per_snapshot": 20}),
        ("ric-4000", "cifar10-half-resnet18-paper/ric-seed0", 4000, {}),
    ],
)
def test_settings_are_those_of_the_archived_runs(
    name: str, reference: str, epochs: int, changes: dict[str, object]
) -> None:
    found, base = configured(name), archived(reference)
    expected = replace(base, seed=0, optimization=replace(base.optimization, epochs=epochs))
    if found.method.name == base.method.name:
        expected = replace(expected, method=replace(base.method, **changes))
    assert replace(found, data=expected.data) == replace(expected, method=found.method)
    assert found.method == expected.method or found.method.name != base.method.name


def test_other_settings() -> None:
    coupled, matched = configured("supervised-coupled"), configured("anytime-matched").method
    assert (coupled.optimization.optimizer, coupled.optimization.epochs, coupled.network.encoder) == (
        *("adam", 300),
        "resnet34",
    )
    ric = archived("imagewoof-half-resnet18-paper/ric-seed1").method
    assert all(getattr(matched, name) == getattr(ric, name) for name in ("gamma", "gae_lambda", "horizon"))
    assert (matched.step_weight, matched.value_coef) == (ric.step_weight, ric.value_coef)
    assert matched.uniform_mix == pytest.approx(10 * ric.alpha_floor / (ric.c_max + 10 * ric.alpha_floor), abs=1e-5)


def test_the_claims_find_the_runs(tmp_path: Path) -> None:
    link_results(tmp_path)
    pretend(tmp_path, [system.files(seed) for system in SYSTEMS for seed in system.seeds])
    cells = {claim: ours for claim, ours, _ in write_evidence.rows(tmp_path)}
    assert [claim for claim, ours in cells.items() if NOT_RUN in ours] == []
    accuracy = next(ours for claim, ours in cells.items() if claim.startswith("Accuracy above SL's, ImageWoof"))
    assert "against SL 2000 with ResNet-34" in accuracy


def test_a_stopped_run_is_shown_but_decides_nothing(tmp_path: Path) -> None:
    folder = "svhn-half-resnet18-paper"
    names = [f"{folder}/{name}-seed{seed}" for name in ("ric-stopped", "supervised") for seed in range(3)]
    pretend(tmp_path, names)
    column = write_evidence.ALGORITHM_1["SVHN"]
    cell = write_evidence.difference(tmp_path, write_evidence.ECE, -1, column)
    assert cell.startswith("**undecided** (RIC was stopped early): −0.")
    assert "SL 300, RIC stopped at epoch 2000 (" in cell
    assert cell.endswith(f"`{folder}/ric-stopped-seed[0-2]`")
    pretend(tmp_path, [f"{folder}/ric-seed0"])
    assert "stopped" not in write_evidence.difference(tmp_path, write_evidence.ECE, -1, column)


def link_results(to: Path) -> None:
    """The archives in results/, in folders to which files can be added."""
    for path in RESULTS.glob("*/*"):
        (to / path.parent.name).mkdir(exist_ok=True)
        (to / path.parent.name / path.name).symlink_to(path)


def pretend(results: Path, names: Iterable[str]) -> None:
    """Link archived runs of ImageWoof under these names, so that each is read once."""
    for name in names:
        source = "ric" if "/ric" in name else "supervised-300"
        path = results / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(RESULTS / "imagewoof-half-resnet18-paper" / f"{source}-seed{name[-1]}.json")


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a trial with a tiny network, and one seed of RIC and of ACT."""
    train_here(monkeypatch)
    tiny = {"encoder": "conv", "width": 0.25}
    monkeypatch.setattr(study, "NETWORKS", dict.fromkeys(study.NETWORKS, tiny))
    chosen = [SYSTEMS[0], *(each for each in SYSTEMS if each.name == "act")]
    monkeypatch.setitem(PARTS, "rivals", chosen)
    places = ["--runs", str(tmp_path / "runs"), "--to", str(tmp_path / "to"), "--device", "cpu"]
    return ["study", "rivals", "--seeds", "1", "--data", write_data(tmp_path / "data.npz"), *places]


def test_a_trial_from_data_to_table(
    trial: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*trial, "--epochs", "1"])
    study.main()
    printed = capsys.readouterr().out
    assert "0 failed, 0 left" in printed
    assert "| `imagewoof-half-resnet18-paper/act-stopped-seed*` | 1 of 3 | 1 |" in printed
    archives = sorted(str(path.relative_to(tmp_path / "to")) for path in tmp_path.glob("to/*/*"))
    names = ["imagewoof-half-resnet18-paper/act-stopped-seed0", "imagewoof-resnet34-paper/ric-stopped-seed0"]
    assert archives == sorted(f"{name}{end}.json" for name in names for end in ("", "-temperature"))
    monkeypatch.setattr(sys, "argv", [*trial, "--epochs", "2"])
    with pytest.raises(SystemExit, match="other settings"):
        study.main()


def test_nothing_is_archived_that_was_not_begun(
    trial: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*trial, "--deadline", "0", "--stop"])
    study.main()
    assert "| `imagewoof-resnet34-paper/ric-seed*` | 0 of 1 |" in capsys.readouterr().out
    assert not list(tmp_path.glob("to/*/*"))


@pytest.mark.parametrize(
    "arguments", [["rival"], ["--epochs", "1", "--stop"], ["decay", "--data", "digits"], ["--epochs", "many"]]
)
def test_wrong_arguments_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", *arguments])
    with pytest.raises(SystemExit) as refused:
        study.main()
    assert refused.value.code == 2


def test_names_are_unique() -> None:
    names = [system.files(seed) for system in SYSTEMS for seed in system.seeds]
    assert len(set(names)) == len(names)
    assert System("ric", "ric", data="svhn").files(2) == "svhn-half-resnet18-paper/ric-seed2"
