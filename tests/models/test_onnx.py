import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.special import polygamma
from torch import Tensor, nn

import ricnet
from refusals import refusal
from ricnet.data.columns import Category, Columns, Number, columns_from_json
from ricnet.data.texts import Text, Tokenizer
from ricnet.methods import ACT, RIC, Anytime, Method, PonderNet, Supervised
from ricnet.methods.inference import Iterative
from ricnet.models import onnx
from ricnet.models.classifier import Classifier, build_model
from ricnet.models.config import Config
from ricnet.models.onnx import (
    Agreement,
    Halting,
    OnePass,
    Unrolled,
    WithExits,
    export_onnx,
    metadata,
    network_to_trace,
    trigamma,
)
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import EncoderOptions
from ricnet.nets.refiner import RecurrentClassifier


def untrained(method: Method[Any], encoder: nn.Module | None = None) -> Classifier:
    config = replace(Config(), method=method)
    model, backbone = build_model(config, (3,), 4, encoder)
    backbone.fit_normalization(torch.tensor([[1.0, 20.0, -3.0], [3.0, 40.0, -3.0]]))
    return Classifier(config, method, model.eval(), (3,), ("a", "b", "ü", "d"), temperature=1.5)


def test_metadata() -> None:
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


def test_the_metadata_of_a_table_holds_its_columns() -> None:
    table = Columns("label", (Number("age", 40.0, 12.0, True), Category("sex", ("f", "m"), False)))
    about = metadata(replace(untrained(RIC()), columns=table), 20)
    assert columns_from_json(json.loads(about["columns"]), "model.onnx") == table


def split_into_words() -> Tokenizer:
    tokenizers = pytest.importorskip("tokenizers")
    known = {"[UNK]": 0, "a": 1, "film": 2, "[PAD]": 7}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(words.to_str(), pad=7, most=8)


@pytest.mark.parametrize("tokenizer", [lambda: None, split_into_words], ids=["words", "tokenizer"])
def test_the_consumer_example_makes_the_same_token_ids(
    tokenizer: Callable[[], Tokenizer | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    column, texts = Text("review", 8, tokenizer()), ["A film: Über_1 film!", "a", "", "a film " * 9]
    reads = replace(untrained(RIC()), columns=Columns("label", (column,)), input_shape=(8,))
    about, session = metadata(reads, 20), Mock()
    assert ("crc32" if column.tokenizer is None else "tokenizer.json") in about["token_ids"]
    session.get_modelmeta.return_value.custom_metadata_map = about
    session.run.return_value = np.full((4, 4), 0.25), np.ones(4, dtype=int)
    monkeypatch.setitem(sys.modules, "onnxruntime", Mock(InferenceSession=Mock(return_value=session)))
    monkeypatch.setattr(sys, "argv", ["onnx_consumer.py", "model.onnx", *texts])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "onnx_consumer.py"))
    (_, feed), _ = session.run.call_args
    assert feed["input"].dtype == np.int32
    assert np.array_equal(feed["input"], column.rows(texts))


def test_errors_of_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("\nData-dependent branching\n  in your encoder")

    def check(names: object, method: Method[Any], **options: Any) -> None:
        with refusal(*(names if isinstance(names, tuple) else (names,))):
            export_onnx(untrained(method), tmp_path / "model.onnx", **options)
        assert list(tmp_path.iterdir()) == []

    check("--feedback mean", RIC(feedback="sample"))
    check("--halting median", PonderNet(halting="sample"))
    check(("--fixed-steps 3", "supervised"), Supervised(), fixed_steps=3)
    check(("--fixed-steps", "--max-steps"), RIC(), fixed_steps=3, max_steps=3)
    check("--max-steps 0", RIC(), max_steps=0)
    check("--fixed-steps -1", RIC(), fixed_steps=-1)
    check("foreign", Foreign())
    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "export", fails)
        check("(Data-dependent branching)", RIC())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    check(("onnxruntime", "pip install 'ricnet[onnx]'"), RIC())


def test_a_file_is_compared_on_the_examples_of_its_run_or_on_scaled_noise(tmp_path: Path) -> None:
    classifier = untrained(RIC())
    drawn = onnx.inputs_to_compare(classifier)
    assert drawn.shape == (16, 3)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([2.0, 30.0, -3.0]), rtol=0, atol=8)
    assert drawn[:, 1].std() > 3 * drawn[:, 0].std()
    np.savez(tmp_path / "examples.npz", x=np.ones((5, 3), dtype=np.float32), y=np.zeros(5, dtype=np.int64))
    assert torch.equal(onnx.inputs_to_compare(replace(classifier, folder=tmp_path)), torch.ones(5, 3))


def test_a_float32_copy_on_the_cpu_is_exported() -> None:
    classifier = untrained(Supervised())
    backbone = onnx.backbone_of(classifier.model)
    backbone.autocast = torch.bfloat16
    copy = onnx.float32_on_cpu(classifier)
    assert onnx.backbone_of(copy.model).autocast is None
    assert backbone.autocast is torch.bfloat16


@dataclass(frozen=True)
class Foreign(Method[nn.Module]):
    """A method of a user with its own `refine`."""

    name = "foreign"

    def build(self, backbone: Any, classes: int) -> nn.Module:
        return nn.Sequential(backbone)

    def loss(self, *_: Any) -> Any: ...

    def refine(self, *_: Any, **__: Any) -> Any: ...


def test_a_file_that_disagrees_with_pytorch_is_refused() -> None:
    Agreement(inputs=12, same_steps=11, difference=9e-5).check()  # one value may have been all but at the threshold
    for same, difference, named in ((12, 2e-4, "2.0e-04"), (10, 0.0, "10 of 12 inputs"), (12, float("nan"), "nan")):
        with refusal(named):
            Agreement(inputs=12, same_steps=same, difference=difference).check()


METHODS: list[Iterative] = [
    RIC(horizon=6, head_gain=1.0),
    RIC(horizon=6, head_gain=1.0, readout="mu"),
    RIC(horizon=6, head_gain=1.0, readout="implied"),
    RIC(horizon=6, head_gain=1.0, head="logistic-normal"),
    Anytime(horizon=6, confidence_threshold=0.8),
    Anytime(horizon=6),
    ACT(horizon=6),
    PonderNet(horizon=6),
]


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """`torch.while_loop` as a Python loop, because functions with type checks cannot be traced; counts iterations."""
    counts: list[int] = []

    def loop(condition: Callable[..., Tensor], body: Callable[..., Any], carried: tuple[Tensor, ...]) -> Any:
        counts.append(0)
        while condition(*carried):
            handed_on = body(*carried)
            assert [t.shape for t in handed_on] == [t.shape for t in carried]
            assert not {id(t) for t in handed_on} & {id(t) for t in carried}
            carried = handed_on
            counts[-1] += 1
        return carried

    monkeypatch.setattr(torch, "while_loop", loop)
    return counts


def model_of(method: Iterative) -> RecurrentClassifier:
    """Untrained, with weights so large that examples halt at different steps."""
    model = method.build(Backbone(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), (5,)), 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        model.refiner.value.bias.fill_(0.0 if isinstance(method, RIC) else -2.0)
    return model.eval()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{getattr(method, 'readout', '')}")
def test_each_example_halts_at_its_own_step_and_the_loop_ends_with_the_last(
    method: Iterative, iterations: list[int]
) -> None:
    model, inputs = model_of(method), torch.randn(200, 5)
    expected = method.refine(model, inputs, halt=True)
    probabilities, steps = Halting(method, model, 6, 1.0)(inputs)
    torch.testing.assert_close(probabilities, expected.final.exp())
    assert torch.equal(steps, expected.halt_step)
    if method != Anytime(horizon=6):
        assert len(steps.unique()) > 2
    for row in range(5):
        alone, taken = Halting(method, model, 6, 1.0)(inputs[row : row + 1])
        torch.testing.assert_close(alone[0], probabilities[row])
        assert taken == steps[row]
        looked_ahead = int(isinstance(method, RIC) and int(taken) < 6)
        assert iterations[-1] == int(taken) - 1 + looked_ahead


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{getattr(method, 'readout', '')}")
def test_unrolled_returns_the_beliefs_of_all_steps(method: Iterative) -> None:
    model, inputs = model_of(method), torch.randn(50, 5)
    expected = method.refine(model, inputs, max_steps=4)
    beliefs, steps, *values = Unrolled(method, model, 4, 1.0)(inputs)
    assert beliefs.shape == (4, 50, 4)
    torch.testing.assert_close(beliefs, expected.log_beliefs.exp())
    assert torch.equal(steps, expected.halt_step)
    if expected.values is None:
        assert values == []
    else:
        torch.testing.assert_close(values[0], expected.values)


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """`torch.cond` as a Python branch, for the same reason; both branches must return the same shapes and types."""
    taken: list[bool] = []

    def branch(condition: Tensor, yes: Callable[..., Any], no: Callable[..., Any], operands: tuple[Tensor, ...]) -> Any:
        taken.append(bool(condition))
        made, skipped = yes(*operands) if condition else None, no(*operands)
        if made is not None:
            assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in skipped]
        return made or skipped

    monkeypatch.setattr(torch, "cond", branch)
    return taken


WITH_EXITS: list[Iterative] = [
    RIC(horizon=6, head_gain=1.0),
    Anytime(horizon=6, value_coef=0.5),
    Anytime(horizon=6, confidence_threshold=0.6),
    ACT(horizon=6),
    PonderNet(horizon=6),
]


def with_exits(method: Iterative) -> RecurrentClassifier:
    """Three stages, two steps at each."""
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(*sizes), nn.ReLU()) for sizes in ((5, 7), (7, 6), (6, 8))))
    model = method.build(Backbone(layers, (5,), "stage", 2), 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        model.refiner.value.bias.fill_(-1.0)
        model.refiner.critic[-1].bias.fill_(0.5)
    return model.eval()


@pytest.mark.parametrize("method", WITH_EXITS, ids=lambda method: method.name)
def test_each_example_leaves_at_its_own_exit_and_no_stage_runs_without_examples(
    method: Iterative, branches: list[bool]
) -> None:
    torch.manual_seed(0)
    model, inputs = with_exits(method), torch.randn(200, 5)
    expected = method.refine(model, inputs, halt=True)
    leaving = WithExits(method, model, 6, 1.0)
    probabilities, steps, cost = leaving(inputs)
    torch.testing.assert_close(probabilities, expected.final.exp())
    assert torch.equal(steps, expected.halt_step)
    assert len(steps.unique()) > 1
    torch.testing.assert_close(cost, expected.cost)
    for row in range(5):
        branches.clear()
        alone, taken, _ = leaving(inputs[row : row + 1])
        torch.testing.assert_close(alone[0], probabilities[row])
        assert taken == steps[row]
        assert branches == [step < int(taken) for step in range(1, 6)]
    beliefs, would, *values = Unrolled(method, model, 6, 1.0)(inputs)
    full = method.refine(model, inputs)
    torch.testing.assert_close(beliefs, full.log_beliefs.exp())
    assert torch.equal(would, full.halt_step)
    assert (full.values is None) == (not values)
    if full.values is not None:
        torch.testing.assert_close(values[0], full.values)


def test_supervised_learning_with_exits_leaves_by_confidence(branches: list[bool]) -> None:
    torch.manual_seed(0)
    method = Supervised(confidence_threshold=0.6)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(*sizes), nn.ReLU()) for sizes in ((5, 7), (7, 6), (6, 8))))
    model, inputs = method.build(Backbone(layers, (5,), "stage"), 4).eval(), torch.randn(200, 5)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    config = Config(method=method, network=EncoderOptions(exits="stage"))
    classifier = Classifier(config, method, model, (5,), ("a", "b", "c", "d"), (0.8, 1.5, 2.0))
    leaving, outputs = network_to_trace(classifier, None, None)
    assert outputs == ("probabilities", "steps", "cost")
    probabilities, steps, cost = leaving(inputs)
    expected = classifier.refine(inputs)
    assert len(expected.halt_step.unique()) == 3
    assert not torch.equal(expected.halt_step, method.refine(model, inputs).halt_step)
    assert torch.equal(steps, expected.halt_step)
    torch.testing.assert_close(probabilities, expected.final.exp())
    torch.testing.assert_close(cost, expected.cost)
    branches.clear()
    leaving(inputs[:1])
    assert branches == [step < int(steps[0]) for step in (1, 2)]


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_max_steps_limits_the_loop(steps: int, iterations: list[int]) -> None:
    method = RIC(head_gain=1.0)
    model, inputs = model_of(method), torch.randn(50, 5)
    expected = method.refine(model, inputs, max_steps=steps)
    probabilities, taken = Halting(method, model, steps, 1.0)(inputs)
    torch.testing.assert_close(probabilities, expected.final.exp())
    assert torch.equal(taken, expected.halt_step)
    assert iterations[-1] <= steps - 1


@pytest.mark.parametrize("objective", ["cross-entropy", "logitnorm", "evidential"])
def test_one_pass(objective: Any) -> None:
    method = Supervised(objective=objective, uniform_mix=0.0 if objective == "evidential" else 0.1)
    model = method.build(Backbone(nn.Linear(5, 8), (5,)), 4).eval()
    inputs = torch.randn(20, 5)
    probabilities, steps = OnePass(method, model, 1, 1.0)(inputs)
    torch.testing.assert_close(probabilities, method.refine(model, inputs).final.exp())
    assert steps.tolist() == [1] * 20


def test_a_temperature_changes_the_beliefs_and_not_the_steps(iterations: list[int]) -> None:
    method = RIC(head_gain=1.0)
    model, inputs = model_of(method), torch.randn(50, 5)
    sharp, steps = Halting(method, model, 20, 1.0)(inputs)
    soft, same = Halting(method, model, 20, 2.5)(inputs)
    assert torch.equal(steps, same)
    by_hand = sharp ** (1 / 2.5)
    torch.testing.assert_close(soft, by_hand / by_hand.sum(-1, keepdim=True))
    beliefs, *_ = Unrolled(method, model, 20, 2.5)(inputs)
    torch.testing.assert_close(beliefs[steps - 1, torch.arange(50)], soft)


def test_trigamma_against_scipy() -> None:
    x = np.logspace(-3, 3, 200)
    np.testing.assert_allclose(trigamma(1, torch.from_numpy(x)).numpy(), polygamma(1, x), rtol=1e-7)
    single = trigamma(1, torch.from_numpy(x.astype(np.float32)))
    np.testing.assert_allclose(single.numpy(), polygamma(1, x), rtol=2e-6)
