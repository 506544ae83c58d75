import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ricnet.core import mdp
from ricnet_paper.theory import proposition2
from ricnet_paper.theory.proposition2 import CLASSES, Mixture, separable, strongly_non_separable

pytestmark = pytest.mark.usefixtures("_undrawn")
UPDATES = 3000


def test_holds() -> None:
    finding = proposition2.examine(UPDATES)
    assert finding.passed, finding.statement
    norms = {
        name: [row["norm"] for row in finding.rows if row["quantity"] == "norm" and row["objective"] == name]
        for name in ("last step", "mixture")
    }
    assert norms["last step"][-1] > 3 * norms["mixture"][-1]
    assert norms["last step"] == sorted(norms["last step"])


def all_on_the_last_step(steps: int, gamma: float) -> Tensor:
    weights = torch.zeros(steps, dtype=torch.float64)
    weights[-1] = 1
    return weights


def test_fails_without_weight_on_early_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdp, "geometric_weights", all_on_the_last_step)
    assert not proposition2.examine(UPDATES).passed


@pytest.mark.parametrize("progress", [0.95, 0.001])
def test_fails_where_its_conditions_do(progress: float) -> None:
    """Thoughts that are separable at once, and thoughts that never are."""
    assert not proposition2.examine(200, progress=progress).passed


def test_fails_where_the_gradient_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = Mixture.gradient
    monkeypatch.setattr(Mixture, "gradient", lambda self, w: gradient(self, w) + 0.1 * w)
    assert not proposition2.examine(UPDATES).passed  # weight decay: the last step's W stays finite too


def problem() -> Mixture:
    rng = np.random.default_rng(0)
    return Mixture(rng.normal(size=(30, 2)), rng.integers(0, CLASSES, 30), rng.uniform(0.5, 1.5, 30) / 30)


def test_loss_and_gradient_agree_with_torch() -> None:
    mixture, w = problem(), np.random.default_rng(1).normal(size=(CLASSES, 2))
    weights = torch.tensor(w, requires_grad=True)
    logits = torch.from_numpy(mixture.inputs) @ weights.T
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(mixture.labels), reduction="none")
    loss = torch.from_numpy(mixture.weights) @ losses
    loss.backward()
    assert mixture.loss(w) == pytest.approx(loss.item())
    np.testing.assert_allclose(mixture.gradient(w), weights.grad)


def test_minimiser_agrees_with_scikit_learn() -> None:
    mixture = problem()
    model = LogisticRegression(C=1e10, fit_intercept=False, tol=1e-10, max_iter=1000)
    model.fit(mixture.inputs, mixture.labels, sample_weight=mixture.weights)
    np.testing.assert_allclose(mixture.minimiser(), model.coef_ - model.coef_.mean(0), atol=1e-3)


def test_separability_by_hand() -> None:
    corners = np.array([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]])
    labels = np.array([0, 1, 2])
    assert separable(corners, labels)
    assert not strongly_non_separable(corners, labels)
    twice, both = np.concatenate([corners, corners]), np.array([0, 1, 2, 1, 2, 0])
    assert not separable(twice, both)
    assert not strongly_non_separable(twice, both)  # W may tie the two labels of each corner
    thrice, all_labels = np.concatenate([twice, corners]), np.concatenate([both, [2, 0, 1]])
    assert strongly_non_separable(thrice, all_labels)
    line = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    assert not strongly_non_separable(line, np.array([0, 1, 2, 2]))  # W may be anything across the line
