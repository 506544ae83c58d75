import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ricnet
from ricnet.apps import onnx
from ricnet.apps.onnx import Agreement, compare, export_onnx, metadata
from ricnet.data import load
from ricnet.data.columns import Category, Columns, Number, columns_from_json
from ricnet.errors import RicnetError
from ricnet.methods import RIC, Anytime, Method, PonderNet, Supervised
from ricnet.training.classifier import Classifier, build_model
from ricnet.training.config import Config

CIFAR10 = Path(os.environ.get("RICNET_DATA", "nowhere")) / "cifar-10-batches-py"


def untrained(method: Method[Any], encoder: nn.Module | None = None) -> Classifier:
    config = replace(Config(), method=method)
    model, backbone = build_model(config, (3,), 4, encoder)
    backbone.fit_normalization(torch.tensor([[1.0, 20.0, -3.0], [3.0, 40.0, -3.0]]))
    return Classifier(config, method, model.eval(), (3,), ("a", "b", "ü", "d"), temperature=1.5)


def test_what_the_metadata_says() -> None:
    about = metadata(untrained(RIC(halt_threshold=0.25, readout="mu")), 7)
    assert about["ricnet"] == ricnet.__version__
    assert (about["method"], about["readout"]) == ("ric", "mu")
    numbers = {name: json.loads(about[name]) for name in ("halt_threshold", "max_steps", "temperature")}
    assert numbers == {"halt_threshold": 0.25, "max_steps": 7, "temperature": 1.5}
    assert json.loads(about["class_names"]) == ["a", "b", "ü", "d"]
    assert json.loads(about["input_shape"]) == [3]
    assert json.loads(about["mean"]) == [2.0, 30.0, -3.0]
    assert json.loads(about["std"]) == [1.0, 10.0, 1.0]
    assert json.loads(metadata(untrained(Anytime(confidence_threshold=0.9)), 20)["confidence_threshold"]) == 0.9
    assert "readout" not in metadata(untrained(Supervised()), 1)


def test_the_metadata_of_a_table_says_how_its_columns_are_read() -> None:
    table = Columns("label", (Number("age", 40.0, 12.0, True), Category("sex", ("f", "m"), False)))
    about = metadata(replace(untrained(RIC()), columns=table), 20)
    assert columns_from_json(json.loads(about["columns"]), "model.onnx") == table


def refusal(method: Method[Any], out: Path, **options: Any) -> str:
    with pytest.raises(RicnetError) as refused:
        export_onnx(untrained(method), out / "model.onnx", **options)
    assert list(out.iterdir()) == []
    return str(refused.value)


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--feedback mean" in refusal(RIC(feedback="sample"), tmp_path)
    assert "--halting median" in refusal(PonderNet(halting="sample"), tmp_path)
    assert "--fixed-steps 3: the method supervised has one step" in refusal(Supervised(), tmp_path, fixed_steps=3)
    assert "exclude each other" in refusal(RIC(), tmp_path, fixed_steps=3, max_steps=3)
    assert "--max-steps 0 is out of range" in refusal(RIC(), tmp_path, max_steps=0)
    assert "--fixed-steps -1 is out of range" in refusal(RIC(), tmp_path, fixed_steps=-1)
    assert "the method foreign cannot be exported" in refusal(Foreign(), tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "needs onnxruntime; install with: pip install 'ricnet[onnx]'" in refusal(RIC(), tmp_path)


def test_a_network_that_cannot_be_traced_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("\nData-dependent branching\n  in your encoder")

    monkeypatch.setattr(torch.export, "export", fails)
    assert "(Data-dependent branching); an encoder of your own" in refusal(RIC(), tmp_path)


def test_a_file_is_tried_on_the_examples_of_its_run_or_on_noise_of_its_scale(tmp_path: Path) -> None:
    classifier = untrained(RIC())
    drawn = onnx.inputs_to_compare(classifier)
    assert drawn.shape == (16, 3)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([2.0, 30.0, -3.0]), rtol=0, atol=8)
    assert drawn[:, 1].std() > 3 * drawn[:, 0].std()
    np.savez(tmp_path / "examples.npz", x=np.ones((5, 3), dtype=np.float32), y=np.zeros(5, dtype=np.int64))
    assert torch.equal(onnx.inputs_to_compare(replace(classifier, folder=tmp_path)), torch.ones(5, 3))


def test_it_is_made_of_a_float32_copy_on_the_cpu() -> None:
    classifier = untrained(Supervised())
    backbone = onnx.backbone_of(classifier.model)
    backbone.autocast = torch.bfloat16
    copy = onnx.float32_on_cpu(classifier)
    assert onnx.backbone_of(copy.model).autocast is None
    assert backbone.autocast is torch.bfloat16


@dataclass(frozen=True)
class Foreign(Method[nn.Module]):
    """A method from outside that answers in a way of its own."""

    name = "foreign"

    def build(self, backbone: Any, classes: int) -> nn.Module:
        return nn.Sequential(backbone)

    def loss(self, *_: Any) -> Any: ...

    def refine(self, *_: Any, **__: Any) -> Any: ...


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
