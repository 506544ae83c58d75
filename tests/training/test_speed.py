"""CUDA graphs, compiled functions and the feed: their replacements on a CPU, and the real ones on a GPU."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from problems import CPU, assert_same_weights, configured
from ricnet.data import Dataset, Split
from ricnet.methods import OnPolicy, Supervised
from ricnet.models.run import RunFolder
from ricnet.training import trainer as training
from ricnet.training.api import run
from ricnet.training.optimization import compile_method
from ricnet.training.recipes import configure
from ricnet.training.trainer import Feed, Trainer

SCRIPT = """
import functools
from dataclasses import replace
import torch
from ricnet.core.policies import drawing_from
from ricnet.methods import RIC, ClosedForm, OnPolicy
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier
from ricnet.training.optimization import compile_encoder, compile_method

built = []

def works(graph, inputs):
    built.append(graph)
    return graph.forward

def fails(graph, inputs):
    raise RuntimeError("no compiler here")

real = torch.compile
method, labels = OnPolicy(horizon=3, rollouts=2, label_baseline=True), torch.tensor([0, 1, 2, 3, 0])
model = RecurrentClassifier(Backbone(torch.nn.Linear(3, 8), (3,)), 8, 4)
rollout = method.roll_out(model, model.context(torch.randn(5, 3)).detach())
heads = Heads(torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5), torch.randn(3, 2, 5))

def losses(method, weights=None):
    estimates = method.estimate_advantages(rollout, labels, weights)
    return method.actor_critic_loss(heads, rollout, estimates, labels, weights)

others = (ClosedForm(horizon=3, rollouts=2), RIC(horizon=3, rollouts=2, credit="marginal"))
for each, backends in (*((other, (works,)) for other in others), (method, (works, fails))):
    expected, metrics = losses(each)
    built.clear()
    for backend in backends:
        torch._dynamo.reset()
        torch.compile = functools.partial(real, backend=backend)
        loss, same = losses(compile_method(each))
        torch.testing.assert_close(loss, expected)
        assert same.keys() == metrics.keys()
    assert len(built) == 2, "advantages and loss must be one graph each"

weights = torch.tensor([0.5, 1.5, 1.0, 0.5, 1.5])
expected, _ = losses(method, weights)
torch._dynamo.reset()
built.clear()
torch.compile = functools.partial(real, backend=works)
loss, _ = losses(compile_method(method), weights)
torch.testing.assert_close(loss, expected)
assert len(built) == 2, "with weights too"
built.clear()

context, generator = model.context(torch.randn(5, 3)).detach(), torch.Generator()
for own, graphs in ((None, 1), (generator, None)):  # torch traces no generator: what is drawn from one is not compiled
    torch._dynamo.reset()
    built.clear()
    for start in (torch.manual_seed, generator.manual_seed):
        start(0)
    with drawing_from(own):
        expected = method.roll_out(model, context).log_actions
        for start in (torch.manual_seed, generator.manual_seed):
            start(0)
        torch.testing.assert_close(compile_method(method).roll_out(model, context).log_actions, expected)
    assert graphs is None or len(built) == graphs, "a step is one graph"
built.clear()

encoder, inputs = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)), torch.randn(16, 3)
expected = encoder(inputs)
compile_encoder(encoder)
encoder.eval()(inputs)
assert not built, "evaluation must stay as it was"
torch.testing.assert_close(encoder.train()(inputs), expected)
assert len(built) == 1
"""


def test_compiled_parts_do_the_same_and_fall_back_where_they_cannot_be_compiled() -> None:
    """In a process of its own, where nothing checks types: torch cannot trace through the checks. The backend stands in
    for the real one, which takes half a minute: it runs what was traced, or fails as a missing compiler does."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_methods_have_nothing_to_compile() -> None:
    method = Supervised()
    assert compile_method(method) is method


INPUTS = torch.arange(60.0).view(20, 3)


def test_inputs_are_indexed_on_the_device_if_they_fit_else_fed_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resident = Feed(INPUTS, CPU, 2)
    assert (resident.streams, resident.inputs is INPUTS) == (False, True)
    monkeypatch.setattr(training, "fits", lambda *_: False)
    streaming, order = Feed(INPUTS, CPU, 5), torch.randperm(20).split(5)
    place = streaming.staged
    for rows, following in [(0, 1), (1, 2), (2, 0), (3, 1), (1, 1), (1, 3)]:  # twice it is not what was foretold
        streaming.stage(order[rows], order[following])
        assert torch.equal(streaming.staged, INPUTS[order[rows]])
        assert streaming.staged is place


def test_inputs_fit_on_a_gpu_if_enough_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, meta = torch.device("cuda"), torch.device("meta")
    monkeypatch.setattr(training, "free_bytes", lambda _: 2 * INPUTS.nbytes)
    assert training.fits(INPUTS, gpu)
    assert not training.fits(torch.cat([INPUTS, INPUTS[:1]]), gpu)
    monkeypatch.setattr(training, "free_bytes", lambda _: 0)
    assert not training.fits(INPUTS, gpu)
    assert not Feed(INPUTS.to(meta), meta, 2).streams


def test_a_gpu_without_a_number_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    same = [("cuda:1", "cuda"), ("cuda:0", "cuda:0"), ("mps:0", "mps")]
    other = [("cuda:0", "cuda"), ("cuda:0", "cuda:1"), ("cpu", "cuda:0")]
    for pair in same + other:
        assert training.is_same(*map(torch.device, pair)) == (pair in same)


def test_training_does_not_depend_on_where_the_data_lies(
    dataset: Dataset, finished: Callable[[str], RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "fits", lambda *_: False)
    run(configured(dataset), dataset, RunFolder(tmp_path), CPU)
    assert_same_weights(tmp_path, finished("ric-on-policy").path)


@pytest.mark.parametrize(
    ("updates", "expected"), [(1, 0.0), (10, 0.0), (11, 10 / 11), (25, (0 + 10 * 10 + 5 * 20) / 25)]
)
def test_rare_diagnostics_stand_for_the_updates_up_to_the_next(updates: int, expected: float) -> None:
    """The diagnostic of an update is its number, so that the mean shows which updates were measured."""

    class Numbered(OnPolicy):
        def metrics(self, *inputs: Any) -> dict[str, Tensor]:
            return {"number": torch.tensor(float(learner.update))}

    labels = torch.arange(4 * updates) % 3
    split = Split(torch.randn(len(labels), 2), labels)
    dataset = Dataset("numbers", split, split, split, ("a", "b", "c"))
    config = configure(dataset, "ric-on-policy", "fast", torch.device("cpu"), batch_size=4, horizon=1)
    numbered = Numbered(**vars(config.method))
    learner = Trainer(replace(config, method=numbered), dataset, None, torch.device("cpu"))
    for _ in range(updates):
        learner._step()
    assert float(learner.sums["number"]) / updates == pytest.approx(expected)
    assert len(learner.sums) == 5  # loss, number, value_loss, classifier_norm, gradient_norm
