import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from ricnet.data import Augmentation, load
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.data.images import choose_side
from ricnet.errors import RicnetError

from .samples import save_image

Writer = Callable[..., Path]


def test_a_flat_folder_is_split_three_ways(tmp_path: Path, write_folder: Writer) -> None:
    data = load(write_folder(tmp_path / "pets", "abc", rows=20))
    assert (len(data.train), len(data.val), len(data.test)) == (41, 4, 15)
    assert data.class_names == ("a", "b", "c")
    assert data.input_shape == (3, 12, 12)
    assert data.augmentation == Augmentation(1, False)
    assert data.notes == ()
    assert set(data.val.labels.tolist()) == {0, 1, 2}


def test_labels_belong_to_their_images(tmp_path: Path) -> None:
    for value, name in enumerate(("dark", "light")):
        for row in range(6):
            path = tmp_path / name / f"{row}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("L", (8, 8), 200 * value + row).save(path)
    data = load(tmp_path)
    for split in (data.train, data.val, data.test):
        assert torch.equal(split.labels, (split.inputs[:, 0, 0, 0] >= 200).long())


def test_train_val_and_test_are_taken_as_given(tmp_path: Path, write_folder: Writer) -> None:
    for part, rows in (("train", 5), ("valid", 2), ("test", 3)):
        write_folder(tmp_path / part, rows=rows)
    data = load(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (10, 4, 6)


def test_validation_is_cut_from_train(tmp_path: Path, write_folder: Writer) -> None:
    for part, rows in (("train", 10), ("test", 3)):
        write_folder(tmp_path / part, rows=rows)
    data = load(tmp_path, val_fraction=0.2)
    assert (len(data.train), len(data.val), len(data.test)) == (16, 4, 6)


def test_val_alone_is_the_test_set_and_that_is_said(tmp_path: Path, write_folder: Writer) -> None:
    for part, rows in (("train", 10), ("val", 3), ("spare", 1)):
        write_folder(tmp_path / part, rows=rows)
    data = load(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (18, 2, 6)
    assert "val/ is the test set" in data.notes[0]
    assert "spare/" in data.notes[1]


def test_train_alone_gives_all_three(tmp_path: Path, write_folder: Writer) -> None:
    write_folder(tmp_path / "train", rows=8)
    data = load(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (10, 2, 4)


def test_a_class_may_be_called_train(tmp_path: Path, write_folder: Writer) -> None:
    for name in ("train", "plane", "bus"):
        for row in range(3):
            save_image(tmp_path / name / f"{row}.png")
    assert load(tmp_path).class_names == ("bus", "plane", "train")


def test_grey_images_have_one_channel(tmp_path: Path, write_folder: Writer) -> None:
    write_folder(tmp_path, mode="L")
    assert load(tmp_path).input_shape == (1, 12, 12)
    save_image(tmp_path / "a" / "colour.png")
    assert load(tmp_path).input_shape == (3, 12, 12)


def test_the_resolution_asked_for_is_used(tmp_path: Path, write_folder: Writer) -> None:
    assert load(write_folder(tmp_path, size=(30, 20)), resolution=16).input_shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(6, 6)] * 3, 6),
        ([(128, 128)] * 3, 128),
        ([(300, 300)] * 3, 128),
        ([(40, 30), (30, 50), (90, 20)], 30),
        ([(4, 9), (5, 9)], 8),
    ],
)
def test_the_resolution_is_chosen_from_the_data(sizes: list[tuple[int, int]], side: int) -> None:
    assert choose_side(sizes) == side


def test_damaged_and_empty_things_are_skipped_and_listed(tmp_path: Path, write_folder: Writer) -> None:
    write_folder(tmp_path, rows=5)
    (tmp_path / "a" / "bad.png").write_bytes(b"no image")
    cut = save_image(tmp_path / "b" / "cut.jpg", (64, 64))
    cut.write_bytes(cut.read_bytes()[:-300])
    (tmp_path / "empty").mkdir()
    (tmp_path / ".thumbnails").mkdir()
    data = load(tmp_path)
    assert len(data.train) + len(data.val) + len(data.test) == 10
    assert data.class_names == ("a", "b")
    assert "empty" in data.notes[0]
    assert data.notes[1] == "2 files could not be read; skipped: a/bad.png, b/cut.jpg"


def test_photographs_that_must_be_converted_do_not_vanish_in_silence(tmp_path: Path, write_folder: Writer) -> None:
    write_folder(tmp_path)
    for name in ("1.heic", "2.HEIC", "3.dng"):
        (tmp_path / "a" / name).touch()
    assert load(tmp_path).notes == (
        "Passed over were files of a kind that is not read (1 .dng, 2 .heic: convert to .jpg or .png).",
    )
    write_folder(tmp_path / "parts" / "train")
    (tmp_path / "parts" / "IMG_1.heic").touch()
    assert load(tmp_path / "parts").notes == (
        "Passed over were files of a kind that is not read (1 .heic: convert to .jpg or .png).",
    )


def test_a_folder_of_other_things_is_not_searched_to_its_end(
    tmp_path: Path, write_folder: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricnet.data.images.MOST_OTHERS", 10)
    for number in range(20):
        (tmp_path / "home" / f"{number:02}").mkdir(parents=True)
        (tmp_path / "home" / f"{number:02}" / "notes.md").touch()
    (tmp_path / "home" / "99").symlink_to(tmp_path / "home")
    with pytest.raises(RicnetError, match="home has no image among the first 22 files and folders in it"):
        load(tmp_path / "home")


def test_uneven_classes_are_reported(tmp_path: Path, write_folder: Writer) -> None:
    write_folder(tmp_path, "ab", rows=9)
    write_folder(tmp_path, "z", rows=3)
    [note] = load(tmp_path).notes
    assert note.startswith("Classes are uneven: 9 examples of 'a' but 3 of 'z'; always answering 'a'")
    assert "43%" in note


def test_small_or_grey_images_are_shifted_by_an_eighth_and_larger_ones_in_colour_are_photographs(
    tmp_path: Path, write_folder: Writer
) -> None:
    folder = write_folder(tmp_path / "colour", size=(64, 64))
    assert load(folder).augmentation == PHOTOGRAPHS
    assert load(folder, resolution=49).augmentation == PHOTOGRAPHS
    assert load(folder, resolution=48).augmentation == Augmentation(6)
    grey = write_folder(tmp_path / "grey", size=(64, 64), mode="L")
    assert load(grey).augmentation == Augmentation(8)


def empty(folder: Path, _write: Writer) -> None:
    folder.mkdir()


def no_images(folder: Path, _write: Writer) -> None:
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "notes.md").write_text("no image")


def only_telephone(folder: Path, _write: Writer) -> None:
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "1.heic").touch()


def loose(folder: Path, write: Writer) -> None:
    write(folder)
    save_image(folder / "loose.png")


def loose_in_train(folder: Path, write: Writer) -> None:
    write(folder / "test")
    save_image(folder / "train" / "loose.png")


def one_class(folder: Path, write: Writer) -> None:
    write(folder, "a")


def only_damaged(folder: Path, write: Writer) -> None:
    for path in write(folder).rglob("*.png"):
        path.write_bytes(b"no image")


def one_class_damaged(folder: Path, write: Writer) -> None:
    for path in (write(folder) / "b").iterdir():
        path.write_bytes(path.read_bytes()[:60])


def damaged_test(folder: Path, write: Writer) -> None:
    write(folder / "train")
    for path in write(folder / "test").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:60])


def unknown_class(folder: Path, write: Writer) -> None:
    write(folder / "train", "ab")
    write(folder / "test", "abz")


def empty_test(folder: Path, write: Writer) -> None:
    write(folder / "train")
    (folder / "test").mkdir()


def small_class(folder: Path, write: Writer) -> None:
    write(folder)
    write(folder, "z", rows=2)


def small_class_and_damage(folder: Path, write: Writer) -> None:
    small_class(folder, write)
    (folder / "a" / "bad.png").write_bytes(b"no image")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (empty, "holds no images"),
        (no_images, "holds no images"),
        (only_telephone, r"holds no images of a kind that is not read \(1 \.heic: convert"),
        (loose, r"1 images outside of class folders, such as loose\.png"),
        (loose_in_train, r"train has 1 images outside .* loose\.png"),
        (one_class, "one class only, 'a'"),
        (only_damaged, r"no image that can be read; 8 files .* a/0\.png"),
        (one_class_damaged, r"at least 3 examples .* 'b' \(0\)"),
        (damaged_test, r"test holds no image that can be read"),
        (unknown_class, "z occurs in the test part but not in train/"),
        (empty_test, "the test part holds no images"),
        (small_class, r"at least 3 examples .* 'z' \(2\)"),
        (small_class_and_damage, r"'z' \(2\); .* remove the class\. 1 file could not be read; skipped: a/bad\.png"),
    ],
)
def test_what_cannot_work_is_said(
    tmp_path: Path, write_folder: Writer, make: Callable[[Path, Writer], None], message: str
) -> None:
    folder = tmp_path / "pets"
    make(folder, write_folder)
    with pytest.raises(RicnetError, match=message) as caught:
        load(folder)
    assert "pets" in str(caught.value)
    shutil.rmtree(folder)
    with pytest.raises(RicnetError, match="pets does not exist"):
        load(folder)


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path, write_folder: Callable[..., Path]) -> None:
    write_folder(tmp_path / "set", "ab")
    (tmp_path / "set" / "a").rename(tmp_path / "set" / "\udcff")
    with pytest.raises(RicnetError, match="is no text in UTF-8; rename it"):
        load(tmp_path / "set")
