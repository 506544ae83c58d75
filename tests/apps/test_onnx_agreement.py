import pytest

from ricnet.apps.onnx_agreement import Agreement
from ricnet.errors import RicnetError


def test_a_file_that_answers_otherwise_is_refused() -> None:
    Agreement(inputs=12, same_steps=11, difference=9e-5).check()  # one value may have been all but at the threshold
    with pytest.raises(RicnetError, match=r"12 of 12 inputs halt where they should, with probabilities 2.0e-04 off"):
        Agreement(inputs=12, same_steps=12, difference=2e-4).check()
    with pytest.raises(RicnetError, match="10 of 12 inputs"):
        Agreement(inputs=12, same_steps=10, difference=0.0).check()
    with pytest.raises(RicnetError, match="nan"):
        Agreement(inputs=12, same_steps=12, difference=float("nan")).check()
