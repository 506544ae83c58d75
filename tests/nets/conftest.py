from pathlib import Path

import pytest

from nets.checkpoints import save_checkpoint


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint; tests read it and leave it alone."""
    pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")
    return save_checkpoint(tmp_path_factory.mktemp("resnet"))


@pytest.fixture
def copied(resnet: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    for file in resnet.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path
