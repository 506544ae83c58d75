import pytest
import torch

from label_spaces import as_learned, cap, draw_inputs, draw_teacher, judge, noise, optimum, ranges
from ricnet.methods import RIC


@pytest.mark.parametrize(("truth", "mean"), [(0.99, 0.911), (0.90, 0.727), (0.60, 0.442)])
def test_the_best_dirichlet_falls_short_of_the_truth_by_a_known_amount(truth: float, mean: float) -> None:
    log_truth = torch.tensor([[truth] + [(1 - truth) / 9] * 9]).log()
    policy = optimum(log_truth, RIC())
    assert policy.log_mean().exp()[0, 0].item() == pytest.approx(mean, abs=5e-4)
    torch.testing.assert_close(policy.read("implied"), log_truth.double(), atol=1e-3, rtol=0)


def test_with_a_thousand_classes_the_papers_range_cannot_say_what_ours_can() -> None:
    assert {name: round(cap(method, 1000), 3) for name, method in ranges(1000).items()} == {
        "paper": 0.5,
        "c up to K": 1.0,
        "c up to 10 K": 0.99,
    }


def test_the_truth_is_judged_perfect_and_a_tempered_one_is_not() -> None:
    _, log_truth = draw_inputs(50, draw_teacher(10))
    perfect = judge(log_truth, log_truth)
    assert perfect["KL"] == pytest.approx(0, abs=1e-6)
    assert perfect["ECE"] == pytest.approx(0, abs=1e-6)
    assert perfect["accuracy"] == pytest.approx(perfect["confidence"], abs=1e-6)
    soft = judge((log_truth / 3).log_softmax(-1), log_truth)
    assert soft["KL"] > 0.05
    assert soft["ECE"] == pytest.approx(soft["accuracy"] - soft["confidence"], abs=1e-6)


def test_marginal_credit_has_less_noise_the_more_the_more_classes() -> None:
    def ratio(classes: int) -> float:
        found = {row["system"]: row["noise"] for row in noise(classes, updates=5, draws=10)}
        return found["RIC, on-policy, c ≤ 10 K"] / found["RIC, on-policy, c ≤ 10 K, marginal credit"]

    assert 1 < ratio(5) < ratio(50)


def test_every_system_is_trained_and_judged() -> None:
    rows = as_learned(5, seeds=1, updates=2)
    assert len(rows) == 10
    assert all(row["KL"] > 0 for row in rows)
