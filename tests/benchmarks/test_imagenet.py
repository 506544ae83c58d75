import pytest
import torch

from imagenet import IMAGES, measure, special_share

CPU = torch.device("cpu")
TINY = {"encoder": "mlp", "width": 0.125, "batch_size": 8, "compile": "off"}


def test_rates_ratios_and_epochs_are_of_the_same_times() -> None:
    supervised, ric = measure(CPU, 4, TINY, turns=1, calls=1)
    assert ric["× SL"] == pytest.approx(ric["ms"] / supervised["ms"])
    assert ric["images/s"] == pytest.approx(8 / (ric["ms"] / 1000))
    assert ric["1.28M images, s"] == pytest.approx(IMAGES / ric["images/s"])
    assert supervised["special functions"] is None


def test_a_thousand_classes_cost_special_functions_and_a_softmax_none() -> None:
    assert special_share("supervised", CPU, 4, TINY) == 0
    assert 0.01 < special_share("ric-on-policy", CPU, 4, TINY) < 1  # of seconds, which a busy machine blurs
