import json
from dataclasses import replace

import pytest

from refusals import refusal
from ricnet.methods import METHODS
from ricnet.models.config import Config, from_json, to_json
from ricnet.training.recipes import TYPICAL, preset


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("name", ["fast", "paper"])
def test_a_configuration_is_the_same_after_json(name: str, method: str) -> None:
    config = replace(preset(name, method, TYPICAL), seed=7, resolution=64)
    assert from_json(json.loads(json.dumps(to_json(config))), "config.json") == config


def test_an_int_is_accepted_for_a_float() -> None:
    entry = to_json(preset("fast", "ric", TYPICAL))
    entry["optimization"] |= {"warmup_epochs": 3, "clip": 1, "patience": 5}
    settings = from_json(entry, "config.json").optimization
    assert [type(value) for value in (settings.warmup_epochs, settings.clip, settings.patience)] == [float, float, int]


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("network encoder", 3, "encoder"),
        ("optimization lr", "high", "lr"),
        ("optimization optimizer", "lion", "optimizer"),
        ("method rollouts", 1.5, "rollouts"),
        ("method spell", 1, "'spell'"),
        ("method name", "__import__", "method"),
        ("seed", True, "seed"),
    ],
)
def test_wrong_values_are_refused_with_the_name_of_the_setting(place: str, value: object, named: str) -> None:
    entry = to_json(Config())
    *path, key = place.split()
    (entry[path[0]] if path else entry)[key] = value
    with refusal("runs/x/config.json", named, "" if key == "spell" else value):
        from_json(entry, "runs/x/config.json")


@pytest.mark.parametrize("entry", [None, [], "config", {}, {"method": "ric"}])
def test_json_that_is_not_a_configuration_is_refused(entry: object) -> None:
    with refusal("config.json"):
        from_json(entry, "config.json")
