from dataclasses import replace

import pytest

from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.config import Optimization
from ricnet.training.presets import TYPICAL, Facts, even_batch, preset, unwatched_table

PHOTOS = Facts(rows=270, classes=5, side=128)


@pytest.mark.parametrize("method", ["ric", "supervised", "anytime", "act", "pondernet"])
@pytest.mark.parametrize("rows", [2, 5, 142, 1437, 4999, 5000, 49_999])
def test_small_tables_stop_by_validation_nll_whatever_the_method(rows: int, method: str) -> None:
    config = preset("fast", method, Facts(rows, 3, 0))
    settings = config.optimization
    assert (settings.select, settings.patience is not None, settings.average > 0) == ("nll", True, True)
    assert settings.batch_size <= rows
    assert 20 <= settings.epochs <= 100
    assert not getattr(config.method, "exact_gain", False)
    assert getattr(config.method, "horizon", 1) <= 5


def test_the_recipe_is_for_tables_below_50000_rows_and_for_fast() -> None:
    assert preset("fast", "ric", Facts(50_000, 3, 0)).optimization == Optimization(epochs=120, lr=2e-3, clip=None)
    assert preset("fast", "ric", Facts(1_000, 3, 8)).optimization.select == "accuracy"
    assert preset("paper", "ric", Facts(1_000, 3, 0)).optimization.select == "accuracy"


def test_a_table_without_rows_to_stop_by_ends_sooner() -> None:
    watched = preset("fast", "ric", Facts(700, 3, 0)).optimization
    assert unwatched_table(700)["epochs"] < watched.epochs / 3
    assert unwatched_table(50_000) == {}


@pytest.mark.parametrize(
    ("rows", "most", "size"),
    [
        (203, 32, 29),
        (270, 32, 30),
        (64, 32, 32),
        (33, 32, 32),
        (20, 32, 20),
        (2, 32, 2),
        (4999, 32, 21),
        (203, 128, 101),
    ],
)
def test_batches_leave_few_rows_over(rows: int, most: int, size: int) -> None:
    """203 = 7 · 29 and 270 = 9 · 30 by hand; 4999 = 238 · 21 + 1, and no size divides it."""
    assert even_batch(rows, most) == size


@pytest.mark.parametrize("rows", range(2, 1_000, 7))
def test_no_epoch_leaves_many_of_few_rows_unseen(rows: int) -> None:
    """Batches of 128 left 75 of 203 unseen."""
    size = even_batch(rows, 32)
    assert rows % size == min(rows % other for other in ([rows] if rows <= 32 else range(17, 33)))
    assert rows % size <= rows / 10


def test_few_images_get_batches_that_divide_them_whatever_the_method() -> None:
    for method in METHODS:
        assert preset("fast", method, PHOTOS).optimization.batch_size == 30
        assert preset("fast", method, replace(PHOTOS, rows=203)).optimization.batch_size == 29


def test_a_cpu_gets_a_network_and_epochs_that_it_trains_in_minutes() -> None:
    """Measured on a busy machine: 1.5 ms an image of 28 pixels, 7 ms one of 128 (docs/experiments.md)."""
    grey = Facts(rows=9_000, classes=10, side=28)
    small, narrow = EncoderOptions("conv", width=0.5), EncoderOptions("resnet10", width=0.25, stem="original")
    many = replace(PHOTOS, rows=1_800, classes=10)
    for facts, network, most in ((grey, small, 200_000), (PHOTOS, narrow, 40_000), (many, narrow, 60_000)):
        on_cpu, on_gpu = (preset("fast", "ric", replace(facts, device=device)) for device in ("cpu", "cuda"))
        assert on_cpu.network == network
        assert on_cpu.network.width < on_gpu.network.width
        assert facts.rows * on_cpu.optimization.epochs <= most
        assert on_cpu.method == on_gpu.method


def test_a_network_that_is_named_comes_at_its_own_width() -> None:
    for facts in (PHOTOS, replace(PHOTOS, device="cpu"), Facts(9_000, 10, 28, "cpu")):
        chosen = preset("fast", "ric", facts).network
        assert preset("fast", "ric", replace(facts, encoder="resnet34")).network == EncoderOptions("resnet34")
        for same in ("auto", chosen.encoder):
            assert preset("fast", "ric", replace(facts, encoder=same)).network == chosen


@pytest.mark.parametrize("side", [0, 8, 16])
def test_tables_and_tiny_images_are_small_enough_for_any_device(side: int) -> None:
    for rows in (90, 1_213, 9_000):
        facts = Facts(rows=rows, classes=10, side=side)
        assert preset("fast", "ric", facts) == preset("fast", "ric", replace(facts, device="cpu"))
    assert preset("paper", "ric", PHOTOS) == preset("paper", "ric", replace(PHOTOS, device="cpu"))


def test_an_unknown_name_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(RicnetError, match="--method Supervized is unknown; did you mean supervised"):
        preset("fast", "Supervized", TYPICAL)
    with pytest.raises(RicnetError, match="--preset papr is unknown; did you mean paper"):
        preset("papr", "ric", TYPICAL)
