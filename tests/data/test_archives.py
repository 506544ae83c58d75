import gzip
import io
import tarfile
from pathlib import Path

import pytest

from refusals import refusal
from ricnet.data import registry
from ricnet.data.registry import unpack


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, target, size
    return found


def tar(*members: tarfile.TarInfo, mode: str = "w:gz", content: bytes = b"") -> bytes:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode=mode) as files:
            for each in members:
                files.addfile(each, io.BytesIO(content or bytes(each.size)) if each.isreg() else None)
        return file.getvalue()


def sparse() -> tarfile.TarInfo:
    found = member("set/1")
    found.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0"}
    found.pax_headers |= {"GNU.sparse.size": str(1 << 50), "GNU.sparse.name": "set/1"}
    return found


def negative_size() -> bytes:
    head = bytearray(member("set/1").tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 10 + b"\xfe\x00"  # base 256: -512
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return gzip.compress(bytes(head) + bytes(1024))


def huge_header(kind: bytes) -> bytes:
    return gzip.compress(member("set/1", kind, size=1 << 32).tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))


REFUSED = {
    "cut off": (
        tar(*(member(f"set/{i}", size=12800) for i in range(20)), content=bytes(range(256)) * 50)[:-200],
        "unpacked",
    ),
    "no archive": (b"<html>not found</html>", "unpacked"),
    "another compression": (tar(member("set/1"), mode="w:xz"), "unpacked"),
    "another folder": (tar(member("other/1.txt")), "the folder set"),
    "a path outside": (tar(member("../../escaped.txt")), "outside"),
    "a link to a folder": (tar(member("set", tarfile.SYMTYPE, "..")), "neither"),
    "a link within": (tar(member("set/here", tarfile.SYMTYPE, "there"), member("set/there")), "neither"),
    "a hard link": (tar(member("set/here", tarfile.LNKTYPE, "../secret.txt")), "neither"),
    "a pipe": (tar(member("set/pipe", tarfile.FIFOTYPE)), "neither"),
    "a device": (tar(member("set/device", tarfile.CHRTYPE)), "neither"),
    "a sparse file": (tar(sparse()), "neither"),
    "a negative size": (negative_size(), "set.tgz"),
    "a huge header": (huge_header(tarfile.XHDTYPE), "4,294,967,296"),
    "a huge global header": (huge_header(tarfile.XGLTYPE), "4,294,967,296"),
    "a huge name": (huge_header(tarfile.GNUTYPE_LONGNAME), "4,294,967,296"),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "secret.txt").write_text("untouched")
    (tmp_path / "inner").mkdir()
    archive = tmp_path / "inner" / "set.tgz"
    archive.write_bytes(content)
    with refusal("set.tgz", reason):
        unpack(archive, "set")
    assert sorted(tmp_path.rglob("*")) == [archive.parent, archive, tmp_path / "secret.txt"]
    assert (tmp_path / "secret.txt").read_text() == "untouched"


def test_a_folder_is_unpacked_beside_its_archive_once_and_absolute_paths_stay_inside(tmp_path: Path) -> None:
    names = (member("set/a/1.txt", size=3), member(f"{tmp_path}/absolute.txt", size=3))
    (tmp_path / "set.tgz").write_bytes(tar(*names, content=b"one"))
    for _ in range(2):
        assert unpack(tmp_path / "set.tgz", "set") == tmp_path / "set"
        assert (tmp_path / "set/a/1.txt").read_bytes() == b"one"
        assert {path.name for path in tmp_path.iterdir()} <= {"set.tgz", "set"}
        (tmp_path / "set.tgz").unlink(missing_ok=True)


def test_archives_that_grow_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set.tgz").write_bytes(tar(*(member(f"set/{i}", size=1 << 20) for i in range(3))))
    assert (tmp_path / "set.tgz").stat().st_size < 10_000
    for limit, value, reason in (("LARGEST", 2 << 20, "0.0 GB"), ("MOST_MEMBERS", 1, "1 files")):
        with monkeypatch.context() as patch, refusal("set.tgz", reason):
            patch.setattr(registry, limit, value)
            unpack(tmp_path / "set.tgz", "set")
        assert [path.name for path in tmp_path.iterdir()] == ["set.tgz"]
