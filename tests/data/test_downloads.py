from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ricnet.data.downloads import fetch
from ricnet.errors import RicnetError

from .samples import CONTENT, REFUSED, Host, published


def test_a_good_file_arrives_whole_and_tells_of_its_progress(tmp_path: Path, host: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(published(f"{host}/good"), tmp_path / "new", lambda *told: seen.append(told))
    assert path == tmp_path / "new" / "set.bin"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [child.name for child in path.parent.iterdir() if child.suffix != ".lock"] == ["set.bin"]


def test_who_comes_second_waits_and_takes_what_the_first_has_fetched(tmp_path: Path, host: str) -> None:
    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(lambda _: fetch(published(f"{host}/good"), tmp_path), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert Host.ranges == [None]


def test_the_next_mirror_is_tried(tmp_path: Path, host: str) -> None:
    file = published(REFUSED, f"{host}/absent", f"{host}/wrong", f"{host}/good")
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path: Path, host: str) -> None:
    with pytest.raises(RicnetError, match=f"ended after {len(CONTENT) // 2} of {len(CONTENT)} bytes"):
        fetch(published(f"{host}/breaks"), tmp_path)
    assert not (tmp_path / "set.bin").exists()
    assert fetch(published(f"{host}/good"), tmp_path).read_bytes() == CONTENT
    assert Host.ranges == [None, f"bytes={len(CONTENT) // 2}-"]


@pytest.mark.parametrize(("path", "kept"), [("good", b"x" * len(CONTENT)), ("deaf", CONTENT[:100])])
def test_a_partial_file_that_does_not_help_is_dropped(tmp_path: Path, host: str, path: str, kept: bytes) -> None:
    (tmp_path / ".set.bin.part").write_bytes(kept)
    assert fetch(published(f"{host}/{path}"), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, host: str) -> None:
    with pytest.raises(RicnetError, match="wrong checksum"):
        fetch(published(f"{host}/wrong"), tmp_path)
    assert not [child for child in tmp_path.iterdir() if child.suffix != ".lock"]


def test_when_nobody_answers_the_way_by_hand_is_said(tmp_path: Path) -> None:
    with pytest.raises(RicnetError) as caught:
        fetch(published(REFUSED), tmp_path)
    message = str(caught.value)
    assert "set.bin could not be fetched (127.0.0.1: " in message
    assert REFUSED in message
    assert f"put it into {tmp_path}" in message


def test_a_file_where_the_folder_belongs_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RicnetError, match="taken"):
        fetch(published(REFUSED), tmp_path / "taken")
