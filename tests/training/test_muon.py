import pytest
import torch
from torch import nn

from ricnet.training.muon import BETAS, ROOT_MEAN_SQUARE, Muon, orthogonalized


@pytest.mark.parametrize("shape", [(8, 8), (4, 30), (30, 4)])
def test_singular_values_become_about_one_and_vectors_stay(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(*shape)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonalized(matrix)
    inner = u.mT @ made @ vt.mT  # diagonal if the singular vectors stay
    assert (inner - torch.diag(inner.diag())).abs().max() < 1e-3
    assert inner.diag().min() > 0.6
    assert inner.diag().max() < 1.3


def test_one_newton_schulz_iteration_by_hand() -> None:
    """Of the 1 × 1 matrix 5: it becomes 1, and then p(x) = 3.4445 x − 4.775 x³ + 2.0315 x⁵, five times."""
    x = 1.0
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    assert orthogonalized(torch.tensor([[5.0]])).item() == pytest.approx(x, rel=1e-4)


def test_other_parameters_are_updated_by_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    muon = Muon([{"params": list(ours.parameters())}], 0.1, 0.9, 0.3)
    adamw = torch.optim.AdamW(theirs.parameters(), 0.1, BETAS, weight_decay=0.3)
    for seed in range(4):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        for net, optimizer in ((ours, muon), (theirs, adamw)):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_step_of_a_convolution_has_the_size_of_adamws() -> None:
    """Without decay: lr times 0.2 √max(rows, columns) times an orthogonal matrix; its root mean square is about
    0.2·lr."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(8, 16, 3, bias=False)
    before = convolution.weight.detach().clone()
    optimizer = Muon([{"params": [convolution.weight], "muon": True}], torch.tensor(0.01), 0.9, 0.0)
    convolution(torch.randn(4, 8, 5, 5)).square().sum().backward()
    gradient = convolution.weight.grad
    assert gradient is not None
    optimizer.step()
    change = before - convolution.weight.detach()
    expected = 0.01 * ROOT_MEAN_SQUARE * 72**0.5 * orthogonalized(gradient.flatten(1)).view_as(change)
    torch.testing.assert_close(change, expected, rtol=1e-3, atol=1e-5)
    assert float(change.square().mean().sqrt()) == pytest.approx(0.01 * 0.2, rel=0.2)
