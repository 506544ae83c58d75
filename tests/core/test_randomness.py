from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from ricnet.core.randomness import building_with, current, drawing_from

MAKERS: dict[str, Callable[[], Tensor]] = {
    "linear": lambda: nn.Linear(7, 5).weight,
    "convolution": lambda: nn.Conv2d(3, 4, 3).weight,
    "embedding": lambda: nn.Embedding(20, 3).weight,
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 4)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(4, 4)),
    "rand": lambda: torch.rand(3, 4),
    "randn": lambda: torch.randn(3, 4),
    "randint": lambda: torch.randint(9, (20,)),
    "randint from": lambda: torch.randint(3, 9, (20,)),
    "randperm": lambda: torch.randperm(20),
    "recurrent": lambda: nn.GRU(3, 4).weight_hh_l0,
    "uniform": lambda: torch.empty(3, 4).uniform_(-1, 1),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.5)),
    "own generator": lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_built_draws_what_torch_would_have_drawn_and_leaves_it_alone(name: str) -> None:
    torch.manual_seed(8)
    expected = MAKERS[name]().detach().clone()
    following = torch.rand(3) if name != "own generator" else None
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(8)
    with building_with(generator):
        made = MAKERS[name]().detach()
    assert torch.equal(made, expected)
    assert torch.equal(torch.get_rng_state(), state)
    if following is not None:
        assert torch.equal(torch.rand(3, generator=generator), following)


def test_without_a_generator_torch_draws() -> None:
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    with building_with(None):
        assert torch.equal(torch.rand(3), expected)


def test_each_thread_has_its_own() -> None:
    generator = torch.Generator()
    assert current() is None
    with drawing_from(generator), ThreadPoolExecutor(1) as other:
        assert current() is generator
        assert other.submit(current).result() is None
        with drawing_from(None):
            assert current() is None
        assert current() is generator
    assert current() is None
