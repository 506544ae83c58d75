"""Names of runs in tables, figures and pages: the method's title, then the fewest settings that tell runs apart."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from ricnet.io import FIGURE, shown_name, without_folder
from ricnet.methods import METHODS, modern_method

RIC, ON_POLICY, CLOSED_FORM, MARGINAL = "RIC", "RIC, on-policy", "RIC, closed form", ", marginal credit"
"""Titles of methods ric, ric-on-policy and ric-closed-form; the first two may have marginal credit."""
ALGORITHMS = (RIC, RIC + MARGINAL, ON_POLICY, ON_POLICY + MARGINAL, CLOSED_FORM)
VARIANT_NAMES = {
    "objective": {"ppo": "PPO", "logitnorm": "LogitNorm", "evidential": "evidential"},
    "head": {"logistic-normal": "logistic-normal"},
    "readout": {"mu": "readout mu", "implied": "readout implied"},
    "feedback": {"sample": "sampled feedback"},
}
"""Settings that make a variant of a method, and its name."""
DATA_TITLES = {
    "cifar10": "CIFAR-10",
    "cifar10n-aggregate": "CIFAR-10N, aggregate labels",
    "cifar10n-worst": "CIFAR-10N, worst labels",
    "imagewoof": "ImageWoof",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
}
WITHOUT_EFFECT = ("measure_all", "measure_every", "compile", "cuda_graph", "baselines")
"""Settings that do not change what is learned."""
LATER = {
    **{"accumulate": 1, "halt_rule": "value", "exits": "none", "steps_per_exit": 1, "compute_price": 0.0},
    **{"freeze": False, "encoder_lr": 0.1, "augmented_copies": 0, "credit": "joint", "train_fraction": 1.0},
}
"""Settings introduced after some runs were archived, with the value that those runs used."""
TELLING = ("data", "train_fraction", "label_noise", "preset", "encoder", "exits", "resolution", "epochs")
"""Settings that are named first; then all others, and the seed last."""
MOST = 3
"""Maximum settings in a name."""
WORDS: dict[str, Callable[[Any], str]] = {
    "data": lambda data: shown_name(str(data)),
    "train_fraction": lambda share: f"{100 * share:g} % of the rows",
    "label_noise": lambda share: f"{100 * (share or 0):g} % flipped",
    "preset": lambda name: f"preset {name}",
    "encoder": lambda name: without_folder(str(name)),
    "exits": lambda where: "no exits" if where == "none" else f"an exit a {where}",
    "freeze": lambda frozen: "frozen" if frozen else "not frozen",
    "resolution": lambda side: "own resolution" if side is None else f"{side} pixels",
    "epochs": lambda count: f"{count} epochs",
    "batch_size": lambda rows: f"batches of {rows}",
    "chosen": str,
}
"""Settings that are not written as name and value."""
CHOSEN = {
    ("none", False): "raw",
    ("none", True): "halt chosen",
    ("auto", False): "temperature if it helps",
    ("auto", True): "halt and temperature chosen",
    ("temperature", False): "own halt",
    ("temperature", True): "halt chosen",
}
"""Names by calibration setting and whether validation data chose the halting rule."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": {"gamma": 0.8}} as {"method.gamma": 0.8}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def without_algorithm(title: str) -> str:
    """The title without the algorithm of RIC: `RIC, PPO` for `RIC, on-policy, marginal credit, PPO`."""
    return title.replace(ON_POLICY, RIC).replace(CLOSED_FORM, RIC).replace(MARGINAL, "")


def method_title(settings: Mapping[str, Any]) -> str:
    """Title of a method with these settings (`method` in config.json): SL; RIC, on-policy, PPO."""
    method = METHODS.get(modern_method(settings)["name"])  # None for an unregistered method
    parts = [method.title_of(settings) if method else str(settings["name"])]
    parts += [words[value] for key, words in VARIANT_NAMES.items() if (value := settings.get(key)) in words]
    parts += ["label smoothing"] * bool(settings.get("label_smoothing"))
    parts += ["confidence cap"] * bool(settings.get("uniform_mix"))
    return ", ".join(parts)


def system_name(config: Mapping[str, Any]) -> str:
    """Title of a method with its calibration: SL + temperature."""
    return method_title(config["method"]) + " + temperature" * (config.get("calibration") == "temperature")


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """The fewest settings that distinguish these configurations, in words; empty for one with the commonest values.

    None if more than MOST settings or too many words are needed.
    """
    settings = [LATER | _effective(config) for config in configs]
    names = dict.fromkeys(name for own in settings for name in own)
    differing = [name for name in names if len({str(own.get(name)) for own in settings}) > 1]
    differing.sort(key=lambda name: TELLING.index(name) if name in TELLING else len(TELLING) + (name == "seed"))
    for count in range(1, MOST + 1):
        for chosen in combinations(differing if count == 1 else differing[:12], count):
            words = _describe(settings, chosen)
            if len(set(words)) == len(words) and max(map(len, words)) <= FIGURE:
                return words
    return None


def without_seed(config: Mapping[str, Any]) -> str:
    """Key of a configuration, the same for all seeds and for settings that change nothing."""
    settings = {
        name: value for name, value in _effective(config).items() if name != "seed" and value != LATER.get(name)
    }
    return json.dumps(json.loads(json.dumps(settings), parse_int=float), sort_keys=True)  # 2 and 2.0 are equal


def _effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that change what is learned, by their name without that of their part."""
    settings = {key.rpartition(".")[2]: value for key, value in flatten(config).items()}
    return {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}


def _describe(settings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The values of these settings in words; of three or more runs, the commonest values are left out if unique."""
    usual = {name: Counter(str(own.get(name)) for own in settings).most_common(1)[0][0] for name in names}
    whole = [[(name, own.get(name)) for name in names] for own in settings]
    brief = [[(name, value) for name, value in own if str(value) != usual[name]] for own in whole]
    texts, short_texts = ([", ".join(_words(*each) for each in own) for own in kind] for kind in (whole, brief))
    unique = len(set(short_texts)) == len(short_texts)
    return short_texts if unique and len(settings) > 2 and len(names) > 1 else texts


def _words(name: str, value: Any) -> str:
    if name in WORDS:
        return WORDS[name](value)
    words = name.replace("_", " ")
    if value is None or isinstance(value, bool):
        return words if value else f"no {words}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
