import gzip
import io
import tarfile
from pathlib import Path

import pytest

from ricnet.data import archives
from ricnet.data.archives import unpack
from ricnet.errors import RicnetError


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as files:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))
    return path


def only_the_archive_is_left(path: Path) -> bool:
    return list(path.parent.iterdir()) == [path]


def test_a_folder_is_unpacked_beside_its_archive(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "set.tgz", {"set/a/1.txt": b"one"})
    assert unpack(archive, "set") == tmp_path / "set"
    assert (tmp_path / "set/a/1.txt").read_bytes() == b"one"
    assert {path.name for path in tmp_path.iterdir()} == {"set.tgz", "set"}


def test_an_unpacked_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert unpack(tmp_path / "absent.tgz", "set") == tmp_path / "set"


def test_a_cut_off_archive_leaves_nothing_half_done(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "set.tgz", {f"set/{i}": bytes(range(256)) * 50 for i in range(20)})
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(RicnetError, match=r"set\.tgz could not be unpacked"):
        unpack(archive, "set")
    assert only_the_archive_is_left(archive)


def test_an_archive_that_writes_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    archive = write_tar(folder / "set.tgz", {"../../escaped.txt": b"!"})
    with pytest.raises(RicnetError, match=r"set\.tgz would write outside"):
        unpack(archive, "set")
    assert not list(tmp_path.rglob("escaped.txt"))
    assert only_the_archive_is_left(archive)


def test_another_archive_is_named(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "set.tgz", {"other/1.txt": b"one"})
    with pytest.raises(RicnetError, match="does not contain the folder set"):
        unpack(archive, "set")
    assert only_the_archive_is_left(archive)


def test_no_archive_at_all(tmp_path: Path) -> None:
    path = tmp_path / "set.tgz"
    path.write_text("<html>not found</html>")
    with pytest.raises(RicnetError, match=r"set\.tgz"):
        unpack(path, "set")


def write_members(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as files:
        for member in members:
            files.addfile(member, io.BytesIO(bytes(max(member.size, 0))) if member.isreg() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, target, size
    return found


@pytest.mark.parametrize(
    "members",
    [
        [member("set", tarfile.SYMTYPE, "..")],
        [member("set/here", tarfile.SYMTYPE, "there"), member("set/there")],
        [member("set/here", tarfile.LNKTYPE, "../secret.txt")],
        [member("set/pipe", tarfile.FIFOTYPE)],
        [member("set/device", tarfile.CHRTYPE)],
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "secret.txt").write_text("untouched")
    folder = tmp_path / "inner"
    folder.mkdir()
    archive = write_members(folder / "set.tgz", *members)
    with pytest.raises(RicnetError, match="neither a file nor a folder"):
        unpack(archive, "set")
    assert (tmp_path / "secret.txt").read_text() == "untouched"
    assert only_the_archive_is_left(archive)


def test_an_absolute_path_stays_inside(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "set.tgz", {f"{tmp_path}/absolute.txt": b"!", "set/1": b""})
    unpack(archive, "set")
    assert not (tmp_path / "absolute.txt").exists()


def test_archives_that_grow_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_members(tmp_path / "set.tgz", *(member(f"set/{i}", size=1 << 20) for i in range(3)))
    assert archive.stat().st_size < 10_000
    monkeypatch.setattr(archives, "LARGEST", 2 << 20)
    with pytest.raises(RicnetError, match=r"holds more than 0\.0 GB"):
        unpack(archive, "set")
    assert only_the_archive_is_left(archive)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 1)
    with pytest.raises(RicnetError, match="holds more than 1 files"):
        unpack(archive, "set")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_are_not_read_whole_where_they_claim_to_be_huge(tmp_path: Path, kind: bytes) -> None:
    head = member("set/1", kind, size=1 << 32).tobuf(tarfile.GNU_FORMAT)
    with gzip.open(tmp_path / "set.tgz", "wb") as file:
        file.write(head + bytes(1 << 20))
    with pytest.raises(RicnetError, match="a header of 4,294,967,296 bytes"):
        unpack(tmp_path / "set.tgz", "set")


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    sparse = member("set/1")
    sparse.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0"}
    sparse.pax_headers |= {"GNU.sparse.size": str(1 << 50), "GNU.sparse.name": "set/1"}
    with tarfile.open(tmp_path / "set.tgz", "w:gz", format=tarfile.PAX_FORMAT) as files:
        files.addfile(sparse)
    with pytest.raises(RicnetError, match="neither a file nor a folder"):
        unpack(tmp_path / "set.tgz", "set")


def test_a_negative_size_does_not_go_round_in_circles(tmp_path: Path) -> None:
    head = bytearray(member("set/1").tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 10 + b"\xfe\x00"  # base 256: -512
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    with gzip.open(tmp_path / "set.tgz", "wb") as file:
        file.write(bytes(head) + bytes(1024))
    with pytest.raises(RicnetError, match=r"set\.tgz"):
        unpack(tmp_path / "set.tgz", "set")


def test_only_gzip_is_opened(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tgz", "w:xz") as files:
        files.addfile(member("set/1"))
    with pytest.raises(RicnetError, match=r"set\.tgz could not be unpacked"):
        unpack(tmp_path / "set.tgz", "set")
