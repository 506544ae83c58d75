import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import study_parity
from study_parity import SYSTEMS, draw, kept, measure, most_trained, train


def test_the_class_is_whether_the_ones_are_odd() -> None:
    counts = torch.arange(1, 9).repeat(50)
    vectors, labels = draw(counts, 8, torch.Generator().manual_seed(0))
    assert vectors.unique().tolist() == [-1, 0, 1]
    assert torch.equal((vectors != 0).sum(1), counts)
    assert torch.equal(labels, torch.tensor([int(row.count(1)) % 2 for row in vectors.tolist()]))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_is_trained_and_measured_beyond_its_training(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_parity, "SIZE", 8)
    monkeypatch.setattr(study_parity, "TESTED", 5)
    model, course = train(SYSTEMS[system], entries=4, updates=10, seed=0)
    found = measure(SYSTEMS[system], model, entries=4)
    assert len(course) == 10
    assert most_trained(4) == 3
    assert list(found["steps_by_count"]) == ["1", "2", "3", "4"]
    assert len(found["inside_by_step"]) == 2 * study_parity.STEPS
    assert found["beyond"] == found["accuracy_by_count"]["4"]


def test_runs_are_kept_unless_the_task_is_another(tmp_path: Path) -> None:
    path = tmp_path / "parity.json"
    assert kept(Namespace(to=path, entries=4, updates=10)) == []
    path.write_text(json.dumps({"entries": 4, "updates": 10, "runs": [{"system": "SL", "seed": 0}]}))
    assert kept(Namespace(to=path, entries=4, updates=10)) == [{"system": "SL", "seed": 0}]
    with pytest.raises(SystemExit, match="--entries"):
        kept(Namespace(to=path, entries=8, updates=10))
