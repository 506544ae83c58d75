import pytest

from ricnet.errors import RicnetError
from ricnet.training.config import Optimization
from ricnet.training.presets import TYPICAL, Facts, preset, unwatched_table


@pytest.mark.parametrize("method", ["ric", "supervised", "anytime", "act", "pondernet"])
@pytest.mark.parametrize("rows", [2, 5, 142, 1437, 4999])
def test_small_tables_stop_by_validation_nll_whatever_the_method(rows: int, method: str) -> None:
    config = preset("fast", method, Facts(rows, 3, 0))
    settings = config.optimization
    assert (settings.select, settings.patience is not None, settings.average > 0) == ("nll", True, True)
    assert settings.batch_size <= rows
    assert 20 <= settings.epochs <= 100
    assert not getattr(config.method, "exact_gain", False)
    assert getattr(config.method, "horizon", 1) <= 5


def test_above_5000_rows_and_for_images_nothing_changes() -> None:
    assert preset("fast", "ric", Facts(5_000, 3, 0)).optimization == Optimization(epochs=120, lr=2e-3, clip=None)
    assert preset("fast", "ric", Facts(1_000, 3, 8)).optimization.select == "accuracy"
    assert preset("paper", "ric", Facts(1_000, 3, 0)).optimization.select == "accuracy"


def test_a_table_without_rows_to_stop_by_ends_sooner() -> None:
    watched = preset("fast", "ric", Facts(700, 3, 0)).optimization
    assert unwatched_table(700)["epochs"] < watched.epochs / 3
    assert unwatched_table(5_000) == {}


def test_an_unknown_name_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(RicnetError, match="--method Supervized is unknown; did you mean supervised"):
        preset("fast", "Supervized", TYPICAL)
    with pytest.raises(RicnetError, match="--preset papr is unknown; did you mean paper"):
        preset("papr", "ric", TYPICAL)
