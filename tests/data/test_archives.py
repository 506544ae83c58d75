import io
import tarfile
from pathlib import Path

import pytest

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
