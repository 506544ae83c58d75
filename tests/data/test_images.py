import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image

from ricnet.data import decode_image, find_images, images, read_image, read_images
from ricnet.errors import RicnetError

from .samples import save_image

GRADIENT = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)


def test_an_image_of_the_right_size_keeps_every_pixel(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", (3, 8, 8))
    assert read.dtype == torch.uint8
    assert np.array_equal(read.permute(1, 2, 0).numpy(), pixels)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F", "YCbCr"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_read(tmp_path: Path, mode: str, channels: int) -> None:
    suffix = {"CMYK": "jpg", "YCbCr": "jpg", "F": "tif", "I": "tif"}.get(mode, "png")
    grey = Image.fromarray(GRADIENT)
    image = Image.fromarray(GRADIENT.astype(np.uint16) * 257) if mode == "I;16" else None
    if mode == "I":
        image = Image.fromarray(GRADIENT.astype(np.int32) * 257)
    (image or grey.convert("RGB").convert(mode)).save(tmp_path / f"a.{suffix}")
    read = read_image(tmp_path / f"a.{suffix}", (channels, 8, 8))
    assert read.shape == (channels, 8, 8)
    if mode not in ("1", "P"):
        assert (read.int() - torch.from_numpy(GRADIENT).int()).abs().max() <= 12  # JPEG loses a little


def test_transparent_pixels_are_seen_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.putpixel((1, 2), (200, 10, 30, 255))
    image.save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", (3, 4, 4))
    assert read[:, 0, 0].tolist() == [255, 255, 255]
    assert read[:, 2, 1].tolist() == [200, 10, 30]


def test_a_transparent_palette_is_seen_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 10, 30])
    image.putpixel((0, 0), 0)
    image.save(tmp_path / "a.png", transparency=0)
    read = read_image(tmp_path / "a.png", (3, 4, 4))
    assert read[:, 0, 0].tolist() == [255, 255, 255]
    assert read[:, 1, 1].tolist() == [200, 10, 30]


def test_the_camera_s_rotation_is_undone(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10))
    image.paste((255, 255, 255), (0, 0, 10, 10))  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise to view: left becomes top
    image.save(tmp_path / "a.png", exif=exif)
    read = read_image(tmp_path / "a.png", (1, 20, 10))
    assert read[0, :9].min() == 255
    assert read[0, 11:].max() == 0


@pytest.mark.parametrize("length", [20, 60])
def test_damaged_tags_are_passed_over_in_silence(tmp_path: Path, length: int) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a maker whose name is too long"  # to stand beside its number
    Image.new("RGB", (8, 8), "white").save(tmp_path / "a.jpg", exif=exif.tobytes()[:length])
    for _ in range(2):
        assert read_image(tmp_path / "a.jpg", (3, 8, 8)).min() > 250
    assert images.image_form(tmp_path / "a.jpg") == (8, 8, False)
    ours = [entry for entry in warnings.filters if entry[3] == images._TAGS]
    assert len(ours) == 1


def test_the_shorter_side_fits_and_the_centre_stays(tmp_path: Path) -> None:
    image = Image.new("L", (40, 10))
    image.paste(255, (15, 0, 25, 10))
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", (1, 5, 5)).min() > 230


def test_large_jpegs_are_read_as_well_as_small_ones(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 255, 800), (600, 1)).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "a.jpg", quality=95)
    read = read_image(tmp_path / "a.jpg", (1, 16, 16)).double()
    expected = 255 * (100 + (torch.arange(16) + 0.5) * 600 / 16) / 800
    assert (read[0].mean(0) - expected).abs().max() < 3


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n"])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(RicnetError, match=r"bad\.png is no image"):
        read_image(tmp_path / "bad.png", (3, 8, 8))


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    path = save_image(tmp_path / "cut.jpg", (64, 64))
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(RicnetError, match=r"cut\.jpg is no image"):
        read_image(path, (3, 8, 8))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match=r"absent\.png does not exist"):
        read_image(tmp_path / "absent.png", (3, 8, 8))


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    Image.new("1", (16000, 12000)).save(tmp_path / "bomb.png")  # 192 million pixels in a few kilobytes
    with pytest.raises(RicnetError, match=r"bomb\.png .*decompression bomb"):
        read_image(tmp_path / "bomb.png", (1, 8, 8))


def test_pixels_are_limited_whatever_pillow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_image(tmp_path / "a.png", (30, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(images, "MOST_PIXELS", 1199)
    with pytest.raises(RicnetError, match=r"a\.png .*1,200 pixels could be a decompression bomb"):
        read_image(tmp_path / "a.png", (3, 8, 8))
    monkeypatch.setattr(images, "MOST_PIXELS", 1200)
    monkeypatch.setattr(images, "LARGE", 1)
    assert read_image(tmp_path / "a.png", (3, 8, 8)).shape == (3, 8, 8)
    assert not images._ONE_AT_A_TIME.locked()


@pytest.mark.parametrize(
    ("suffix", "large", "waits"),
    [
        ("jpg", 300_000, False),  # decoded at an eighth of its size
        ("jpg", 200_000, True),  # though it may be held at its full size before
        ("png", 300_000, True),
    ],
)
def test_an_image_waits_its_turn_by_the_pixels_it_is_decoded_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, large: int, waits: bool
) -> None:
    turn = MagicMock()
    monkeypatch.setattr(images, "_ONE_AT_A_TIME", turn)
    monkeypatch.setattr(images, "LARGE", large)
    Image.new("RGB", (800, 600)).save(tmp_path / f"a.{suffix}")
    read_image(tmp_path / f"a.{suffix}", (3, 16, 16))
    assert turn.__enter__.called == waits
    monkeypatch.setattr(images, "MOST_PIXELS", 479_999)
    with pytest.raises(RicnetError, match="480,000 pixels could be a decompression bomb"):
        read_image(tmp_path / f"a.{suffix}", (3, 16, 16))


def test_kinds_that_start_programs_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to an interpreter, under whatever name it comes."""
    called: list[object] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given, **_: called.append(given))
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(RicnetError, match=r"a\.png is no image of a kind that can be read"):
        read_image(tmp_path / "a.png", (3, 8, 8))
    assert not called


def test_images_are_found_below_in_order_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.png", "a/x/3.webp", ".hidden/4.png", "b/.5.png"):
        save_image(tmp_path / name)
    (tmp_path / "b" / "notes.txt").write_text("no image")
    assert [str(path.relative_to(tmp_path)) for path in find_images(tmp_path)] == ["a/x/3.webp", "b/1.png", "b/2.JPG"]


def test_a_link_to_a_folder_is_not_followed_so_that_a_search_ends(tmp_path: Path) -> None:
    save_image(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert find_images(tmp_path) == [tmp_path / "a" / "1.png"]


def test_a_search_among_far_more_other_files_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_OTHERS", 10)
    monkeypatch.setattr(images, "OTHERS_PER_IMAGE", 4)
    for number in range(12):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(RicnetError, match="has no image among the first 12 files and folders in it; give a folder of"):
        find_images(tmp_path)
    for number in range(2):
        save_image(tmp_path / f"{number}.png")
    with pytest.raises(RicnetError, match="has only 2 images among the first 14 files"):
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
    monkeypatch.setattr(images, "is_image", lambda path, kind: path.suffix == ".png")
    assert find_images(Path("it")) == [Path("it/a/1.png")]  # it comes first, and allows for what follows


def test_bytes_are_read_as_files_are(tmp_path: Path) -> None:
    path = save_image(tmp_path / "a.png", (20, 16))
    assert torch.equal(decode_image(io.BytesIO(path.read_bytes()), "upload", (3, 8, 8)), read_image(path, (3, 8, 8)))
    with pytest.raises(RicnetError, match="upload is no image of a kind that can be read; replace or remove it"):
        decode_image(io.BytesIO(b"text"), "upload", (3, 8, 8))


def test_of_many_files_the_readable_ones_come_in_order(tmp_path: Path) -> None:
    paths = [save_image(tmp_path / f"{i}.png") for i in range(4)]
    paths[2].write_text("no image")
    images, broken = read_images(paths, (3, 12, 12))
    assert torch.equal(images, torch.stack([read_image(paths[i], (3, 12, 12)) for i in (0, 1, 3)]))
    assert list(broken) == [paths[2]]
    with pytest.raises(RicnetError, match="cannot be read"):
        read_image(tmp_path, (3, 12, 12))
