from dataclasses import asdict, replace
from typing import Any

import pytest

from refusals import refusal
from ricnet.methods import METHODS, RIC
from ricnet.models.config import Optimization
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.recipes import (
    TYPICAL,
    Facts,
    by_rows,
    choose_method,
    default_oversize,
    even_batch,
    notices,
    possible_methods,
    preset,
    unwatched_table,
)

PHOTOS = Facts(rows=270, classes=5, side=128)
DIGITS = Facts(rows=1213, classes=10, side=8)
CIFAR = Facts(rows=45_000, classes=10, side=32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [2, 5, 142, 1437, 4999, 5000, 49_999, 50_000, 200_000, 2_000_000])
def test_tables_stop_by_validation_nll_for_every_method(rows: int, method: str) -> None:
    config = preset("fast", method, Facts(rows, 3, 0))
    settings = config.optimization
    assert (settings.select, settings.patience is not None, settings.average > 0) == ("nll", True, True)
    assert settings.batch_size <= rows
    assert (20 if rows < 200_001 else 5) <= settings.epochs <= (100 if rows < 20_000 else 20)
    assert getattr(config.method, "horizon", 1) <= 5


FROZEN = Facts(50_000, 3, 224, encoder="hf:x", freeze=True)


def planned(facts: Facts) -> tuple[int, float]:
    """Updates of a table, and the time per row: rows seen × steps × roll-outs × width², over rows."""
    config = preset("fast", None, facts)
    settings, method = config.optimization, config.method
    updates = settings.epochs * (facts.rows // settings.batch_size)
    steps = method.horizon * method.rollouts  # type: ignore[attr-defined]
    return updates, updates * settings.batch_size * steps * config.network.width**2 / facts.rows


@pytest.mark.parametrize("facts", [Facts(2, 3, 0), Facts(2, 10, 0), FROZEN, replace(FROZEN, classes=30)])
def test_the_time_per_row_never_rises_by_half_when_rows_grow_by_a_quarter(facts: Facts) -> None:
    """It rose 22-fold at 5,000 rows (3 classes), and 24-fold at 50,000 rows of features."""
    grid = [4_999, 49_999, *(round(100 * 1.02**power) for power in range(467))]
    assert max(grid) > 1_000_000
    for rows in grid:
        few, more = (replace(facts, rows=count) for count in (rows, round(1.25 * rows)))
        assert planned(more)[1] <= 1.5 * planned(few)[1], rows
        assert planned(few)[0] <= 8_000 or rows < 20_000


def test_the_recipe_of_tables_is_not_for_images_or_the_paper() -> None:
    table = preset("fast", None, replace(FROZEN, side=0, encoder=None, freeze=None))
    assert preset("fast", None, FROZEN).optimization == table.optimization
    assert preset("fast", None, Facts(1_000, 3, 8)).optimization.select == "calibrated"
    assert preset("paper", None, Facts(1_000, 3, 0)).optimization.select == "accuracy"


def test_values_between_two_numbers_of_rows_are_interpolated_in_logarithms() -> None:
    points = {100: 1.0, 10_000: 0.01}
    assert [by_rows(rows, points) for rows in (5, 100, 1_000, 10_000, 10**9)] == [1, 1, 0.1, 0.01, 0.01]


def test_texts_have_it_however_many_they_are() -> None:
    many, more = (preset("fast", None, Facts(rows, 3, 0, text=True)) for rows in (49_999, 200_000))
    assert (more.optimization.select, more.optimization.patience) == ("nll", many.optimization.patience)
    assert (more.method, more.network) == (many.method, many.network)


def test_a_table_without_rows_to_stop_by_ends_sooner() -> None:
    watched = preset("fast", None, Facts(700, 3, 0)).optimization
    assert unwatched_table(700)["epochs"] < watched.epochs / 3
    assert unwatched_table(50_000) == {}


def test_batches_leave_few_rows_over() -> None:
    """203 = 7 · 29 and 270 = 9 · 30 by hand; 4999 = 238 · 21 + 1, and no size divides it. Batches of 128 left 75 of 203
    unseen."""
    sizes = {203: 29, 270: 30, 64: 32, 33: 32, 20: 20, 2: 2, 4999: 21}
    assert {rows: even_batch(rows, 32) for rows in sizes} == sizes
    assert even_batch(203, 128) == 101
    for rows in range(2, 1_000, 7):
        size = even_batch(rows, 32)
        assert rows % size == min(rows % other for other in ([rows] if rows <= 32 else range(17, 33)))
        assert rows % size <= rows / 10


def test_few_images_get_even_batches_for_every_method() -> None:
    for method in METHODS:
        assert preset("fast", method, PHOTOS).optimization.batch_size == 30
        assert preset("fast", method, replace(PHOTOS, rows=203)).optimization.batch_size == 29


def test_a_cpu_gets_a_network_and_epochs_that_it_trains_in_minutes() -> None:
    """Measured on a busy machine: 1.5 ms an image of 28 pixels, 7 ms one of 128 (docs/archive/experiments.md)."""
    grey = Facts(rows=9_000, classes=10, side=28)
    small, narrow = EncoderOptions("whitened", width=0.25), EncoderOptions("resnet10", width=0.25, stem="original")
    many = replace(PHOTOS, rows=1_800, classes=10)
    for facts, network, most in ((grey, small, 200_000), (PHOTOS, narrow, 40_000), (many, narrow, 60_000)):
        on_cpu, on_gpu = (preset("fast", None, replace(facts, device=device)) for device in ("cpu", "cuda"))
        assert on_cpu.network == network
        assert on_cpu.network.width < on_gpu.network.width
        assert facts.rows * on_cpu.optimization.epochs <= most
        assert on_cpu.method == on_gpu.method


def test_small_images_on_a_cpu_are_whitened_where_that_was_measured() -> None:
    """Not very few images, larger or very narrow ones, exits, or an encoder that the user names."""
    facts = Facts(9_000, 10, 32, "cpu")
    assert facts.is_whitened
    assert replace(facts, shorter_side=9, encoder="auto").is_whitened
    for other in (
        {"rows": 999},
        {"side": 33},
        {"side": 16},
        {"shorter_side": 8},
        {"exits": True},
        {"encoder": "conv"},
        {"device": "cuda"},
    ):
        assert not replace(facts, **other).is_whitened
    given = {"epochs": 10, "batch_size": 100}
    assert preset("fast", None, facts, given).optimization.average == pytest.approx(1 - 10 / 900)


def test_a_named_encoder_keeps_its_width() -> None:
    for facts in (PHOTOS, replace(PHOTOS, device="cpu"), Facts(9_000, 10, 28, "cpu")):
        chosen = preset("fast", None, facts).network
        assert preset("fast", None, replace(facts, encoder="resnet34")).network == EncoderOptions("resnet34")
        for same in ("auto", chosen.encoder):
            assert preset("fast", None, replace(facts, encoder=same)).network == chosen


@pytest.mark.parametrize("side", [0, 8, 16])
def test_tables_and_tiny_images_are_small_enough_for_any_device(side: int) -> None:
    for rows in (90, 1_213, 9_000):
        facts = Facts(rows=rows, classes=10, side=side)
        assert preset("fast", None, facts) == preset("fast", None, replace(facts, device="cpu"))
    assert preset("paper", None, PHOTOS) == preset("paper", None, replace(PHOTOS, device="cpu"))


@pytest.mark.parametrize(
    ("name", "method", "named"),
    [
        ("slow", "ric", ("preset", "slow")),
        ("papr", "ric", ("preset", "papr", "mean paper")),
        ("fast", "rnn", ("method", "rnn", "act, anytime, pond")),
        ("fast", "Supervized", ("method", "Supervized", "mean supervised")),
        ("snapshots", "act", ("preset", "snapshots", "method", "act")),
    ],
)
def test_errors_about_unknown_names_list_known_ones(name: str, method: str, named: tuple[str, ...]) -> None:
    with refusal(*named):
        preset(name, method, TYPICAL)


TEXTS = Facts(3_000, 3, 0, text=True)


@pytest.mark.parametrize(
    ("name", "facts", "method"),
    [
        ("fast", TYPICAL, "ric-on-policy"),
        ("fast", Facts(3_000, 3, 0), "ric-on-policy"),
        ("fast", TEXTS, "ric"),
        ("fast", replace(TEXTS, encoder="hf:bert"), "ric"),
        ("fast", replace(TEXTS, encoder="hf:bert", freeze=False), "ric-on-policy"),
        ("fast", replace(TYPICAL, rows=300, encoder="timm:resnet50"), "ric-on-policy"),
        ("fast", replace(TEXTS, exits=True), "ric-closed-form"),
        ("fast", replace(TYPICAL, exits=True), "ric-closed-form"),
        ("paper", TYPICAL, "ric"),
        ("paper", TEXTS, "ric"),
        ("closed-form", TEXTS, "ric-closed-form"),
    ],
)
def test_the_default_method_depends_on_the_data(name: str, facts: Facts, method: str) -> None:
    assert preset(name, None, facts).method.name == choose_method(name, None, facts) == method
    assert method in possible_methods(name, None, facts.exits)
    assert choose_method(name, "ric", facts) in ("ric", method)
    if name == "fast":
        assert bool(notices("ric", name, facts)) == (method != "ric")


def test_methods_that_unread_data_may_choose() -> None:
    assert possible_methods("fast", None, False) == ["ric-on-policy", "ric"]
    assert possible_methods("fast", None, True) == ["ric-closed-form"]
    assert possible_methods("paper", None, False) == ["ric"]
    assert possible_methods("fast", "act", False) == ["act"]


def has(settings: Any, **expected: Any) -> None:
    assert {name: getattr(settings, name) for name in expected} == pytest.approx(expected)


def test_paper_preset_is_the_papers() -> None:
    config = preset("paper", None, CIFAR)
    assert config.network == EncoderOptions("resnet34", activation="relu")
    assert config.optimization == Optimization(
        epochs=2000, batch_size=256, optimizer="adamw", lr=3e-4, weight_decay=1e-3, schedule="constant", clip=0.5
    )
    has(config.method, horizon=20, gamma=0.8, passes_per_snapshot=5, rollouts=1, c_min=1, c_max=10, alpha_floor=0.01)
    has(config.method, epsilon=0.2, gae_lambda=0.95, value_coef=0.5, entropy_coef=0, log_ratio_clamp=10)
    has(config.method, reward_floor=None, updates_per_snapshot=None, c_range="sigmoid", readout="mean")
    assert preset("paper", "supervised", CIFAR).optimization.epochs == 300


def test_images_choose_the_epoch_by_nll_after_temperature_and_tables_by_nll() -> None:
    assert preset("fast", "anytime", DIGITS).optimization.select == "calibrated"
    assert preset("fast", "anytime", replace(DIGITS, exits=True)).optimization.select == "calibrated"
    assert preset("fast", "anytime", Facts(1_000, 3, 0)).optimization.select == "nll"


def test_fast_preset_agrees_with_the_docs() -> None:
    config, few = preset("fast", None, CIFAR), preset("fast", None, DIGITS)
    own = {"clip": None, "cutout": 8, "average": 0.999, "select": "calibrated"}
    assert config.optimization == Optimization(
        epochs=120, batch_size=512, optimizer="adamw", lr=4e-3, weight_decay=0.5, warmup_epochs=2.0, **own
    )
    assert config.optimization.schedule == "cosine"
    table = preset("fast", None, Facts(20_000, 10, 0)).optimization
    has(table, epochs=20, batch_size=128, lr=4e-3, weight_decay=0.2, average=0.99, select="nll", patience=15)
    has(config.method, name="ric-on-policy", rollouts=4, gae_lambda=0, label_baseline=True)
    has(config.method, reward_floor=None, c_max=100, alpha_floor=0.1, head_gain=1)
    assert config.method.credit == "marginal"
    has(few.optimization, epochs=60, lr=3e-3, clip=0.5, cutout=0)
    has(few.method, name="ric-on-policy", rollouts=2, c_max=10, alpha_floor=0.01, head_gain=0.01)
    assert few.method.credit == "joint"


def test_fast_preset_scales_with_rows_and_classes() -> None:
    hundred = replace(CIFAR, classes=100)
    small, large = preset("fast", None, DIGITS), preset("fast", None, hundred)
    assert (small.optimization.batch_size, large.optimization.batch_size) == (128, 512)
    has(preset("fast", None, replace(DIGITS, classes=20)).method, credit="joint", name="ric-on-policy", c_max=20)
    has(preset("fast", None, replace(DIGITS, classes=21)).method, credit="marginal", c_max=210)
    table = replace(CIFAR, rows=4_999, side=0, classes=5)
    has(preset("fast", None, table).method, credit="joint", c_max=10, rollouts=2)
    has(preset("fast", None, replace(table, rows=5_000)).method, credit="marginal", c_max=100, rollouts=2, horizon=4)
    has(preset("fast", None, replace(table, rows=20_000, classes=6)).method, rollouts=2, horizon=3)
    has(preset("fast", None, replace(table, classes=6)).method, credit="marginal", c_max=100, rollouts=3, gae_lambda=0)
    has(preset("fast", None, replace(table, classes=6, freeze=True)).method, credit="joint", rollouts=8)
    has(large.method, name="ric-on-policy", credit="marginal", rollouts=4, gae_lambda=0)
    has(large.method, c_max=1000, alpha_floor=0.1, head_gain=1)
    assert preset("on-policy", "ric", hundred).method == large.method
    has(preset("closed-form", "ric", hundred).method, name="ric-closed-form", c_max=1000)
    short = preset("fast", "supervised", replace(CIFAR, rows=5_120)).optimization
    assert short.average == pytest.approx(1 - 1 / 120)  # a tenth of 1,200 updates
    changes: list[tuple[dict[str, Any], int]] = [  # with the updates of a tenth of the run
        ({"epochs": 10}, 87),  # 87 batches of 512 in 45,000 rows
        ({"epochs": 10, "batch_size": 128}, 351),
        ({"epochs": 10, "batch_size": 50_000}, 1),
        ({"epochs": 5, "batch_size": 50_000}, 1),
        ({"epochs": 500}, 1_000),
    ]
    for given, span in changes:
        followed = preset("fast", "supervised", CIFAR, given).optimization
        assert followed.average == pytest.approx(1 - 1 / span), given
    assert (small.network.encoder, large.network.encoder) == ("auto", "auto")
    has(preset("fast", None, Facts(rows=500, classes=3, side=64)).network, encoder="resnet10", width=0.5)
    tiny = preset("fast", None, Facts(rows=90, classes=2, side=8)).optimization
    assert tiny.batch_size == 90
    assert tiny.epochs * (90 // tiny.batch_size) >= 500


def test_each_preset_of_ric_makes_the_algorithm_it_is_named_for() -> None:
    titles = {
        "fast": "RIC, on-policy, marginal credit",
        "on-policy": "RIC, on-policy, marginal credit",
        "snapshots": "RIC",
        "closed-form": "RIC, closed form",
        "paper": "RIC",
    }
    made = {name: preset(name, None, CIFAR).method for name in titles}
    assert {name: method.title_of(asdict(method)) for name, method in made.items()} == titles
    assert made["snapshots"] == preset("fast", "ric", CIFAR).method == preset("snapshots", "ric", CIFAR).method
    assert made["paper"] == RIC()
    has(made["snapshots"], updates_per_snapshot=2, epsilon=0.5, gae_lambda=0, label_baseline=True, reward_floor=None)
    has(made["snapshots"], credit="joint", c_max=10, alpha_floor=0.01, head_gain=0.01, rollouts=4)
    has(preset("snapshots", "ric", replace(CIFAR, classes=100)).method, credit="marginal", c_max=1000)
    has(made["closed-form"], c_max=100, alpha_floor=0.1, head_gain=1)
    assert preset("snapshots", "ric", CIFAR).optimization.clip == 0.5


def test_few_photographs_are_learned_from_as_many_and_few_tiny_images_are_not() -> None:
    has(preset("fast", None, PHOTOS).method, rollouts=4, gae_lambda=0, credit="marginal", c_max=100)
    assert preset("fast", None, PHOTOS).method == preset("fast", None, replace(PHOTOS, rows=5_000)).method
    has(preset("fast", None, DIGITS).method, rollouts=2, gae_lambda=0.95)
    has(preset("fast", None, replace(PHOTOS, exits=True)).method, name="ric-closed-form")
    assert preset("fast", "supervised", PHOTOS).method == METHODS["supervised"]()


def test_few_features_have_their_own_recipe() -> None:
    few = replace(PHOTOS, encoder="timm:resnet50", device="cpu")
    many, table = replace(few, rows=5_000), Facts(rows=270, classes=5, side=0)
    config = preset("fast", None, few)
    assert config.network == EncoderOptions("timm:resnet50", width=0.5, freeze=True)
    assert config.optimization == replace(preset("fast", None, table).optimization, lr=1e-3)
    assert preset("fast", "supervised", few).optimization == config.optimization
    has(config.method, name="ric-on-policy", rollouts=8, gae_lambda=0, horizon=5)
    has(config.method, head_gain=1, alpha_floor=0.1, c_max=100, label_baseline=True)
    has(preset("on-policy", "ric", few).method, rollouts=2, head_gain=0.01)
    has(preset("fast", None, replace(few, classes=100)).method, credit="marginal", rollouts=8, c_max=1000)
    has(preset("fast", None, many).method, rollouts=3, head_gain=1, c_max=100, credit="marginal", horizon=4)
    has(preset("fast", None, many).optimization, lr=1.74e-3)


JOINT = {"rollouts": 2, "gae_lambda": 0.95, "credit": "joint", "reward_floor": 1e-4, "label_baseline": True}
MARGINAL = {"rollouts": 4, "gae_lambda": 0.0, "credit": "marginal", "reward_floor": None, "label_baseline": True}
SHORT = {"updates_per_snapshot": 2, "epsilon": 0.5}
CLOSED = {"rollouts": 2, "gae_lambda": 0.95, "label_baseline": True}
UNIFORM = {"step_weight": "uniform", "value_coef": 0.5}
FEATURES = Facts(rows=270, classes=5, side=128, encoder="timm:resnet50", freeze=True)
ROWS: dict[str, tuple[str, Facts, dict[str, Any], tuple[float, float, float] | None]] = {
    # method, data, settings, (c_max, alpha_floor, head_gain)
    "features": ("ric-on-policy", FEATURES, JOINT | {"rollouts": 8, "gae_lambda": 0.0}, (100, 0.1, 1)),
    "features, 21 classes": ("ric-on-policy", replace(FEATURES, classes=21), MARGINAL | {"rollouts": 8}, (210, 0.1, 1)),
    "many features": ("ric-on-policy", replace(FEATURES, rows=5_000), MARGINAL | {"rollouts": 3}, (100, 0.1, 1)),
    "few, 21 classes": ("ric-on-policy", Facts(4_999, 21, 8), MARGINAL, (210, 0.1, 1)),
    "exits": ("ric-on-policy", Facts(270, 7, 0, exits=True), JOINT, (10, 0.1 / 7, 0.01)),
    "exits, photographs": ("ric-on-policy", Facts(270, 7, 128, exits=True), JOINT, (10, 0.1 / 7, 0.01)),
    "exits, 21 classes": ("ric-on-policy", Facts(270, 21, 0, exits=True), MARGINAL, (210, 0.1, 1)),
    "exits, many rows": ("ric-on-policy", Facts(5_000, 7, 0, exits=True), MARGINAL, (100, 0.1, 1)),
    "photographs": ("ric-on-policy", Facts(270, 5, 17), MARGINAL, (100, 0.1, 1)),
    "table, 6 classes": ("ric-on-policy", Facts(270, 6, 0), MARGINAL, (100, 0.1, 1)),
    "table, 5 classes": ("ric-on-policy", Facts(270, 5, 0), JOINT, (10, 0.02, 0.01)),
    "tiny images": ("ric-on-policy", Facts(270, 12, 16), JOINT, (12, 0.1 / 12, 0.01)),
    "many rows": ("ric-on-policy", Facts(5_000, 5, 16), MARGINAL, (100, 0.1, 1)),
    "Algorithm 1, 21 classes": ("ric", Facts(270, 21, 0), MARGINAL | SHORT, (210, 0.1, 1)),
    "Algorithm 1, table, 6 classes": ("ric", Facts(270, 6, 0), MARGINAL | SHORT, (100, 0.1, 1)),
    "Algorithm 1, table, 5 classes": ("ric", Facts(270, 5, 0), JOINT | SHORT, (10, 0.02, 0.01)),
    "Algorithm 1, texts": ("ric", replace(TEXTS, classes=20), MARGINAL | SHORT, (200, 0.1, 1)),
    "Algorithm 1, exits": ("ric", Facts(270, 6, 0, exits=True), JOINT | SHORT, (10, 0.1 / 6, 0.01)),
    "Algorithm 1, few tiny images": ("ric", Facts(270, 6, 16), JOINT | SHORT, (10, 0.1 / 6, 0.01)),
    "Algorithm 1": ("ric", Facts(5_000, 6, 16), MARGINAL | SHORT | {"credit": "joint"}, (10, 0.1 / 6, 0.01)),
    "table, 5,000 rows": ("ric-on-policy", Facts(5_000, 6, 0), MARGINAL | {"rollouts": 3, "horizon": 4}, (100, 0.1, 1)),
    "table, 8,000 rows": ("ric-on-policy", Facts(8_000, 6, 0), MARGINAL | {"rollouts": 2, "horizon": 3}, (100, 0.1, 1)),
    "closed form": ("ric-closed-form", Facts(270, 3, 0), CLOSED, (100, 0.1, 1)),
    "closed form, exits": ("ric-closed-form", Facts(60_000, 20, 32, exits=True), CLOSED, (200, 0.1, 1)),
    "anytime": ("anytime", Facts(270, 3, 0), {"step_weight": "geometric", "value_coef": 0.0}, None),
    "anytime, exits": ("anytime", Facts(270, 3, 0, exits=True), UNIFORM, None),
}


@pytest.mark.parametrize(("method", "facts", "settings", "spread"), ROWS.values(), ids=ROWS)
def test_each_row_of_the_table_of_methods(
    method: str, facts: Facts, settings: dict[str, Any], spread: tuple[float, float, float] | None
) -> None:
    made = preset("fast", method, facts).method
    has(made, name=method, **settings)
    if spread is not None:
        has(made, **dict(zip(("c_max", "alpha_floor", "head_gain"), spread, strict=True)))


def plan(**changes: Any) -> Optimization:
    """What no recipe leaves out, with the changes."""
    return Optimization(**{"lr": 4e-3, "weight_decay": 0.5, "select": "calibrated", "clip": None} | changes)


SMALL_TABLE = {"lr": 4e-3, "weight_decay": 1.0, "average": 0.98, "select": "nll", "patience": 15, "clip": 0.5}
LARGE_TABLE = SMALL_TABLE | {"weight_decay": 0.2, "average": 0.99}
FEW_IMAGES = {"lr": 3e-3, "average": 0.98, "clip": 0.5}
ON_A_CPU = {"warmup_epochs": 1.0, "average": 0.99}
LR_OF_FEW = {"lr": 3e-3, "weight_decay": 0.05, "clip": 0.5}
PLANS = {
    "photographs": (PHOTOS, plan(epochs=89, batch_size=30, **FEW_IMAGES)),  # 800 updates of 9 an epoch
    "60 photographs": (replace(PHOTOS, rows=60), plan(epochs=100, batch_size=30, **FEW_IMAGES)),
    "4,000 photographs": (replace(PHOTOS, rows=4_000), plan(epochs=30, batch_size=32, **FEW_IMAGES)),
    "small images on a CPU": (
        Facts(9_000, 10, 28, "cpu"),
        plan(epochs=12, batch_size=64, optimizer="muon", warmup_epochs=1.0, average=1 - 10 / (12 * 140)),
    ),
    "1,000 small images on a CPU": (
        Facts(1_000, 10, 28, "cpu"),
        plan(epochs=30, batch_size=64, optimizer="muon", warmup_epochs=1.0, average=1 - 10 / (30 * 15)),
    ),
    "60,000 small images on a CPU": (
        Facts(60_000, 10, 28, "cpu"),
        plan(epochs=5, batch_size=64, optimizer="muon", warmup_epochs=1.0, average=1 - 10 / (5 * 937)),
    ),
    "images on a CPU": (Facts(9_000, 10, 33, "cpu"), plan(epochs=20, batch_size=60, **ON_A_CPU)),
    "many images on a CPU": (Facts(60_000, 10, 33, "cpu"), plan(epochs=8, batch_size=60, **ON_A_CPU)),
    "tiny images": (DIGITS, plan(epochs=60, batch_size=128, **LR_OF_FEW)),
    "few tiny images": (Facts(500, 3, 8), plan(epochs=125, batch_size=125, **LR_OF_FEW)),  # 500 updates of 4 an epoch
    "many tiny images": (
        Facts(60_000, 10, 16),
        plan(epochs=120, batch_size=512, warmup_epochs=2.0, average=0.999),
    ),
    "700 rows": (Facts(700, 3, 0), plan(epochs=100, batch_size=50, **SMALL_TABLE)),  # 14 batches
    "2,000 rows": (Facts(2_000, 3, 0), plan(epochs=80, batch_size=64, **SMALL_TABLE)),
    "5,000 rows": (
        Facts(5_000, 3, 0),
        plan(epochs=60, batch_size=95, **SMALL_TABLE | {"weight_decay": 0.4, "average": 0.986}),
    ),
    "20,000 rows": (Facts(20_000, 3, 0), plan(epochs=20, batch_size=128, **LARGE_TABLE)),
    "200,000 rows": (Facts(200_000, 3, 0), plan(epochs=20, batch_size=500, **LARGE_TABLE | {"patience": 5})),
    "2,000,000 rows": (Facts(2_000_000, 3, 0), plan(epochs=5, batch_size=1250, **LARGE_TABLE | {"patience": 5})),
    "200,000 texts": (
        Facts(200_000, 3, 0, text=True),
        plan(epochs=20, batch_size=128, **LARGE_TABLE),
    ),
    "3,000 texts": (
        Facts(3_000, 3, 0, text=True),
        plan(epochs=57, batch_size=64, **SMALL_TABLE | {"weight_decay": 0.2}),
    ),
    "3,000 texts, a pretrained encoder that is trained too": (
        Facts(3_000, 3, 0, text=True, encoder="hf:bert", freeze=False),
        plan(epochs=22, batch_size=64, **SMALL_TABLE),
    ),
    "features": (FEATURES, plan(epochs=100, batch_size=54, **SMALL_TABLE | {"lr": 1e-3})),  # 270 = 5 · 54
}


@pytest.mark.parametrize(("facts", "expected"), PLANS.values(), ids=PLANS)
def test_epochs_batches_and_rates_by_hand(facts: Facts, expected: Optimization) -> None:
    assert preset("fast", "supervised", facts).optimization == expected
    assert preset("fast", "ric", facts).optimization == replace(expected, clip=0.5)


def test_with_exits_the_epoch_is_chosen_after_a_temperature() -> None:
    assert preset("fast", "anytime", Facts(1_000, 3, 0, exits=True)).optimization.select == "calibrated"


def test_a_pretrained_encoder_is_frozen_for_few_rows_and_on_a_cpu_and_copies_count_as_rows() -> None:
    for rows, device, frozen in ((270, "cuda", True), (5_000, "cuda", False), (5_000, "cpu", True)):
        facts = Facts(rows, 5, 64, device, encoder="timm:resnet50")
        assert preset("fast", None, facts).network.freeze is frozen
    images = Facts(3_000, 5, 64, "cpu", encoder="timm:resnet50")
    has(preset("fast", None, images).method, credit="joint", rollouts=8)
    has(preset("fast", None, replace(images, copies=1)).method, credit="marginal", rollouts=2)


def test_the_paper_takes_no_batch_larger_than_the_data_and_marginal_credit_its_range() -> None:
    few = Facts(100, 5, 0)
    assert preset("paper", None, few).optimization.batch_size == 100
    has(preset("paper", None, few).method, c_max=10, alpha_floor=0.01, head_gain=0.01)
    has(preset("paper", None, few, {"credit": "marginal"}).method, c_max=100, alpha_floor=0.1, head_gain=1)


WIDE, NARROW = {"c_max": 100, "alpha_floor": 0.1, "head_gain": 1}, {"c_max": 10, "alpha_floor": 0.01, "head_gain": 0.01}


@pytest.mark.parametrize(
    ("method", "facts", "given", "expected"),
    [
        ("ric-on-policy", CIFAR, {"credit": "joint"}, {"credit": "joint", "rollouts": 4} | NARROW),
        ("ric-on-policy", CIFAR, {"credit": "marginal"}, {"credit": "marginal", "rollouts": 4} | WIDE),
        ("ric-on-policy", CIFAR, {"head": "logistic-normal"}, {"credit": "joint"} | NARROW),
        ("ric-on-policy", CIFAR, {"objective": "expected"}, {"credit": "joint"} | WIDE),
        ("ric-on-policy", DIGITS, {"credit": "marginal"}, {"credit": "marginal", "reward_floor": None} | WIDE),
        ("ric-on-policy", DIGITS, {"rollouts": 1}, {"label_baseline": False}),
        ("ric-on-policy", DIGITS, {"rollouts": 2}, {"label_baseline": True}),
        ("ric", DIGITS, {"passes_per_snapshot": 3}, {"updates_per_snapshot": None}),
    ],
)
def test_settings_that_follow_the_users(
    method: str, facts: Facts, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    has(preset("fast", method, facts, given).method, **expected)


def test_names_that_mean_something_else_now_are_explained_once() -> None:
    assert notices(None, "fast") == notices("ric-on-policy", "fast") == notices("ric", "paper") == []
    (alias,) = notices(None, "closed-form")
    assert "ric-closed-form" in alias
    (algorithm_1,) = notices("ric", "fast")
    assert "Algorithm 1" in algorithm_1
    assert "ric-on-policy" in algorithm_1


def test_networks_by_hand() -> None:
    widths = {2_000: 0.5, 5_000: 0.659, 20_000: 1.0}
    for rows, width in widths.items():
        assert preset("fast", None, Facts(rows, 3, 0)).network == EncoderOptions("tabular", width=width)
    assert preset("fast", None, Facts(270, 3, 32)).network == EncoderOptions("resnet10", width=0.5)
    assert preset("fast", None, Facts(270, 3, 32, "cpu")).network == EncoderOptions("conv", width=0.5)
    on_cpu = EncoderOptions("resnet10", width=0.25, stem="original")
    assert preset("fast", None, Facts(270, 3, 33, "cpu")).network == on_cpu


def test_a_table_without_validation_rows_learns_for_a_hundred_updates() -> None:
    assert unwatched_table(700) == {"epochs": 20}
    assert unwatched_table(130) == {"epochs": 50}


@pytest.mark.parametrize(
    ("preset_name", "changes", "chosen"),
    [
        ("fast", {}, {"oversize": None}),
        ("fast", {"oversize": 1.5}, {}),
        ("paper", {}, {}),
        ("fast", {"freeze": True}, {}),
        ("fast", {"augment": False}, {}),
        ("fast", {"crop_area": 1.0}, {}),
        ("fast", {"crop_area": 0.2}, {"oversize": None}),
        ("fast", {"encoder": "hf:some/encoder"}, {}),
        ("fast", {"encoder": "resnet18"}, {"oversize": None}),
    ],
)
def test_fast_stores_photographs_larger_unless_they_are_read_whole(
    preset_name: str, changes: dict[str, Any], chosen: dict[str, Any]
) -> None:
    assert default_oversize(preset_name, changes) == chosen
