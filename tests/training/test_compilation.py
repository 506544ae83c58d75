import subprocess
import sys
import textwrap

from ricnet.methods import Supervised
from ricnet.training.compilation import compile_method

SCRIPT = """
import functools
import torch
from ricnet.methods import RIC
from ricnet.nets.refiner import Heads, RecurrentClassifier
from ricnet.training.compilation import compile_encoder, compile_method

built = []

def works(graph, inputs):
    built.append(graph)
    return graph.forward

def fails(graph, inputs):
    raise RuntimeError("no compiler here")

real = torch.compile
method, labels = RIC.fast(rows=100, classes=4), torch.tensor([0, 1, 2, 3, 0])
model = RecurrentClassifier(torch.nn.Linear(3, 8), 8, 4)
rollout = method.roll_out(model, model.context(torch.randn(5, 3)).detach())
heads = Heads(torch.randn(20, 2, 5, 4), torch.randn(20, 2, 5), torch.randn(20, 2, 5))
expected, metrics = method.judge(heads, rollout, labels)
for backend in (works, fails):
    torch._dynamo.reset()
    torch.compile = functools.partial(real, backend=backend)
    loss, same = compile_method(method).judge(heads, rollout, labels)
    torch.testing.assert_close(loss, expected)
    assert same.keys() == metrics.keys()
assert len(built) == 1, "the judgement must be one graph"

weights = torch.tensor([0.5, 1.5, 1.0, 0.5, 1.5])
expected, _ = method.judge(heads, rollout, labels, weights)
torch._dynamo.reset()
built.clear()
torch.compile = functools.partial(real, backend=works)
loss, _ = compile_method(method).judge(heads, rollout, labels, weights)
torch.testing.assert_close(loss, expected)
assert len(built) == 1, "with weights too"

torch.compile = functools.partial(real, backend=works)
encoder, inputs = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)), torch.randn(16, 3)
expected = encoder(inputs)
compile_encoder(encoder)
encoder.eval()(inputs)
assert len(built) == 1, "evaluation must stay as it was"
torch.testing.assert_close(encoder.train()(inputs), expected)
assert len(built) == 2
"""


def test_compiled_parts_do_the_same_and_fall_back_where_they_cannot_be_compiled() -> None:
    """In a process of its own, where nothing checks types: torch cannot trace through the checks. The backend stands in
    for the real one, which takes half a minute: it runs what was traced, or fails as a missing compiler does."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_methods_have_nothing_to_compile() -> None:
    method = Supervised()
    assert compile_method(method) is method
