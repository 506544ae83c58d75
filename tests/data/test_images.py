"""Image files, and folders of them as data."""

import io
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from refusals import cases, refusal
from ricnet.data import Augmentation, find_images, images, load, read_image, read_images
from ricnet.data.dataset import PHOTOGRAPHS, view_shape
from ricnet.data.images import choose_side, decode_image, stored_side

from .samples import save_image, write_folder

GRADIENT = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)


def test_an_image_of_the_right_size_keeps_every_pixel(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", (3, 8, 8))
    assert read.dtype == torch.uint8
    assert np.array_equal(read.permute(1, 2, 0).numpy(), pixels)
    assert torch.equal(decode_image(io.BytesIO((tmp_path / "a.png").read_bytes()), "upload", (3, 8, 8)), read)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F", "YCbCr"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_read(tmp_path: Path, mode: str, channels: int) -> None:
    path = tmp_path / f"a.{ {'CMYK': 'jpg', 'YCbCr': 'jpg', 'F': 'tif', 'I': 'tif'}.get(mode, 'png') }"
    wide = {"I;16": np.uint16, "I": np.int32}.get(mode)
    image = Image.fromarray(GRADIENT.astype(wide) * 257 if wide else GRADIENT)
    (image if wide else image.convert("RGB").convert(mode)).save(path)
    read = read_image(path, (channels, 8, 8))
    assert read.shape == (channels, 8, 8)
    if mode not in ("1", "P"):
        assert (read.int() - torch.from_numpy(GRADIENT).int()).abs().max() <= 12  # JPEG loses a little


@pytest.mark.parametrize("turned", [False, True])
def test_whole_numbers_of_32_bits_are_bytes_where_none_is_larger(tmp_path: Path, turned: bool) -> None:
    """They were divided by 256, and all black. A dark image of 16 bits stays dark, whatever mode it is opened in."""
    upside_down: Any = {"tiffinfo": {274: 3}}

    def read(name: str, values: np.ndarray) -> Tensor:
        is_turned = turned and name.endswith(".tif")
        Image.fromarray(values).save(tmp_path / name, **(upside_down if is_turned else {}))
        found = read_image(tmp_path / name, (1, 8, 8))[0]
        return found.flip(0, 1) if is_turned else found

    assert torch.equal(read("32.tif", GRADIENT.astype(np.int32)), torch.from_numpy(GRADIENT))
    assert torch.equal(read("32-wide.tif", GRADIENT.astype(np.int32) * 257), torch.from_numpy(GRADIENT))
    for name in ("16.png", "16.tif", "16.pgm"):
        assert not read(name, GRADIENT.astype(np.uint16)).any()
        assert torch.equal(read(name, GRADIENT.astype(np.uint16) * 257), torch.from_numpy(GRADIENT))
    for wrong in (-1, 65536):
        with refusal("wrong.tif", "65535"):
            read("wrong.tif", np.full((8, 8), wrong, np.int32))


def test_transparent_pixels_and_palettes_are_seen_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    clear.putpixel((1, 1), (200, 10, 30, 255))
    clear.save(tmp_path / "rgba.png")
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 200, 10, 30])
    palette.putpixel((0, 0), 0)
    palette.save(tmp_path / "palette.png", transparency=0)
    for name in ("rgba", "palette"):
        read = read_image(tmp_path / f"{name}.png", (3, 4, 4))
        assert (read[:, 0, 0].tolist(), read[:, 1, 1].tolist()) == ([255, 255, 255], [200, 10, 30])


def test_the_camera_s_rotation_is_undone(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10))
    image.paste((255, 255, 255), (0, 0, 10, 10))  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise to view: left becomes top
    image.save(tmp_path / "a.png", exif=exif)
    read = read_image(tmp_path / "a.png", (1, 20, 10))
    assert (read[0, :9].min(), read[0, 11:].max()) == (255, 0)


@pytest.mark.parametrize("length", [20, 60])
def test_damaged_tags_are_passed_over_in_silence(tmp_path: Path, length: int) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a maker whose name is too long"  # to stand beside its number
    Image.new("RGB", (8, 8), "white").save(tmp_path / "a.jpg", exif=exif.tobytes()[:length])
    for _ in range(2):
        assert read_image(tmp_path / "a.jpg", (3, 8, 8)).min() > 250
    assert images.image_form(tmp_path / "a.jpg") == (8, 8, False)
    assert len([entry for entry in warnings.filters if entry[3] == images._TAGS]) == 1


def test_the_shorter_side_fits_the_centre_stays_and_large_jpegs_are_read_as_well(tmp_path: Path) -> None:
    image = Image.new("L", (40, 10))
    image.paste(255, (15, 0, 25, 10))
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", (1, 5, 5)).min() > 230
    ramp = np.tile(np.linspace(0, 255, 800), (600, 1)).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "a.jpg", quality=95)
    read = read_image(tmp_path / "a.jpg", (1, 16, 16)).double()
    expected = 255 * (100 + (torch.arange(16) + 0.5) * 600 / 16) / 800
    assert (read[0].mean(0) - expected).abs().max() < 3


def cut_jpeg() -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(GRADIENT).resize((64, 64)).save(file, "jpeg")
        return file.getvalue()[:-200]


UNREADABLE = {"empty": b"", "no image": b"no image", "a header alone": b"\x89PNG\r\n\x1a\n", "cut off": cut_jpeg()}


@pytest.mark.parametrize("content", cases(UNREADABLE))
def test_files_and_uploads_that_cannot_be_read_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.png").write_bytes(content)
    with refusal("bad.png"):
        read_image(tmp_path / "bad.png", (3, 8, 8))
    with refusal("upload"):
        decode_image(io.BytesIO(content), "upload", (3, 8, 8))


@pytest.mark.parametrize("name", ["absent.png", "."])
def test_what_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    with refusal(tmp_path / name):
        read_image(tmp_path / name, (3, 8, 8))


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "photos" / "a" / "bomb.png"
    for name in ("photos/a", "photos/b"):
        (tmp_path / name).mkdir(parents=True)
        for place in range(4):
            Image.new("L", (12, 12), color=place).save(tmp_path / name / f"{place}.png")
    for width in (15_000, 16_000):  # 180 and 192 million pixels in a few kilobytes; Pillow refuses the larger one
        Image.new("1", (width, 12_000)).save(path)
        with refusal("bomb.png is too large", "178 megapixels"):
            read_image(path, (1, 8, 8))
    assert "1 file is too large; skipped: a/bomb.png" in load(tmp_path / "photos").notes


@pytest.mark.parametrize(
    ("suffix", "large", "waits"),
    [
        ("jpg", 300_000, False),  # decoded at an eighth of its size
        ("jpg", 200_000, True),  # though it may be held at its full size before
        ("png", 300_000, True),
    ],
)
def test_an_image_waits_its_turn_by_the_pixels_it_is_decoded_to_and_these_are_limited_whatever_pillow_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, large: int, waits: bool
) -> None:
    turn, path = MagicMock(), tmp_path / f"a.{suffix}"
    Image.new("RGB", (800, 600)).save(path)
    for holder, name, value in ((images, "_ONE_AT_A_TIME", turn), (images, "LARGE_PIXELS", large)):
        monkeypatch.setattr(holder, name, value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(images, "MOST_PIXELS", 480_000)
    assert read_image(path, (3, 16, 16)).shape == (3, 16, 16)
    assert turn.__enter__.called == turn.__exit__.called == waits
    monkeypatch.setattr(images, "MOST_PIXELS", 479_999)
    with refusal(f"a.{suffix} is too large", "0.479999 megapixels"):
        read_image(path, (3, 16, 16))


def test_kinds_that_start_programs_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to an interpreter, under whatever name it comes."""
    called: list[object] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given, **_: called.append(given))
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with refusal("a.png", "supported format"):
        read_image(tmp_path / "a.png", (3, 8, 8))
    assert not called


def test_images_are_found_below_in_order_and_neither_hidden_ones_nor_through_links(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.png", "a/x/3.webp", ".hidden/4.png", "b/.5.png"):
        save_image(tmp_path / name)
    (tmp_path / "b" / "notes.txt").write_text("no image")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in find_images(tmp_path)] == ["a/x/3.webp", "b/1.png", "b/2.JPG"]


def test_a_search_among_far_more_other_files_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_OTHERS", 10)
    monkeypatch.setattr(images, "OTHERS_PER_IMAGE", 4)
    for number in range(12):
        (tmp_path / f"{number}.txt").touch()
    with refusal(str(tmp_path), "12"):
        find_images(tmp_path)
    for number in range(2):
        save_image(tmp_path / f"{number}.png")
    with refusal("2 images", "14"):
        find_images(tmp_path)
    save_image(tmp_path / "2.png")
    assert len(find_images(tmp_path)) == 3


@pytest.mark.parametrize("folders", [["a", "b"], ["b", "a"]])
def test_where_a_search_ends_does_not_depend_on_the_order_of_the_disk(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a": ["1.png"], "b": ["1.txt"] * 20}

    def walk(top: Path, **_: object) -> Iterator[tuple[str, list[str], list[str]]]:
        yield str(top), folders, []
        for name in folders:
            yield f"{top}/{name}", [], files[name]

    monkeypatch.setattr(images, "MOST_OTHERS", 10)
    monkeypatch.setattr("os.walk", walk)
    monkeypatch.setattr(images.Kind, "matches", lambda _, path: path.suffix == ".png")
    assert find_images(Path("it")) == [Path("it/a/1.png")]  # it comes first, and allows for what follows


def test_of_many_files_the_readable_ones_come_in_order(tmp_path: Path) -> None:
    paths = [save_image(tmp_path / f"{i}.png") for i in range(4)]
    paths[2].write_text("no image")
    read, broken = read_images(paths, (3, 12, 12))
    assert torch.equal(read, torch.stack([read_image(paths[i], (3, 12, 12)) for i in (0, 1, 3)]))
    assert list(broken) == [paths[2]]


# Folders as data


def test_a_flat_folder_is_split_three_ways_and_labels_belong_to_their_images(tmp_path: Path) -> None:
    for value, name in enumerate(("dark", "light")):
        for row in range(20):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("L", (12, 12), 200 * value + row).save(tmp_path / name / f"{row}.png")
    data = load(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 10)
    assert (data.class_names, data.input_shape, data.notes) == (("dark", "light"), (1, 12, 12), ())
    assert data.augmentation == Augmentation(1, False)
    assert set(data.val.labels.tolist()) == {0, 1}
    for split in (data.train, data.val, data.test):
        assert torch.equal(split.labels, (split.inputs[:, 0, 0, 0] >= 200).long())
    save_image(tmp_path / "dark" / "colour.png")
    assert load(tmp_path).input_shape == (3, 12, 12)


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        ({"train": 5, "valid": 2, "test": 3}, (10, 4, 6)),
        ({"train": 10, "test": 3}, (16, 4, 6)),
        ({"train": 10, "val": 3, "spare": 1}, (16, 4, 6)),
        ({"train": 8}, (10, 2, 4)),
    ],
)
def test_given_parts_are_taken_and_the_others_cut(
    tmp_path: Path, parts: dict[str, int], sizes: tuple[int, ...]
) -> None:
    for part, rows in parts.items():
        write_folder(tmp_path / part, rows=rows)
    data = load(tmp_path, val_fraction=0.2)
    assert (len(data.train), len(data.val), len(data.test)) == sizes
    told = [word for note in data.notes for word in ("val/ is the test set", "spare/") if word in note]
    assert told == (["val/ is the test set", "spare/"] if "spare" in parts else [])


def test_a_class_may_be_called_train_and_a_resolution_asked_for(tmp_path: Path) -> None:
    for name in ("train", "plane", "bus"):
        for row in range(3):
            save_image(tmp_path / name / f"{row}.png", (30, 20))
    data = load(tmp_path, resolution=16)
    assert (data.class_names, data.input_shape) == (("bus", "plane", "train"), (3, 16, 16))


def test_the_resolution_is_chosen_from_the_data() -> None:
    assert [choose_side([(side, side)] * 3) for side in (6, 128, 300)] == [6, 128, 128]
    assert choose_side([(40, 30), (30, 50), (90, 20)]) == 30
    assert choose_side([(4, 9), (5, 9)]) == 8


def test_skipped_files_are_listed_and_uneven_classes_noted(tmp_path: Path) -> None:
    write_folder(tmp_path, "a", rows=9)
    write_folder(tmp_path, "z", rows=3)
    (tmp_path / "a" / "bad.png").write_bytes(b"no image")
    cut = save_image(tmp_path / "z" / "cut.jpg", (64, 64))
    cut.write_bytes(cut.read_bytes()[:-300])
    for name in ("1.heic", "2.HEIC", "3.dng"):
        (tmp_path / "a" / name).touch()
    for name in ("empty", ".thumbnails"):
        (tmp_path / name).mkdir()
    data = load(tmp_path)
    assert (len(data.train) + len(data.val) + len(data.test), data.class_names) == (12, ("a", "z"))
    facts = (("empty",), ("1 .dng, 2 .heic",), ("2 files", "a/bad.png, z/cut.jpg"), ("9 examples of 'a'", "75%"))
    for note, expected in zip(data.notes, facts, strict=True):
        assert all(fact in note for fact in expected)
    write_folder(tmp_path / "parts" / "train")
    (tmp_path / "parts" / "IMG_1.heic").touch()
    [note] = load(tmp_path / "parts").notes
    assert "1 .heic" in note


def test_a_folder_of_other_things_is_not_searched_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.data.images.MOST_OTHERS", 10)
    for number in range(20):
        (tmp_path / "home" / f"{number:02}").mkdir(parents=True)
        (tmp_path / "home" / f"{number:02}" / "notes.md").touch()
    (tmp_path / "home" / "99").symlink_to(tmp_path / "home")
    with refusal("home has no image", "22"):
        load(tmp_path / "home")


def test_small_or_grey_images_are_shifted_by_an_eighth_and_larger_ones_in_colour_are_photographs(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "colour", size=(64, 64))
    expected = {None: PHOTOGRAPHS, 49: PHOTOGRAPHS, 48: Augmentation(6)}
    assert {side: load(folder, resolution=side).augmentation for side in expected} == expected
    grey = write_folder(tmp_path / "grey", size=(64, 64), mode="L")
    assert load(grey).augmentation == Augmentation(8)


def test_photographs_are_stored_larger_than_they_are_read(tmp_path: Path) -> None:
    """Stored files are those of the larger resolution; other images have no random crops, so they are not stored
    larger."""
    folder = write_folder(tmp_path / "colour", size=(80, 100))
    data = load(folder, resolution=52, oversize=1.25)
    assert (data.input_shape, data.view_shape, data.oversize) == ((3, 65, 65), (3, 52, 52), 1.25)
    assert torch.equal(data.train.inputs, load(folder, resolution=65).train.inputs)
    assert load(folder, oversize=1.3).view_shape == load(folder).input_shape == (3, 80, 80)
    for side in range(49, 140):  # the resolution is found again from the stored side
        assert all(view_shape((3, round(s * side), 1), s)[1] == side for s in (1.0, 1.1, 1.14, 1.25, 1.3, 4.0))


@pytest.mark.parametrize(
    ("options", "named"),
    cases(
        {
            "small images": ({"resolution": 48, "oversize": 1.25}, ("oversize 1.25", "photographs")),
            "less than 1": ({"oversize": 0.9}, ("oversize", "0.9", "from 1 to 4")),
        }
    ),
)
def test_an_oversize_that_is_of_no_use_is_refused(tmp_path: Path, options: dict[str, Any], named: Any) -> None:
    with refusal(named):
        load(write_folder(tmp_path / "colour", size=(80, 100)), **options)


def made(folder: Path, content: str) -> None:
    """A path a word: a/ is a class of four images, a/x2 one of two; of -a/ they are cut short, of !a/ they are none at
    all. Other paths are images, files or folders by their suffix."""
    folder.mkdir()
    for word in content.split():
        path, _, count = word.lstrip("-!").partition("/x")
        place = folder / path
        if word.endswith("/") or count:
            write_folder(place.parent, place.name, rows=int(count or 4))
        elif place.suffix == ".png":
            save_image(place)
        elif place.suffix:
            place.parent.mkdir()
            place.touch()
        else:
            place.mkdir()
        for image in place.rglob("*.png") if word[0] in "-!" else ():
            image.write_bytes(image.read_bytes()[:60] if word[0] == "-" else b"no image")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "no images"),
        ("a/notes.md", "no images"),
        ("a/1.heic", "1 .heic"),
        ("a/ b/ loose.png", "1 image ; loose.png"),
        ("test/a/ test/b/ train/loose.png", "train; 1 image ; loose.png"),
        ("a/", "one class only; 'a'"),
        ("!a/ !b/", "8 files; a/0.png"),
        ("a/ -b/", "at least 3; 'b' (0)"),
        ("train/a/ train/b/ -test/a/ -test/b/", "test; 8 files"),
        ("train/a/ train/b/ test/a/ test/z/", "z; test part"),
        ("train/a/ train/b/ test", "test part"),
        ("a/ b/ z/x2", "at least 3; 'z' (2)"),
        ("a/ b/ z/x2 -y/x1", "'z' (2); 1 file; y/0.png"),
    ],
)
def test_errors_name_the_cause(tmp_path: Path, content: str, named: str) -> None:
    folder = tmp_path / "pets"
    made(folder, content)
    with refusal("pets", *named.split("; ")):
        load(folder)
    shutil.rmtree(folder)
    with refusal("pets does not exist"):
        load(folder)


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", "ab")
    (tmp_path / "set" / "a").rename(tmp_path / "set" / "\udcff")
    with refusal("UTF-8"):
        load(tmp_path / "set")


@pytest.mark.parametrize(
    ("side", "native", "oversize", "stored"),
    [
        (128, 500, None, 160),  # 1.25 × 128
        (128, 140, None, 140),
        (128, 128, None, 128),
        (192, 160, None, 192),  # enlarged once, not twice
        (128, 140, 1.25, 160),  # as asked
        (128, 500, 1.0, 128),
    ],
)
def test_photographs_are_stored_larger_up_to_their_own_pixels(
    side: int, native: int, oversize: float | None, stored: int
) -> None:
    found, ratio = stored_side(side, native, oversize)
    assert found == stored
    assert ratio == pytest.approx(stored / side)
    assert view_shape((3, found, found), ratio) == (3, side, side)
