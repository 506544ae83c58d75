from dataclasses import replace

import pytest

from refusals import refusal
from ricnet.methods import METHODS, Supervised
from ricnet.models.config import AFTER_TRAINING
from ricnet.studies.experiments import VARIANTS, all_systems, find_system, settings_of, uniform_share
from ricnet.studies.sweep import Choice, default_space
from ricnet.training.recipes import TYPICAL, Facts, preset


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_changes_settings_that_its_method_has(name: str) -> None:
    system, hints = VARIANTS[name], settings_of(VARIANTS[name].method)
    assert {*system.changes, *system.after} <= hints.keys()
    assert set(system.after) <= set(AFTER_TRAINING)
    assert not set(system.changes) & set(AFTER_TRAINING)


def test_settings_of_its_own_are_read_by_their_type() -> None:
    system = find_system("ric-ppo:gamma=0.9,rollouts=2,normalize-advantages=false,readout=mu,log_ratio_clamp=none")
    assert system.method == "ric"
    assert system.changes == {
        "objective": "ppo",
        "gamma": 0.9,
        "rollouts": 2,
        "normalize_advantages": False,
        "log_ratio_clamp": None,
    }
    assert system.after == {"readout": "mu"}
    whole = find_system("ric:c_max=3,horizon=5").changes
    assert {name: type(value) for name, value in whole.items()} == {"c_max": float, "horizon": int}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("rick", "ric"),
        ("ric:gama=0.9", "gamma"),
        ("ric:gamma", "'gamma'"),
        ("ric:gamma=high", "high"),
        ("supervised:rollouts=2", "supervised"),
        ("ric:rollouts=2.5", "2.5"),
        ("ric:objective=a2c", "a2c"),
    ],
)
def test_what_cannot_be_understood_is_named(name: str, named: str) -> None:
    with refusal(named):
        find_system(name)


def test_the_cap_is_that_of_rics_dirichlet_mean() -> None:
    """(c + ε)/(c + Kε): with few rows c = 10 and ε = 0.1/K, with many c = 10 max(10, K) and ε = 0.1."""
    many = {3: 100.1 / 100.3, 10: 100.1 / 101, 100: 1000.1 / 1010}
    tiny = {3: (10 + 0.1 / 3) / 10.1, 10: 10.01 / 10.1}
    table = {3: (10 + 0.1 / 3) / 10.1, 6: 100.1 / 100.6}
    for rows, side, caps in ((50_000, 32, many), (1_000, 8, tiny), (1_000, 0, table), (1_000, 64, many)):
        for classes, cap in caps.items():
            mix = uniform_share(Facts(rows, classes, side))
            assert 1 - mix + mix / classes == pytest.approx(cap)
    facts = Facts(1_000, 3, 0)
    assert find_system("confidence-cap").changes_for(facts) == {"uniform_mix": uniform_share(facts)}
    assert find_system("confidence-cap:uniform_mix=0.5").changes_for(facts) == {"uniform_mix": 0.5}


@pytest.mark.parametrize("rows", [1_000, 50_000])
def test_every_system_can_be_configured_for_few_rows_and_for_many(rows: int) -> None:
    facts = Facts(rows=rows, classes=10, side=32)
    for name, system in all_systems().items():
        for changes in (system.changes_for(facts), {k: v for k, v in system.after.items() if k != "calibration"}):
            config = preset(system.preset or "fast", system.method, facts, changes)
            assert replace(config.method, **changes).name == (system.method or "ric-on-policy"), name


def test_a_registered_method_is_a_system_and_can_be_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Supervised):
        name = "mine"
        about = "a method of somebody else's"
        search_space = ("label_smoothing=0,0.3",)

    monkeypatch.setitem(METHODS, "mine", Mine)
    assert find_system("mine:label_smoothing=0.2").changes == {"label_smoothing": 0.2}
    assert all_systems()["mine"].about == "a method of somebody else's"
    config = preset("fast", "mine", TYPICAL)
    assert default_space(config)["label_smoothing"] == Choice((0.0, 0.3))
    between = replace(config, method=Mine(label_smoothing=0.1))
    assert default_space(between)["label_smoothing"] == Choice((0.1, 0.0, 0.3))
