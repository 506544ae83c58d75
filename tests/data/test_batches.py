import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from scipy.stats import beta
from torch import Tensor, nn

from refusals import cases, refusal
from ricnet.data import Augmentation, Dataset, augment, batches, epoch_order, load
from ricnet.data.arrays import map_array
from ricnet.data.batches import mix
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.distributed import Processes, Shard
from ricnet.machine import SHARE, fits_memory, free_bytes
from ricnet.training.network import BYTES_PER_OUTPUT_BYTE, activation_bytes, fitting_batch

from .samples import write_folder

IMAGE = torch.arange(1, 2 * 5 * 6 + 1, dtype=torch.uint8).reshape(2, 5, 6)  # every pixel differs, none is black


def windows(pad: int, flip: bool) -> set[bytes]:
    """Every image that augmentation may make, by the plain definition: mirror, pad, crop."""
    padded = [F.pad(image, (pad, pad, pad, pad)) for image in [IMAGE, *([IMAGE.flip(2)] if flip else [])]]
    places = [(row, column) for row in range(2 * pad + 1) for column in range(2 * pad + 1)]
    return {p[:, r : r + 5, c : c + 6].contiguous().numpy().tobytes() for p in padded for r, c in places}


@pytest.mark.parametrize(("pad", "flip"), [(2, False), (0, True), (2, True)])
def test_the_windows_that_occur_are_exactly_those_that_may(pad: int, flip: bool) -> None:
    torch.manual_seed(0)
    made = augment(IMAGE.expand(2000, -1, -1, -1), Augmentation(pad, flip))
    assert made.dtype == torch.uint8
    assert {image.numpy().tobytes() for image in made} == windows(pad, flip)
    if (pad, flip) == (0, True):
        assert (made == IMAGE).all((1, 2, 3)).double().mean() == pytest.approx(0.5, abs=0.04)


def test_images_of_a_batch_are_not_mixed_up() -> None:
    images = torch.arange(1, 9, dtype=torch.uint8)[:, None, None, None].expand(8, 3, 9, 9)
    made = augment(images, Augmentation(4, True))
    assert torch.equal(made.amax((1, 2, 3)), images[:, 0, 0, 0])


def test_cutout_greys_one_square_that_may_lie_anywhere() -> None:
    torch.manual_seed(0)
    white = torch.full((4000, 3, 8, 10), 255, dtype=torch.uint8)
    made = augment(white, Augmentation(cutout=3))
    hidden = made[:, 0] == 128
    assert torch.equal(made == 128, hidden[:, None].expand(-1, 3, -1, -1))
    assert ((made == 128) | (made == 255)).all()
    rows, columns = hidden.any(2), hidden.any(1)
    assert torch.equal(hidden, rows[:, :, None] & columns[:, None, :])
    assert set(rows.sum(1).tolist()) == set(columns.sum(1).tolist()) == {2, 3}  # less at the border
    assert hidden.double().mean(0)[1:-1, 1:-1].sub(9 / 80).abs().max() < 0.02  # every inner pixel equally often


def boxed(monkeypatch: pytest.MonkeyPatch, box: tuple[float, float, float, float]) -> None:
    """Let every crop be of this height, width, top and left."""

    def boxes(least: float, random: batches.Random) -> Float[Tensor, "4 n"]:
        return torch.tensor(box, dtype=torch.float32, device=random.device)[:, None].expand(4, random.shard.rows)

    monkeypatch.setattr(batches, "crop_boxes", boxes)


def test_a_crop_of_known_place_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right half of a row of four, at twice its size: its pixels lie at 1.75, 2.25, 2.75 and 3.25 of the old ones,
    the last beyond the border."""
    boxed(monkeypatch, (1, 1, 0, 0))  # the whole
    both = augment(IMAGE.expand(64, -1, -1, -1), Augmentation(crop_area=0.5, flip=True))
    assert {image.numpy().tobytes() for image in both} == windows(0, flip=True)
    boxed(monkeypatch, (1, 0.5, 0, 0.5))
    row = torch.tensor([[[[0, 10, 50, 90]]]], dtype=torch.uint8)
    assert augment(row, Augmentation(crop_area=0.5)).flatten().tolist() == [40, 60, 80, 90]
    assert augment(row.mT, Augmentation(crop_area=0.5)).flatten().tolist() == [0, 10, 50, 90]  # height is whole
    boxed(monkeypatch, (0.5, 1, 0.5, 0))
    assert augment(row.mT, Augmentation(crop_area=0.5)).flatten().tolist() == [40, 60, 80, 90]


def test_a_crop_is_what_bilinear_interpolation_of_torch_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the image, where the surroundings of the box play no part."""
    boxed(monkeypatch, (4 / 8, 4 / 8, 2 / 8, 3 / 8))
    image = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
    made = augment(image, Augmentation(crop_area=0.2)).float()
    whole = F.interpolate(image.float(), scale_factor=2, mode="bilinear")  # each pixel of the box becomes two
    assert torch.equal(made, whole[:, :, 4:12, 6:14].round())


def test_a_crop_out_of_a_larger_image_has_the_size_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the side is enlarged as without a size; the whole is reduced as Pillow and torch do with antialiasing."""
    image = torch.randint(0, 256, (2, 3, 10, 10), dtype=torch.uint8)
    boxed(monkeypatch, (0.4, 0.4, 0.3, 0.3))  # pixels 3 … 6, enlarged from 4 to 8
    made = augment(image, Augmentation(crop_area=0.2), size=(8, 8))
    expected = F.interpolate(image.float(), scale_factor=2, mode="bilinear")[:, :, 6:14, 6:14]
    assert (made - expected).abs().max() <= 0.5 + 1e-4
    boxed(monkeypatch, (1, 1, 0, 0))
    made = augment(image, Augmentation(crop_area=0.2), size=(8, 8))
    expected = F.interpolate(image.float(), (8, 8), mode="bilinear", antialias=True)
    inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))  # border pixels are weighted a little differently
    assert (made[inner] - expected[inner]).abs().max() <= 0.5 + 1e-3
    assert (made - expected).abs().max() < 20


def test_without_random_areas_windows_are_cut_out_of_a_larger_image() -> None:
    torch.manual_seed(0)
    image = torch.arange(20, dtype=torch.uint8).view(1, 1, 4, 5).expand(500, -1, -1, -1)
    made = augment(image, Augmentation(), size=(3, 3))
    places = {(row, column) for row in range(2) for column in range(3)}
    expected = {bytes(image[0, 0, r : r + 3, c : c + 3].flatten().tolist()) for r, c in places}
    assert {bytes(one.flatten().tolist()) for one in made} == expected


@pytest.mark.parametrize("augmentation", [Augmentation(2, True, cutout=3), PHOTOGRAPHS])
def test_the_size_of_the_images_themselves_changes_nothing(augmentation: Augmentation) -> None:
    batch = torch.randint(0, 256, (16, 3, 9, 9), dtype=torch.uint8)
    made = [augment(batch, augmentation, generator=torch.Generator(), size=size) for size in (None, (9, 9))]
    assert torch.equal(*made)


def test_reflected_borders_and_given_flips() -> None:
    """All windows of the image padded by numpy's reflection; images that are mirrored are those that are named."""
    torch.manual_seed(0)
    padded = np.pad(IMAGE.numpy(), ((0, 0), (2, 2), (2, 2)), mode="reflect")
    expected = {padded[:, r : r + 5, c : c + 6].tobytes() for r in range(5) for c in range(5)}
    made = augment(IMAGE.expand(2000, -1, -1, -1), Augmentation(2, reflect=True))
    assert {image.numpy().tobytes() for image in made} == expected
    mirrored = torch.tensor([True, False, True])
    for augmentation in (Augmentation(flip=True), Augmentation(flip=True, crop_area=0.99999)):
        made = augment(IMAGE.expand(3, -1, -1, -1), augmentation, mirrored=mirrored)
        assert [torch.equal(image, IMAGE.flip(2)) for image in made] == mirrored.tolist()
        assert torch.equal(made[1], IMAGE)


def test_areas_are_uniform_and_sides_in_a_ratio_that_fits() -> None:
    torch.manual_seed(0)
    height, width, top, left = batches.crop_boxes(0.35, batches.Random(Shard(20_000), torch.device("cpu")))
    area, ratio = height * width, (width / height).log()
    assert area.min() >= 0.35 - 1e-6
    levels = torch.linspace(0.35, 1, 5)[1:-1]
    assert [float((area < level).float().mean()) for level in levels] == pytest.approx([0.25, 0.5, 0.75], abs=0.02)
    free = area < 0.75  # where no ratio is too wide
    assert ratio.abs().max() <= math.log(4 / 3) + 1e-6
    assert float(ratio[free].std()) == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.02)
    assert abs(float(ratio.mean())) < 0.01
    for start, size in ((top, height), (left, width)):
        assert start.min() >= -1e-6
        assert (start + size).max() <= 1 + 1e-6
        assert float((start[free] / (1 - size[free])).mean()) == pytest.approx(0.5, abs=0.02)


def test_colours_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers 1, 0.5 and 0 with at most 0.5: brightness 1.5, contrast 1, saturation 0.5."""
    image = torch.tensor([[[[30, 90]], [[60, 90]], [[90, 90]]]], dtype=torch.uint8)
    numbers = torch.tensor([1, 0.5, 0]).view(3, 1)
    monkeypatch.setattr(torch, "rand", lambda *size, device, generator: numbers.expand(size))
    made = augment(image, Augmentation(colour=0.5))
    assert made.flatten(2).squeeze().tolist() == [[68, 135], [90, 135], [112, 135]]  # 67.5 and 112.5 go to even
    numbers = numbers.flip(0)  # brightness 0.5, saturation 1.5: grey 60 and 90 stay, and are halved
    assert augment(image, Augmentation(colour=0.5)).flatten(2).squeeze().tolist() == [[8, 45], [30, 45], [52, 45]]
    numbers = torch.tensor([0.5, 1, 0.5]).view(3, 1)  # contrast 1.5, about the mean grey, 75
    assert augment(image, Augmentation(colour=0.5)).flatten(2).squeeze().tolist() == [[8, 98], [52, 98], [98, 98]]


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(2, 20), st.integers(2, 20), st.floats(0.05, 1))
def test_photographs_stay_bytes_of_the_same_shape(seed: int, channels: int, h: int, w: int, least: float) -> None:
    torch.manual_seed(seed)
    batch = torch.randint(0, 256, (3, channels, h, w), dtype=torch.uint8)
    made = augment(batch, Augmentation(flip=True, crop_area=least))
    assert (made.shape, made.dtype) == (batch.shape, torch.uint8)
    low, high = (edge((2, 3), keepdim=True).expand_as(made) for edge in (batch.amin, batch.amax))
    assert bool(((low <= made) & (made <= high)).all())  # interpolation invents no value
    varied = augment(batch, Augmentation(crop_area=least, colour=1.0))
    assert (varied.shape, varied.dtype) == (batch.shape, torch.uint8)


def test_black_and_white_survive_the_strongest_colours() -> None:
    """A factor that leaves 0..255 must not come out at the other end."""
    torch.manual_seed(0)
    white = torch.full((200, 3, 4, 4), 255, dtype=torch.uint8)
    made = augment(white, Augmentation(colour=0.4))
    assert made.min() >= 152
    assert (made == 255).double().mean() == pytest.approx(0.5, abs=0.1)
    assert not augment(torch.zeros_like(white), Augmentation(colour=0.4)).any()


@pytest.mark.parametrize("augmentation", [Augmentation(2, True), PHOTOGRAPHS])
def test_augmentation_follows_the_default_generator(augmentation: Augmentation) -> None:
    batch = IMAGE.expand(64, -1, -1, -1)
    assert augment(batch, Augmentation()) is batch
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(augment(batch, augmentation))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_random_draws_without_crops_are_unchanged() -> None:
    """Bit for bit: runs of CIFAR-10 and the like repeat."""
    torch.manual_seed(3)
    made = augment(IMAGE.expand(4, -1, -1, -1), Augmentation(2, True, cutout=3))
    torch.manual_seed(3)
    mirrored = torch.rand(4, 1) < 0.5
    offsets, rows, columns = torch.randint(5, (2, 4, 1)), torch.randint(5, (4, 1)), torch.randint(6, (4, 1))
    for i, image in enumerate(made):
        (top, left), (row, column) = offsets[:, i, 0], (rows[i, 0] - 1, columns[i, 0] - 1)
        window = F.pad(IMAGE, (2, 2, 2, 2))[:, top : top + 5, left : left + 6]
        expected = window.flip(2) if mirrored[i] else window.clone()
        expected[:, max(row, 0) : row + 3, max(column, 0) : column + 3] = 128
        assert torch.equal(image, expected)


def test_orders_are_permutations_that_depend_on_seed_and_epoch_alone() -> None:
    orders = {(seed, epoch): epoch_order(50, seed, epoch) for seed in range(6) for epoch in range(6)}
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in orders.values())
    assert len({tuple(order.tolist()) for order in orders.values()}) == 36
    torch.manual_seed(1)
    assert torch.equal(orders[3, 5], epoch_order(50, 3, 5))


@pytest.mark.parametrize("augmentation", [Augmentation(2, True, cutout=3), PHOTOGRAPHS])
def test_augmentation_has_no_data_dependent_branches(augmentation: Augmentation) -> None:
    """On the meta device there are none: .item(), a mask as an index or a shape that depends on values would fail."""
    batch = torch.empty(4, 3, 64, 64, dtype=torch.uint8, device="meta")
    assert augment(batch, augmentation).shape == batch.shape


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_augmentation_on_the_gpu_never_waits_for_the_host() -> None:
    batch = IMAGE.expand(2000, -1, -1, -1).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = augment(batch, Augmentation(2, True))
        augment(batch, PHOTOGRAPHS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {image.numpy().tobytes() for image in made.cpu()} == windows(2, True)


@pytest.mark.parametrize("augmentation", [Augmentation(2, True, cutout=3), PHOTOGRAPHS])
def test_augmentation_does_not_depend_on_the_number_of_processes(
    augmentation: Augmentation,
) -> None:
    batch = torch.randint(0, 256, (7, 3, 6, 6), dtype=torch.uint8)
    made = []
    for count in (1, 3):
        shards = [Processes(rank, count).shard(7) for rank in range(count)]
        pieces = []
        for shard in shards:
            torch.manual_seed(1)
            pieces.append(augment(batch[shard.own], augmentation, shard))
        made.append(torch.cat(pieces))
    assert torch.equal(*made)
    assert not torch.equal(made[0], batch)


NET = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 25, 10)))
BYTES = 4 * (4 * 25 + 4 * 25 + 4 * 25 + 10)
"""Of the outputs of its four layers for one 5 × 5 image."""


def test_a_batch_is_halved_until_the_outputs_of_all_layers_fit() -> None:
    image = torch.zeros(1, 1, 5, 5)
    NET.train()
    assert activation_bytes(NET, image) == BYTES
    assert NET.training
    assert not any(module._forward_hooks for module in NET.modules())
    for_one = int(BYTES_PER_OUTPUT_BYTE * BYTES / SHARE)
    cases = [(256, 256 * for_one, 256), (256, 256 * for_one - 10, 128), (100, 26 * for_one, 25), (128, 0, 8), (5, 0, 5)]
    assert [fitting_batch(NET, image, batch, free) for batch, free, _ in cases] == [fits for *_, fits in cases]


def test_free_memory_is_known_or_guessed_and_shared_by_the_processes_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    assert free_bytes(cpu) > 10**6
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  5 kB\n")
        assert free_bytes(cpu) == 5 * 1024
        patch.setattr(Path, "read_text", lambda *_, **__: "")
        assert free_bytes(cpu) > 10**6
    monkeypatch.setattr("ricnet.machine.free_bytes", lambda _: 1000)
    assert [fits_memory(size) for size in (500, 501)] == [True, False]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert [fits_memory(size) for size in (100, 101)] == [True, False]


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.machine.free_bytes", lambda _: 100)
    monkeypatch.setattr(batches, "CHUNK", 7)


def assert_same(made: Dataset, expected: Dataset) -> None:
    for name in ("train", "val", "test"):
        mine, its = getattr(made, name), getattr(expected, name)
        assert torch.equal(mine.inputs, its.inputs), name
        assert mine.inputs.dtype == its.inputs.dtype
        assert torch.equal(mine.labels, its.labels), name
    assert (made.class_names, made.augmentation) == (expected.class_names, expected.augmentation)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:150])  # the header is whole


@pytest.mark.parametrize("parts", [("",), ("train", "test"), ("train", "val", "test")])
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("undivided", [False, True])
def test_images_on_the_disk_are_those_in_memory_and_damaged_ones_are_named_each_time(
    parts: tuple[str, ...],
    damaged: bool,
    undivided: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    folder = tmp_path / "pets"
    for number, part in enumerate(parts):
        write_folder(folder / part, rows=12 - number)
    path = sorted(folder.rglob("*.png"))[3]
    if damaged:
        cut_short(path)
    in_memory = load(folder, data_dir=tmp_path, undivided=undivided)
    request.getfixturevalue("no_memory")
    for _ in range(2):
        on_disk = load(folder, data_dir=tmp_path, undivided=undivided)
        assert_same(on_disk, in_memory)
        assert "memory" in on_disk.notes[0]
        assert on_disk.notes[1:] == in_memory.notes
        assert (path.name in on_disk.notes[-1]) == damaged
        assert len(list((tmp_path / "packed").glob("*.rows"))) == 1
        monkeypatch.setattr("ricnet.data.images.read_images", None)  # decoded once, and found again
    assert not list((tmp_path / "packed").glob(".*"))


def test_images_are_decoded_anew_when_they_change_or_their_file_was_cut_off(tmp_path: Path, no_memory: None) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    expected = load(folder, data_dir=tmp_path).train.inputs.clone()
    packed = next(iter((tmp_path / "packed").glob("*.rows")))
    content = packed.read_bytes()
    packed.unlink()  # what is mapped must not shrink
    packed.write_bytes(content[:-100])
    assert torch.equal(load(folder, data_dir=tmp_path).train.inputs, expected)
    assert packed.read_bytes() == content
    next(iter(folder.rglob("*.png"))).touch()
    load(folder, data_dir=tmp_path)
    assert len(list((tmp_path / "packed").glob("*.rows"))) == 2


def test_a_part_of_damaged_images_alone_is_refused(tmp_path: Path, no_memory: None) -> None:
    for part in ("train", "test"):
        write_folder(tmp_path / "pets" / part)
    for path in (tmp_path / "pets" / "test").rglob("*.png"):
        cut_short(path)
    with refusal("pets/test", "8 files"):
        load(tmp_path / "pets", data_dir=tmp_path)


def test_the_rows_are_on_the_disk_before_they_take_their_name(
    tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = write_folder(tmp_path / "pets", rows=8), list[str]()
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: seen.append("flushed") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *names: seen.append("named") or rename(*names))
    load(folder, data_dir=tmp_path)
    assert seen == ["flushed", "named", "flushed"]  # the file, then its folder
    cut_short(next(iter(folder.rglob("*.png"))))
    seen.clear()
    load(folder, data_dir=tmp_path)
    assert seen == 2 * ["flushed", "named", "flushed"]  # what is damaged, then the rows that are not


RNG, Y = np.random.default_rng(0), np.arange(40) % 2
KINDS = {
    "bytes": {"x": RNG.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), "y": Y},
    "fractions": {"x": RNG.random((40, 6, 6)), "y": Y},
    "features": {"x": np.asfortranarray(RNG.normal(size=(40, 5))), "y": Y},
    "given parts": {
        **{"x_train": RNG.integers(0, 256, (40, 3, 6, 6), dtype=np.uint8), "y_train": Y},
        **{"x_test": RNG.integers(0, 256, (9, 3, 6, 6)), "y_test": Y[:9]},
    },
}


@pytest.mark.parametrize("arrays", KINDS.values(), ids=KINDS)
def test_arrays_on_the_disk_are_those_in_memory_and_nothing_else_is_looked_at(
    arrays: dict[str, np.ndarray], tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither mapped, which an array of objects cannot be, nor read, which takes memory."""
    others = {"x_names": np.array([{}], dtype=object), "notes": np.zeros(10**5)}
    np.savez(tmp_path / "data.npz", **arrays, **others)
    in_memory = load(tmp_path / "data.npz", data_dir=tmp_path)
    request.getfixturevalue("no_memory")
    monkeypatch.setattr("ricnet.data.arrays.free_bytes", lambda _: 2000)  # not enough for the notes
    assert_same(load(tmp_path / "data.npz", data_dir=tmp_path), in_memory)


@pytest.mark.parametrize(
    ("save", "value", "named"),
    cases(
        {
            "compressed": (np.savez_compressed, 0, "numpy.savez_compressed"),
            "inf": (np.savez, np.inf, "inf in row 33, column 4"),
        }
    ),
)
def test_large_arrays_that_cannot_be_read_in_batches_are_refused(
    tmp_path: Path, save: Any, value: float, named: str, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros((40, 50))
    x[33, 4] = value
    monkeypatch.setattr("ricnet.data.arrays._BLOCK", 16)
    save(tmp_path / "my.npz", x=x, y=Y)
    with refusal("my.npz", named):
        load(tmp_path / "my.npz", data_dir=tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    (tmp_path / "file").touch()
    with refusal("file", "data_dir"):
        load(folder, data_dir=tmp_path / "file")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with refusal("0.0 GB", "data_dir"):
        load(folder, data_dir=tmp_path)


def test_files_are_mapped_not_read(tmp_path: Path) -> None:
    rows = torch.arange(24, dtype=torch.float32).view(4, 3, 2)
    (tmp_path / "some.rows").write_bytes(rows.numpy().tobytes())
    mapped = batches.map_rows(tmp_path / "some.rows", (3, 2), torch.float32)
    assert torch.equal(mapped, rows)
    assert str(tmp_path / "some.rows") in Path("/proc/self/maps").read_text() or not Path("/proc").exists()
    arrays = {
        "x": np.arange(24, dtype=np.float32).reshape(4, 6),
        "fortran": np.asfortranarray(np.arange(24).reshape(4, 6)),
        "a_longer_name": np.arange(7, dtype=np.uint8),
    }
    np.savez(tmp_path / "some.npz", **arrays, objects=np.array([{}], dtype=object))
    for name, array in arrays.items():
        found = map_array(tmp_path / "some.npz", name)
        assert isinstance(found, np.memmap)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
    with pytest.raises(ValueError, match="objects"):
        map_array(tmp_path / "some.npz", "objects")


def test_mixup_averages_inputs_and_labels_by_the_same_share() -> None:
    inputs = torch.arange(6, dtype=torch.uint8).view(3, 1, 1, 2)
    mixed, labels = mix(inputs, torch.tensor([0, 1, 1]), 3, 0.2, generator=torch.Generator().manual_seed(0))
    share = labels[0, 0]  # of the first example, whose counterpart is the last
    assert 0 < share < 1
    torch.testing.assert_close(labels.sum(1), torch.ones(3))
    torch.testing.assert_close(
        mixed[0].flatten(), share * torch.tensor([0.0, 1.0]) + (1 - share) * torch.tensor([4, 5.0])
    )
    assert mixed[1].flatten().tolist() == [2, 3]  # its own counterpart
    assert labels[1].tolist() == [0, 1, 0]
    assert (labels[:, 2] == 0).all()


def test_the_shares_of_mixup_are_beta_distributed() -> None:
    """Rows of the first half of the batch are mixed with rows of the other class."""
    inputs, labels = torch.zeros(20_000, 1), torch.arange(20_000) // 10_000

    def shares(alpha: float) -> Tensor:
        return mix(inputs, labels, 2, alpha, generator=torch.Generator().manual_seed(1))[1][:10_000, 0].double()

    for alpha in (0.2, 1.0):
        for level in (0.001, 0.1, 0.5, 0.9):
            assert float((shares(alpha) < level).double().mean()) == pytest.approx(
                beta.cdf(level, alpha, alpha), abs=0.015
            )
    assert shares(0.01).isfinite().all()
