from dataclasses import dataclass
from typing import ClassVar

import pytest

from ricnet.methods import METHODS, Supervised, register_method
from ricnet.training.config import from_json, to_json
from ricnet.training.presets import TYPICAL, preset


def test_a_method_from_outside_is_found_by_its_name_and_survives_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Supervised):
        name: ClassVar[str] = "mine"
        depth: int = 3

    monkeypatch.setitem(METHODS, "mine", METHODS["ric"])  # so that it is forgotten afterwards
    assert register_method(Mine) is Mine
    config = preset("fast", "mine", TYPICAL)
    assert config.method == Mine(depth=3)
    assert from_json(to_json(config), "config.json") == config
