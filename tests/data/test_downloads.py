from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refusals import refusal
from ricnet.data.registry import fetch

from .samples import CONTENT, REFUSED, Host, published


def left(folder: Path) -> list[str]:
    return [child.name for child in folder.iterdir() if child.suffix != ".lock"]


def test_a_good_file_arrives_whole_and_tells_of_its_progress(tmp_path: Path, host: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(published(f"{host}/good"), tmp_path / "new", lambda *told: seen.append(told))
    assert (path, path.read_bytes()) == (tmp_path / "new" / "set.bin", CONTENT)
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert left(path.parent) == ["set.bin"]


def test_who_comes_second_waits_and_takes_what_the_first_has_fetched(tmp_path: Path, host: str) -> None:
    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(lambda _: fetch(published(f"{host}/good"), tmp_path), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert Host.ranges == [None]


def test_the_next_mirror_is_tried(tmp_path: Path, host: str) -> None:
    file = published(REFUSED, f"{host}/absent", f"{host}/wrong", f"{host}/good")
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path: Path, host: str) -> None:
    with refusal("set.bin", str(len(CONTENT) // 2), str(len(CONTENT))):
        fetch(published(f"{host}/breaks"), tmp_path)
    assert not (tmp_path / "set.bin").exists()
    assert fetch(published(f"{host}/good"), tmp_path).read_bytes() == CONTENT
    assert Host.ranges == [None, f"bytes={len(CONTENT) // 2}-"]


@pytest.mark.parametrize(("path", "kept"), [("good", b"x" * len(CONTENT)), ("deaf", CONTENT[:100])])
def test_a_partial_file_that_does_not_help_is_dropped(tmp_path: Path, host: str, path: str, kept: bytes) -> None:
    (tmp_path / ".set.bin.part").write_bytes(kept)
    assert fetch(published(f"{host}/{path}"), tmp_path).read_bytes() == CONTENT


def test_what_fails_leaves_nothing_and_says_what_to_do_by_hand(tmp_path: Path, host: str) -> None:
    with refusal("set.bin", "checksum"):
        fetch(published(f"{host}/wrong"), tmp_path)
    with refusal("set.bin", "127.0.0.1: ", REFUSED, f"into {tmp_path}"):
        fetch(published(REFUSED), tmp_path)
    assert left(tmp_path) == []
    (tmp_path / "taken").write_text("a file")
    with refusal("taken", "data_dir"):
        fetch(published(REFUSED), tmp_path / "taken")
