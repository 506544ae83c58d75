"""scripts/study_texts.py: the corpora are drawn as it says, and the table is what the files give."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "study_texts.py"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def run(nll: float, accuracy: float = 0.5) -> dict[str, float]:
    return {"accuracy": accuracy, "nll": nll, "ece": 0.1, "seconds": 2.0}


def test_seeds_draw_other_texts_and_a_tenth_is_for_validation(tool: dict[str, Any]) -> None:
    rows = [(f"text number {i} about {label}", label) for i in range(200) for label in ("tea", "rum")]
    first, again, other = (tool["drawn"](rows, [], seed) for seed in (0, 0, 1))
    assert [len(split) for split in (first.train, first.val, first.test)] == [288, 32, 80]
    assert first.train.texts == again.train.texts != other.train.texts
    assert not {*first.train.texts} & {*first.test.texts}


def test_differences_from_logistic_regression_are_paired_by_seed(tool: dict[str, Any]) -> None:
    """0.2 and 0.4 less: mean 0.3, standard error 0.1, Student-t quantile 12.706."""
    models = {tool["REFERENCE"]: {"0": run(1.0), "1": run(2.0)}, "SL": {"0": run(0.8), "1": run(1.6), "2": run(9.0)}}
    entry = {"corpora": {"subj": {"texts": 3600, "classes": 2}}, "runs": {"subj": models}, "made_with": "ricnet"}
    lines = tool["table"](entry).splitlines()
    assert lines[2].startswith("| subj, sentences | 3,600, 2 | TF-IDF, logistic regression | 2 | 50.00 ± 0.00 | 1.500")
    assert lines[2].endswith("|  |")
    assert lines[3].endswith("| −0.300 ± 1.271 |")
    assert len(lines) == 6


def test_the_tutorial_shows_what_the_file_gives(tool: dict[str, Any]) -> None:
    entry = json.loads(tool["RESULTS"].read_text(encoding="utf-8"))
    assert tool["table"](entry) in tool["TEXT"].read_text(encoding="utf-8")
