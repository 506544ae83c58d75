"""What tables call a configuration of RIC: three algorithms go by that name, and only one of them is the paper's."""

from collections.abc import Mapping
from typing import Any

RIC, ON_POLICY, CLOSED_FORM = "RIC", "RIC, on-policy", "RIC, closed form"
ALGORITHMS = (RIC, ON_POLICY, CLOSED_FORM)


def ric_title(settings: Mapping[str, Any]) -> str:
    """RIC alone is Algorithm 1: beliefs are sampled, and a snapshot lasts for more than one update.

    On-policy has samples but no snapshot, for the network is its own, so that SPO has nothing to hold it to. The closed
    form rewards a step with E[log a_y] and samples only what it does to later ones. Expected has no policy gradient.
    """
    if settings.get("objective") == "expected":
        return "RIC, expected"
    if settings.get("exact_gain"):
        return CLOSED_FORM
    return ON_POLICY if settings.get("updates_per_snapshot") == 1 else RIC


def without_algorithm(title: str) -> str:
    """RIC, PPO for RIC, on-policy, PPO: one look and one place for all algorithms of a system."""
    return title.replace(ON_POLICY, RIC).replace(CLOSED_FORM, RIC)
