import json
from dataclasses import asdict, replace

import pytest

from ricnet.errors import RicnetError
from ricnet.methods import METHODS, RIC
from ricnet.training.config import Config, Optimization, from_json, to_json
from ricnet.training.presets import Facts, preset

DIGITS = Facts(rows=1213, classes=10, side=8)
CIFAR = Facts(rows=45_000, classes=10, side=32)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("name", ["fast", "paper"])
def test_a_configuration_survives_its_json(name: str, method: str) -> None:
    config = replace(preset(name, method, CIFAR), seed=7, resolution=64)
    assert from_json(json.loads(json.dumps(to_json(config))), "config.json") == config


def test_a_whole_number_may_stand_where_any_number_may() -> None:
    entry = to_json(preset("fast", "ric", CIFAR))
    entry["optimization"] |= {"warmup_epochs": 3, "clip": 1, "patience": 5}
    settings = from_json(entry, "config.json").optimization
    assert [type(value) for value in (settings.warmup_epochs, settings.clip, settings.patience)] == [float, float, int]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("network", "encoder"), 3, "encoder cannot be 3"),
        (("optimization", "lr"), "high", "lr cannot be 'high'"),
        (("optimization", "optimizer"), "lion", "optimizer cannot be 'lion'"),
        (("method", "rollouts"), 1.5, "rollouts cannot be 1.5"),
        (("method", "spell"), 1, "'spell' is unknown"),
        (("method", "name"), "__import__", "method '__import__' is unknown"),
        (("seed",), True, "seed cannot be True"),
    ],
)
def test_strange_configurations_are_refused_by_name(path: tuple[str, ...], value: object, said: str) -> None:
    entry = to_json(Config())
    target = entry
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(RicnetError, match=said) as caught:
        from_json(entry, "runs/x/config.json")
    assert "runs/x/config.json" in str(caught.value)


@pytest.mark.parametrize("entry", [None, [], "config", {}, {"method": "ric"}])
def test_what_is_no_configuration_is_refused(entry: object) -> None:
    with pytest.raises(RicnetError, match="not a ricnet configuration"):
        from_json(entry, "config.json")


def test_paper_preset_is_the_papers() -> None:
    config = preset("paper", "ric", CIFAR)
    assert config.network.encoder == "resnet34"
    assert config.network.activation == "relu"
    assert config.optimization == Optimization(
        epochs=2000, batch_size=256, optimizer="adamw", lr=3e-4, weight_decay=1e-3, schedule="constant", clip=0.5
    )
    method = config.method
    assert (method.horizon, method.gamma, method.passes_per_snapshot, method.rollouts) == (20, 0.8, 5, 1)
    assert (method.c_min, method.c_max, method.alpha_floor) == (1, 10, 0.01)
    assert (method.epsilon, method.gae_lambda, method.value_coef, method.entropy_coef) == (0.2, 0.95, 0.5, 0)
    assert (method.log_ratio_clamp, method.reward_floor, method.updates_per_snapshot) == (10, None, None)
    assert method.c_range == "sigmoid"
    assert method.readout == "mean"
    assert preset("paper", "supervised", CIFAR).optimization.epochs == 300


def test_fast_preset_is_what_the_docs_say() -> None:
    config = preset("fast", "ric", CIFAR)
    assert config.optimization == Optimization(
        epochs=120,
        batch_size=512,
        optimizer="adamw",
        lr=4e-3,
        weight_decay=0.5,
        warmup_epochs=2.0,
        clip=None,
        cutout=8,
        average=0.999,
        select="nll",
    )
    table = preset("fast", "ric", replace(CIFAR, side=0)).optimization
    assert (table.epochs, table.batch_size, table.lr, table.weight_decay) == (20, 128, 4e-3, 0.2)
    assert (table.average, table.select, table.patience) == (0.99, "nll", 15)
    assert config.optimization.schedule == "cosine"
    method = config.method
    assert (method.updates_per_snapshot, method.rollouts, method.gae_lambda) == (1, 4, 0)
    assert (method.label_baseline, method.exact_gain) == (True, False)
    assert (method.log_ratio_clamp, method.reward_floor) == (10, None)
    assert (method.c_max, method.alpha_floor, method.head_gain) == (10, pytest.approx(0.01), 0.01)
    few = preset("fast", "ric", DIGITS)
    assert (few.optimization.epochs, few.optimization.lr, few.optimization.clip, few.optimization.cutout) == (
        60,
        3e-3,
        0.5,
        0,
    )
    assert isinstance(few.method, RIC)
    assert (few.method.rollouts, few.method.updates_per_snapshot, few.method.exact_gain) == (2, 1, False)
    assert (few.method.c_max, few.method.alpha_floor, few.method.head_gain) == (10, pytest.approx(0.01), 0.01)


def test_fast_preset_scales_with_rows_and_classes() -> None:
    small, large = preset("fast", "ric", DIGITS), preset("fast", "ric", replace(CIFAR, classes=100))
    assert (small.optimization.batch_size, large.optimization.batch_size) == (128, 512)
    assert (small.method.updates_per_snapshot, large.method.updates_per_snapshot) == (1, 1)
    assert (large.method.exact_gain, large.method.c_max, large.method.alpha_floor) == (True, 1000, 0.1)
    sampled = preset("on-policy", "ric", replace(CIFAR, classes=100)).method
    assert (sampled.exact_gain, sampled.c_max, sampled.alpha_floor) == (False, 100, pytest.approx(0.001))
    short = preset("fast", "supervised", replace(CIFAR, rows=5_120)).optimization
    assert short.average == pytest.approx(1 - 1 / 120)  # a tenth of 1,200 updates
    assert (small.network.encoder, large.network.encoder) == ("auto", "auto")
    photos = preset("fast", "ric", Facts(rows=500, classes=3, side=64)).network
    assert (photos.encoder, photos.width) == ("resnet10", 0.5)
    tiny = preset("fast", "ric", Facts(rows=90, classes=2, side=8)).optimization
    assert tiny.batch_size == 90
    assert tiny.epochs * (90 // tiny.batch_size) >= 500


def test_each_preset_of_ric_makes_the_algorithm_it_is_named_for() -> None:
    made = {
        name: preset(name, "ric", CIFAR).method for name in ("fast", "on-policy", "snapshots", "closed-form", "paper")
    }
    assert {name: method.title_of(asdict(method)) for name, method in made.items()} == {
        "fast": "RIC, on-policy",
        "on-policy": "RIC, on-policy",
        "snapshots": "RIC",
        "closed-form": "RIC, closed form",
        "paper": "RIC",
    }
    assert replace(made["snapshots"], updates_per_snapshot=1, epsilon=0.2) == made["fast"]
    assert (made["closed-form"].c_max, made["closed-form"].alpha_floor, made["closed-form"].head_gain) == (100, 0.1, 1)
    assert preset("snapshots", "ric", CIFAR).optimization.clip == 0.5
    with pytest.raises(RicnetError, match="--preset snapshots is for --method ric, not for act"):
        preset("snapshots", "act", CIFAR)


def test_unknown_preset_and_method_are_named() -> None:
    with pytest.raises(RicnetError, match="--preset slow"):
        preset("slow", "ric", CIFAR)
    with pytest.raises(RicnetError, match="--method rnn is unknown; choose one of: act, anytime, pond"):
        preset("fast", "rnn", CIFAR)
