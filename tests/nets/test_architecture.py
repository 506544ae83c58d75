from pathlib import Path
from typing import Any

import pytest

from refusals import refusal
from ricnet.nets.architecture import architecture_from_json
from ricnet.nets.pretrained import read_hf


@pytest.mark.parametrize(
    "change", [{"library": "mine"}, {"size": [1 << 20, 4]}, {"mean": ["x"]}, {"network": 3}, {"more": 1}]
)
def test_an_architecture_from_a_file_is_checked(resnet: Path, change: dict[str, Any]) -> None:
    entry = read_hf(resnet).architecture.to_json()
    with refusal("config.json", "encoder"):
        architecture_from_json(entry | change, "config.json")
