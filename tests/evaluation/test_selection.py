import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.evaluation.selection import area_under_risk_coverage, correctness_auroc


def test_aurc_by_hand() -> None:
    """Sorted by confidence: right, wrong, right → risks 0, 1/2, 1/3."""
    value = area_under_risk_coverage(torch.tensor([0.2, 0.9, 0.5]), torch.tensor([True, True, False]))
    assert value == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)


@given(st.lists(st.tuples(st.sampled_from([0.3, 0.6, 0.9]), st.booleans()), min_size=1, max_size=20), st.randoms())
def test_aurc_does_not_depend_on_the_order_of_ties(rows: list[tuple[float, bool]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    values = [area_under_risk_coverage(*(torch.tensor(c) for c in zip(*r, strict=True))) for r in (rows, shuffled)]
    assert values[0] == pytest.approx(values[1])


def test_auroc_by_hand_and_where_it_has_no_meaning() -> None:
    confidence = torch.tensor([0.9, 0.8, 0.7, 0.6])
    assert correctness_auroc(confidence, torch.tensor([True, False, True, False])) == pytest.approx(0.75)
    assert correctness_auroc(confidence, torch.ones(4, dtype=torch.bool)) is None
    assert correctness_auroc(confidence, torch.zeros(4, dtype=torch.bool)) is None
