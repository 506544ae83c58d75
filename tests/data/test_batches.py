import pytest
import torch
import torch.nn.functional as F

from ricnet.data import Augmentation, augment, epoch_order
from ricnet.processes import Processes, Share

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


def test_images_of_a_batch_are_not_mixed_up() -> None:
    images = torch.arange(1, 9, dtype=torch.uint8)[:, None, None, None].expand(8, 3, 9, 9)
    made = augment(images, Augmentation(4, True))
    assert torch.equal(made.amax((1, 2, 3)), images[:, 0, 0, 0])


def test_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    made = augment(IMAGE.expand(4000, -1, -1, -1), Augmentation(flip=True))
    assert (made == IMAGE).all((1, 2, 3)).double().mean() == pytest.approx(0.5, abs=0.04)


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


def test_without_augmentation_the_same_tensor_comes_back() -> None:
    batch = IMAGE[None]
    assert augment(batch, Augmentation()) is batch


def test_augmentation_follows_the_default_generator() -> None:
    batch = IMAGE.expand(64, -1, -1, -1)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(augment(batch, Augmentation(2, True)))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_orders_are_permutations_and_all_different() -> None:
    orders = {(seed, epoch): epoch_order(50, seed, epoch) for seed in range(6) for epoch in range(6)}
    for order in orders.values():
        assert torch.equal(order.sort().values, torch.arange(50))
    assert len({tuple(order.tolist()) for order in orders.values()}) == 36


def test_an_order_depends_on_nothing_else() -> None:
    torch.manual_seed(1)
    first = epoch_order(30, 3, 5)
    torch.manual_seed(2)
    assert torch.equal(first, epoch_order(30, 3, 5))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_augmentation_on_the_gpu_never_waits_for_the_host() -> None:
    batch = IMAGE.expand(2000, -1, -1, -1).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = augment(batch, Augmentation(2, True))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {image.numpy().tobytes() for image in made.cpu()} == windows(2, True)


def test_what_happens_to_an_image_does_not_depend_on_how_many_processes_share_the_batch() -> None:
    batch = torch.randint(0, 256, (7, 3, 6, 6), dtype=torch.uint8)
    made = []
    for count in (1, 3):
        shares = [Share(7, Processes(rank, count)) for rank in range(count)]
        pieces = []
        for share in shares:
            torch.manual_seed(1)
            pieces.append(augment(share.mine(batch, 0), Augmentation(2, True, cutout=3), share))
        made.append(torch.cat(pieces))
    assert torch.equal(*made)
    assert not torch.equal(made[0], batch)
