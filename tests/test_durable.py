import os
from pathlib import Path

import pytest

from ricnet.durable import take_name


def test_the_disk_holds_the_file_before_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, path = tmp_path / "draft", tmp_path / "a"
    seen: list[str] = []
    fsync, rename = os.fsync, os.replace

    def note(descriptor: int) -> None:
        seen.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", lambda *names: seen.append("name") or rename(*names))
    draft.write_text("one")
    take_name(draft, path)
    assert seen == ["file", "name", "folder"]
    assert path.read_text() == "one"
    draft.write_text("two")
    take_name(draft, path, keep=tmp_path / "b")
    assert (path.read_text(), (tmp_path / "b").read_text(), draft.exists()) == ("two", "one", False)
