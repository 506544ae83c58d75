import errno
import os
from pathlib import Path

import pytest

from ricnet.training.run import Unwritable, draft_of, read_json, write_atomically


def put(text: str, path: Path, keep: Path | None = None) -> None:
    write_atomically(path, lambda draft: draft.write_text(text) and None, keep)


def test_the_file_is_flushed_before_it_takes_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        seen.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        seen.append(f"{Path(source).name} → {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    put("one", tmp_path / "a")
    assert seen == ["file", ".a.draft → a", "folder"]
    seen.clear()
    put("two", tmp_path / "a", keep=tmp_path / "b")
    assert seen == ["file", "a → b", ".a.draft → a", "folder"]
    assert [(tmp_path / name).read_text() for name in "ab"] == ["two", "one"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_cannot_be_written_is_one_sentence_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "a"
    put("old", path)

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(Unwritable, match=rf"/a could not be written \({os.strerror(code)}\); free space or choose"):
            put("new", path)
    assert path.read_text() == "old"
    assert not draft_of(path).exists()


def test_a_folder_that_is_gone_and_one_that_cannot_be_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unwritable, match=r"No such file or directory"):
        put("new", tmp_path / "gone" / "a")
    fsync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(errno.EINVAL, "Invalid argument")  # as some network file systems do
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    (tmp_path / "a.json").write_text("{}")
    put('{"new": 1}', tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == {"new": 1}
