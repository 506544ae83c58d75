import pytest
from matplotlib.figure import Figure

from ricnet_paper.theory import decomposition, lemma1, lemma2, premise, proposition1, proposition2


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than measuring; test_finding and test_premise look at the figures."""
    for module in (decomposition, lemma1, lemma2, premise, proposition1, proposition2):
        monkeypatch.setattr(module, "_draw", lambda *_: Figure())
