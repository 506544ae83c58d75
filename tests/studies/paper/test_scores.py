from dataclasses import replace
from pathlib import Path

from ricnet.studies.paper.scores import SCORES

from .conftest import record


def test_every_score_is_of_the_split_that_it_names(tmp_path: Path) -> None:
    splits = {
        name: {"accuracy": place, "nll": 10 + place, "ece": 20 + place, "ece_signed": 30 + place, "mean_steps": 40}
        for place, name in enumerate(("train", "val", "test"))
    }
    run = replace(record(tmp_path), evaluation=splits)
    assert {name: score.of(run) for name, score in SCORES.items()} == {
        **{"train accuracy": 0, "val accuracy": 1, "test accuracy": 2},
        **{"val nll": 11, "test nll": 12, "test ece": 22, "test ece signed": 32, "mean steps": 40},
    }


def test_shares_are_written_in_percent() -> None:
    assert SCORES["test accuracy"].write(0.9123, 0.001) == "91.23 ± 0.10"
    assert SCORES["test ece"].write(0.0123) == "0.012"
