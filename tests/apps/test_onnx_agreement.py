import os
import subprocess
import sys
from pathlib import Path

import pytest

import ricnet
from ricnet.apps.onnx import Agreement, compare
from ricnet.data import load
from ricnet.errors import RicnetError

CIFAR10 = Path(os.environ.get("RICNET_DATA", "nowhere")) / "cifar-10-batches-py"


def test_a_file_that_answers_otherwise_is_refused() -> None:
    Agreement(inputs=12, same_steps=11, difference=9e-5).check()  # one value may have been all but at the threshold
    with pytest.raises(RicnetError, match=r"12 of 12 inputs halt where they should, with probabilities 2.0e-04 off"):
        Agreement(inputs=12, same_steps=12, difference=2e-4).check()
    with pytest.raises(RicnetError, match="10 of 12 inputs"):
        Agreement(inputs=12, same_steps=10, difference=0.0).check()
    with pytest.raises(RicnetError, match="nan"):
        Agreement(inputs=12, same_steps=12, difference=float("nan")).check()


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR10.is_dir(), reason="$RICNET_DATA has no CIFAR-10")
def test_the_pretrained_model_on_a_thousand_real_images(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    subprocess.run([sys.executable, "-m", "ricnet", "export", "pretrained:cifar10", "--out", str(file)], check=True)
    images = load("cifar10", data_dir=CIFAR10.parent).test.inputs[:1000]
    agreement = compare(file, ricnet.load("pretrained:cifar10", device="cpu"), images)
    assert agreement.same_steps >= 999
    assert agreement.difference <= 1e-4
