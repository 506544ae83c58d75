"""What runs are called, and how names and numbers are written, the same in every table, figure and page.

A run is called by its method, then only by what sets it apart from the others beside it, in the fewest words.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ricnet.io import split_target
from ricnet.methods import METHODS
from ricnet.training.checkpoints import without_folder

CLASS, FIGURE, TABLE = 14, 32, 48
"""The most letters of a class's name anywhere, and of a system's or a data set's in figures and in tables."""


def short(name: str, width: int = CLASS) -> str:
    """Names come from strangers' folders: one printable line of bounded length is safe to draw anywhere."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    return clean if len(clean) <= width else clean[: width - 1] + "…"


def number(value: float | int | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def percent(share: float | int | None, digits: int = 2) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def belief(share: float) -> str:
    """In whole percent; nothing short of certainty is called so."""
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def listing(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def markdown_safe(text: str) -> str:
    """Markdown's own signs, made harmless."""
    for sign in "\\|*_`[]":
        text = text.replace(sign, "\\" + sign)
    return text.replace("<", "&lt;")


RIC, ON_POLICY, CLOSED_FORM = "RIC", "RIC, on-policy", "RIC, closed form"
"""The algorithms that go by the name RIC (`methods.ric.RIC.title_of`); alone it is Algorithm 1."""
ALGORITHMS = (RIC, ON_POLICY, CLOSED_FORM)
VARIANTS = {
    "objective": {"ppo": "PPO", "logitnorm": "LogitNorm", "evidential": "evidential"},
    "head": {"logistic-normal": "logistic-normal"},
    "readout": {"mu": "readout mu", "implied": "readout implied"},
    "feedback": {"sample": "sampled feedback"},
}
"""Settings that make another system of a method, and what it is then called."""
DATA_TITLES = {
    "cifar10": "CIFAR-10",
    "cifar10n-aggregate": "CIFAR-10N, aggregate labels",
    "cifar10n-worst": "CIFAR-10N, worst labels",
    "imagewoof": "ImageWoof",
    "fashion-mnist": "Fashion-MNIST",
    "svhn": "SVHN",
}
WITHOUT_EFFECT = ("measure_all", "measure_every", "compile", "cuda_graph")
"""Settings of what is looked at and how fast; what is learned does not depend on them."""
LATER = {
    **{"accumulate": 1, "halt_rule": "value", "exits": "none", "steps_per_exit": 1},
    **{"freeze": False, "encoder_lr": 0.1, "augmented_copies": 0},
}
"""Settings that have come since runs were archived, with what those runs did."""
TELLING = ("data", "label_noise", "preset", "encoder", "resolution", "epochs")
"""Settings by which people tell runs apart, if they do; then come all others, and last the seed."""
MOST = 3
"""Settings in a name."""
WORDS: dict[str, Callable[[Any], str]] = {
    "data": lambda data: data_name(str(data)),
    "label_noise": lambda share: f"{100 * (share or 0):g} % flipped",
    "preset": lambda name: f"preset {name}",
    "encoder": lambda name: without_folder(str(name)),
    "freeze": lambda frozen: "frozen" if frozen else "not frozen",
    "resolution": lambda side: "own resolution" if side is None else f"{side} pixels",
    "epochs": lambda count: f"{count} epochs",
    "batch_size": lambda rows: f"batches of {rows}",
    "halt_rule": lambda rule: {"auto": "halt chosen", "value": "V < 0"}.get(rule, f"halt rule {rule}"),
    "calibration": lambda kind: {"auto": "temperature if it helps", "none": "raw"}.get(kind, str(kind)),
}
"""How a setting is said where its name and its value are not what a person would say."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": {"gamma": 0.8}} as {"method.gamma": 0.8}, the way the command line spells it."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def data_name(data: str) -> str:
    """Of a path its last part."""
    path, target = split_target(data)
    return Path(path).name + (f"#{target}" if target else "")


def without_algorithm(title: str) -> str:
    """RIC, PPO for RIC, on-policy, PPO: one look and one place for all algorithms of a system."""
    return title.replace(ON_POLICY, RIC).replace(CLOSED_FORM, RIC)


def method_title(settings: Mapping[str, Any]) -> str:
    """What the configuration of a method is called (`method` in config.json): SL; RIC, on-policy, PPO."""
    method = METHODS.get(str(settings["name"]))  # None where a method of somebody's own is not registered here
    parts = [method.title_of(settings) if method else str(settings["name"])]
    parts += [words[value] for key, words in VARIANTS.items() if (value := settings.get(key)) in words]
    parts += ["label smoothing"] * bool(settings.get("label_smoothing"))
    parts += ["confidence cap"] * bool(settings.get("uniform_mix"))
    return ", ".join(parts)


def system_name(config: Mapping[str, Any]) -> str:
    """The same with what is always done after training: SL + temperature."""
    return method_title(config["method"]) + " + temperature" * (config.get("calibration") == "temperature")


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """What tells runs of one system apart: as few settings as will do, the most telling first, and for a run that has
    all of the commonest values nothing. None where that takes more words than anybody would read."""
    settings = [flatten(config) for config in configs]
    keys = [key for key in dict.fromkeys(key for flat in settings for key in flat) if _differs(key, settings)]
    keys.sort(key=_rank)
    candidates = keys if len(keys) <= 12 else keys[:12]
    for count in range(1, MOST + 1):
        for chosen in combinations(keys if count == 1 else candidates, count):
            names = _describe_all(settings, chosen)
            if len(set(names)) == len(names) and max(map(len, names)) <= FIGURE:
                return names
    return None


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return _name(key) not in WITHOUT_EFFECT and len({str(_value(flat, key)) for flat in settings}) > 1


def _rank(key: str) -> int:
    name = _name(key)
    return TELLING.index(name) if name in TELLING else len(TELLING) + (name == "seed")


def _describe_all(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Of two runs both are described; of more, what most have in common is left out where that names one at most."""
    whole = [", ".join(_say(key, _value(flat, key)) for key in keys) for flat in settings]
    if len(settings) < 3 or len(keys) < 2:
        return whole
    usual = {key: Counter(str(_value(flat, key)) for flat in settings).most_common(1)[0][0] for key in keys}
    odd = [[key for key in keys if str(_value(flat, key)) != usual[key]] for flat in settings]
    short = [", ".join(_say(key, _value(flat, key)) for key in own) for flat, own in zip(settings, odd, strict=True)]
    return short if len(set(short)) == len(short) else whole


def _say(key: str, value: Any) -> str:
    name = _name(key)
    if name in WORDS:
        return WORDS[name](value)
    words = name.replace("_", " ")
    if value is None or isinstance(value, bool):
        return words if value else f"no {words}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def _value(settings: Mapping[str, Any], key: str) -> Any:
    return settings.get(key, LATER.get(_name(key)))


def _name(key: str) -> str:
    return key.rpartition(".")[2]
