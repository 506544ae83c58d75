from pathlib import Path

import pytest
import torch

import inference
import ricnet


def test_answers_are_timed_whole_and_without_their_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCHES": (1, 4), "SINGLES": 4, "TURNS": 1}.items():
        monkeypatch.setattr(inference, name, value)
    classifier = ricnet.train("digits", epochs=1, width=0.1, horizon=3, device="cpu", out=tmp_path / "run")
    images = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8)
    rows = inference.measure(classifier, images, torch.device("cpu"))
    assert [(row["what"], row["batch"]) for row in rows] == [
        *(("answer", 1), ("refining", 1)),
        *(("answer", 4), ("refining", 4)),
    ]
    assert all(1 <= row["cells"] <= 3 and row["halted ms"] > 0 for row in rows)
