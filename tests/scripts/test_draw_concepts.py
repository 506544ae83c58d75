"""The pictures of docs/concepts.md, from a run."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ricnet
from refusals import refusal
from ricnet.report.runs import read_run


@pytest.fixture
def tool() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "draw_concepts.py"))


def test_every_picture_of_the_page_is_drawn(digits_run: Path, tool: dict[str, Any], tmp_path: Path) -> None:
    drawn = tool["draw_all"](str(digits_run), tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text(encoding="utf-8")
    assert all(f"](images/{path.name})" in page and path.stat().st_size > 5000 for path in drawn)
    assert page.count("](images/concepts-") == len(drawn)


def test_readouts_are_of_the_same_weights(digits_run: Path, tool: dict[str, Any]) -> None:
    model, examples = ricnet.load(digits_run), read_run(digits_run).examples
    assert examples is not None
    mean = tool["belief_in_truth"](model, examples, "mean")
    stored = np.exp(examples.log_beliefs[:, np.arange(len(examples.labels)), examples.labels]).mean(axis=1)
    np.testing.assert_allclose(mean, stored, rtol=1e-4)
    assert not np.allclose(mean, tool["belief_in_truth"](model, examples, "implied"), rtol=1e-3)


def test_a_run_of_another_method_is_refused(digits_run: Path, tool: dict[str, Any], tmp_path: Path) -> None:
    ricnet.train("digits", method="supervised", epochs=1, width=0.1, out=tmp_path / "sl", device="cpu")
    with refusal(tmp_path / "sl"):
        tool["draw_all"](str(tmp_path / "sl"), tmp_path)
