"""Numeric checks of the claims of the paper, one file per claim."""

from collections.abc import Callable

from ricnet_paper.theory import decomposition, lemma1, lemma2, premise, proposition1, proposition2
from ricnet_paper.theory.finding import Finding

CLAIMS: dict[str, Callable[..., Finding]] = {
    "lemma1": lemma1.examine,
    "lemma2": lemma2.examine,
    "decomposition": decomposition.examine,
    "proposition1": proposition1.examine,
    "proposition2": proposition2.examine,
    "premise": premise.examine,
}
"""Function that checks each claim. `premise` takes finished runs, the others no arguments."""

__all__ = ["CLAIMS", "Finding"]
