"""What the files of a run must look like, checked before anything is counted or drawn from them.

They are shared, so a stranger may have written them. A form is a kind of value, a list of one form, a table of names
with a form each, or `Maybe` or `Absent` where it may be missing.
"""

from collections.abc import Mapping

from ricnet.io import Absent, Maybe, is_count, is_finite, is_number, is_switch, is_text

DEEPEST = 2
"""Tables within one another: a configuration, and its method."""


def is_share(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def is_positive(value: object) -> bool:
    return is_count(value) and value > 0  # type: ignore[operator]


def are_counts(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(is_count, value.values()))


def is_setting(value: object, depth: int = DEEPEST) -> bool:
    """A value of the configuration: nothing that a table could not show."""
    if isinstance(value, Mapping):
        return depth > 0 and all(is_setting(each, depth - 1) for each in value.values())
    return value is None or isinstance(value, str | bool) or is_number(value)


def is_measure(value: object) -> bool:
    """An entry of metrics.jsonl: a number, or several by name, some of them missing.

    Training that diverges writes any finite number there before it is stopped, and its run is still a run.
    """
    if isinstance(value, Mapping):
        return all(each is None or is_finite(each) for each in value.values())
    return value is None or isinstance(value, str | bool) or is_finite(value)


SPLIT = {
    **dict.fromkeys(("accuracy", "ece", "mean_confidence"), is_share),
    **dict.fromkeys(("nll", "brier"), is_number),
    **dict.fromkeys(("n", "ece_bins"), is_positive),
    **dict.fromkeys(("mean_steps", "mean_steps_correct", "mean_steps_wrong"), Maybe(is_number)),
    "mean_cell_evaluations": Maybe(is_number),
    "per_step": [
        {"step": is_positive, "accuracy": is_share, "ece": is_share, "nll": is_number, "mean_confidence": is_share}
    ],
    "reliability": [
        {
            **dict.fromkeys(("lower", "upper"), is_share),
            **dict.fromkeys(("accuracy", "confidence"), Maybe(is_share)),
            "n": is_count,
        }
    ],
    "halting": [dict.fromkeys(("step", "correct", "wrong"), is_count)],
}
HALTING = {
    **dict.fromkeys(("halt_threshold", "nll", "mean_steps", "nll_before", "steps_before", "best_step_nll"), is_number),
    **dict.fromkeys(("max_steps", "best_step", "n"), is_positive),
    "reached": is_switch,
}
CALIBRATION = {
    **dict.fromkeys(("temperature", "nll_before", "nll_after"), is_number),
    **dict.fromkeys(("gain", "gain_error"), Maybe(is_number)),
    **dict.fromkeys(("found", "kept"), is_switch),
    "n": is_positive,
}
EVALUATION = {
    "train": SPLIT,
    "test": SPLIT,
    "raw": Maybe({"train": SPLIT, "test": SPLIT}),
    "fitted": Maybe({"halting": Maybe(HALTING), "calibration": Maybe(CALIBRATION)}),
    "selected_epoch": Maybe(is_count),
    "seconds": Maybe(is_number),
}
METRICS = {
    "epoch": is_count,
    "update": Maybe(is_count),
    **dict.fromkeys(("images_per_second", "training_seconds"), Maybe(is_number)),
    **dict.fromkeys(("train", "val", "test"), Maybe({})),
}
HEADER = {
    "config": {
        "data": is_text,
        "method": {"name": is_text, "halt_threshold": Maybe(is_number)},
        "seed": Absent(is_count),
        "label_noise": Maybe(is_share),
        "optimization": Absent({"batch_size": Absent(is_positive)}),
        "network": Absent({}),
    },
    "data": {
        "class_names": [is_text],
        "rows": Absent(are_counts),
        "input_shape": Absent([is_positive]),
    },
    "hardware": Absent({}),
    "derived_from": Maybe(is_text),
}
