from pathlib import Path

import pytest

from refusals import refusal
from ricnet.data import inputs
from ricnet.data.columns import Columns, Number
from ricnet.data.inputs import Found, read_inputs
from ricnet.data.texts import Text

from .samples import save_image

SHAPE = (3, 8, 8)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """One image, and one of everything that is none."""
    save_image(tmp_path / "0.png")
    (tmp_path / "empty").mkdir()
    for name in ("broken.png", "labels.csv", "readme.txt", "rows.npz"):
        (tmp_path / name).write_text("no\nimage")
    return tmp_path


def read(*specs: Path) -> Found:
    return read_inputs([str(spec) for spec in specs], SHAPE, None)


def test_unreadable_files_in_folders_are_noted_and_named_ones_are_errors(mixed: Path) -> None:
    for spec, noted in ((mixed, ["broken"]), (mixed / "*", ["broken", "readme", "empty", "labels", "rows"])):
        names, images, notes, problems = read(spec)
        assert (names, len(images), problems) == ([str(mixed / "0.png")], 1, [])
        assert [note.removeprefix(f"skipped: {mixed}/").split()[0].split(".")[0] for note in notes] == noted
    named = read(*sorted(mixed.iterdir()))
    assert (named.names, len(named.problems), named.notes) == ([str(mixed / "0.png")], 5, [])


@pytest.mark.parametrize(("pattern", "named"), [("b*.png", "b*.png"), ("*.csv", "labels.csv"), ("*.jpg", "*.jpg")])
def test_a_pattern_in_vain_is_a_problem_of_its_own(mixed: Path, pattern: str, named: str) -> None:
    with refusal(named):
        read(mixed / pattern)
    both = read(mixed / "0.png", mixed / pattern)
    assert (both.names, len(both.problems)) == ([str(mixed / "0.png")], 1)


def test_a_file_of_many_is_looked_at_a_few_times_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8,000 files took five seconds when each was compared with each."""
    compared, files = [0], 100

    class Counting(type(Path())):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            compared[0] += 1
            return bool(super().__eq__(other))

        __hash__ = type(Path()).__hash__

    for number in range(files):
        save_image(tmp_path / f"{number}.png")
    monkeypatch.setattr(inputs, "Path", Counting)
    assert len(read(tmp_path / "*").names) == files
    assert compared[0] < 4 * files


def test_an_image_is_no_text_and_a_text_no_image(mixed: Path) -> None:
    with refusal("readme.txt is a text", "reads images"):
        read(mixed / "readme.txt")
    reviews = Columns("label", (Text("review", 8),))
    for spec in (str(mixed / "0.png"), str(mixed / "*.png")):
        with refusal("0.png is an image", "reads texts"):
            read_inputs([spec], (8,), reviews)
    with refusal("photo.jpg does not exist"):  # and is no sentence
        read_inputs(["photo.jpg"], (8,), reviews)


def test_a_table_with_odd_cells_of_training_is_read_with_a_note_and_any_other_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("a\n" + "1\n" * 3 + "n/k\n")
    (tmp_path / "new.csv").write_text("a\n" + "1\n" * 39 + "1e400\n")
    columns = Columns("y", (Number("a", 0.0, 1.0, flagged=True, gaps=("n/k",)),))
    specs = [str(tmp_path / name) for name in ("known.csv", "new.csv")]
    names, rows, [note], [problem] = read_inputs(specs, (2,), columns)
    assert (len(names), rows.tolist()) == (4, [[1, 0]] * 3 + [[0, 1]])
    assert "known.csv" in note
    assert "'n/k' in line 5" in note
    assert "new.csv, line 41" in str(problem)


def test_no_inputs_is_an_error() -> None:
    with refusal("paths"):
        read()


def test_photographs_in_a_folder_that_cannot_be_read_are_noted(tmp_path: Path) -> None:
    save_image(tmp_path / "0.png")
    for name in ("1.heic", "2.HEIC"):
        (tmp_path / name).touch()
    found = read(tmp_path)
    assert len(found.inputs) == 1
    assert any("2 .heic" in note for note in found.notes)
