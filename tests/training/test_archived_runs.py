"""Runs of older versions, in which the method `ric` covered three algorithms.

tests/training/archived holds a run of each old preset and of its settings that are methods or other settings now: three
columns, two classes, a network of a few hundred weights, and what it answered to four rows; `words` is one of texts.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ricnet
from refusals import refusal
from ricnet.io import read_json
from ricnet.methods import METHODS, modern_method
from ricnet.models.config import from_json, to_json
from ricnet.report.names import method_title

ARCHIVED = Path(__file__).parent / "archived"
ROWS = pd.DataFrame({"a": [0.13, 0.1, 1.3, -1.27], "b": [-0.13, -0.54, 0.95, -0.62], "c": [0.64, 0.36, -0.7, 0.04]})
WAS = {
    "fast": ("ric-on-policy", "RIC, on-policy"),
    "on-policy": ("ric-on-policy", "RIC, on-policy"),
    "closed-form": ("ric-closed-form", "RIC, closed form"),
    "snapshots": ("ric", "RIC"),
    "paper": ("ric", "RIC"),
    "fast-marginal": ("ric-on-policy", "RIC, on-policy, marginal credit"),
    "fast-exact-gain": ("ric-closed-form", "RIC, closed form"),
    "fast-exits": ("ric-closed-form", "RIC, closed form"),
    "fast-expected": ("ric-on-policy", "RIC, expected"),
}


@pytest.mark.parametrize("name", WAS)
def test_an_old_run_is_loaded_by_the_name_of_its_algorithm_and_answers_as_before(name: str) -> None:
    model = ricnet.load(ARCHIVED / name, device="cpu")
    assert model.method.name == WAS[name][0]
    assert model.config.preset == ("paper" if name == "paper" else "fast")
    answers = read_json(ARCHIVED / name / "answers.json")
    path = model.refine(ROWS)
    assert path.halt_step.tolist() == answers["halt_step"]
    torch.testing.assert_close(path.final.exp(), torch.tensor(answers["beliefs"]), atol=1e-5, rtol=0)


def test_an_old_run_of_texts_has_the_encoder_it_was_trained_with() -> None:
    """Before `tfidf` was the default, texts were read by `words`."""
    model, answers = ricnet.load(ARCHIVED / "words", device="cpu"), read_json(ARCHIVED / "words" / "answers.json")
    assert model.config.network.encoder == "words"
    with pytest.warns(ricnet.InputWarning, match="1 of 4 texts are empty"):
        found = model.refine(answers["texts"]).final.exp()
    torch.testing.assert_close(found, torch.tensor(answers["beliefs"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", WAS)
def test_the_settings_of_an_old_run_are_kept_as_far_as_they_had_an_effect(name: str) -> None:
    entry = read_json(ARCHIVED / name / "config.json")["config"]
    assert method_title(entry["method"]) == WAS[name][1]
    config = from_json(entry, "config.json")
    assert from_json(to_json(config), "config.json") == config
    modern = to_json(config)["method"]
    assert modern_method(modern) == modern
    assert method_title(modern) == WAS[name][1]
    assert modern.pop("label_smoothing") == 0  # newer than these runs
    assert {key: modern[key] for key in modern if key not in ("name", "objective")} == {
        key: entry["method"][key] for key in modern if key not in ("name", "objective")
    }
    unused = {"updates_per_snapshot", "passes_per_snapshot", "epsilon", "log_ratio_clamp", "objective", "exact_gain"}
    unused |= {"credit", "reward_floor"}  # which the closed form has not
    assert entry["method"].keys() - modern.keys() <= unused


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"updates_per_snapshot": 10, "epsilon": 0.5}, {"name": "ric", "updates_per_snapshot": 10, "epsilon": 0.5}),
        ({"updates_per_snapshot": 1, "epsilon": 0.5, "objective": "ppo"}, {"name": "ric-on-policy"}),
        ({"exact_gain": True, "credit": "joint", "gamma": 0.5}, {"name": "ric-closed-form", "gamma": 0.5}),
        ({"exact_gain": False, "objective": "ppo"}, {"name": "ric", "objective": "ppo"}),
        ({"objective": "expected"}, {"name": "ric-on-policy", "objective": "expected"}),
        ({"rollouts": 1, "label_baseline": True}, {"name": "ric", "rollouts": 1, "label_baseline": False}),
        ({"rollouts": 2, "label_baseline": True}, {"name": "ric", "rollouts": 2, "label_baseline": True}),
        ({"unheard_of": 1}, {"name": "ric", "unheard_of": 1}),
    ],
)
def test_an_old_entry_by_hand(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    assert modern_method({"name": "ric", **settings}) == expected
    assert modern_method({"name": "supervised", **settings}) == {"name": "supervised", **settings}


@pytest.mark.parametrize(("change", "named"), [({"unheard_of": 1}, "unheard_of"), ({"gamma": "high"}, "method.gamma")])
def test_invalid_archived_files_are_refused(change: dict[str, object], named: str) -> None:
    entry = read_json(ARCHIVED / "fast" / "config.json")["config"]
    with refusal("old.json", named):
        from_json(entry | {"method": entry["method"] | change}, "old.json")


def test_every_method_writes_only_settings_that_it_has() -> None:
    for name, kind in METHODS.items():
        entry = json.loads(json.dumps({"name": name, **vars(kind())}))
        assert modern_method(entry) == entry
