"""RIC with 10, 100 and 1,000 classes where the true distribution is known: the best its policy can express, and what it
learns.

    python benchmarks/label_spaces.py [--json FILE]

Inputs are normal and labels follow q(y | x) = softmax(W x), with one random W per number of classes. Each update sees
new rows, so nothing can be over-fitted and no loss is below the entropy of q. Answers are compared with q.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from common import Row, argument_parser, publish
from ricnet.core.policies import Dirichlet
from ricnet.evaluation.metrics import BINS, bin_index
from ricnet.methods import RIC, Anytime, Method, Supervised
from ricnet.nets.backbone import Backbone
from ricnet.training.recipes import Facts, preset

CLASSES = (10, 100, 1000)
FEATURES, SHARPNESS, SIZE = 4, 3.0, 64
STEPS, BATCH, UPDATES, RATE = 3, 32, 600, 1e-2
SEEDS = 2
TESTED = 2_000
MANY_ROWS = 50_000

Truth = Float[Tensor, "n classes"]
"""log q(y | x)."""


def draw_teacher(classes: int) -> Float[Tensor, "classes features"]:
    return SHARPNESS * torch.randn(classes, FEATURES, generator=torch.Generator().manual_seed(classes))


def draw_inputs(count: int, teacher: Float[Tensor, "classes features"]) -> tuple[Float[Tensor, "n features"], Truth]:
    inputs = torch.randn(count, FEATURES)
    return inputs, (inputs @ teacher.t()).log_softmax(-1)


def ranges(classes: int) -> dict[str, RIC]:
    """Ranges of α = μ·c + ε: of the paper, of joint credit, and of marginal credit and the closed form."""
    return {"paper": RIC(), "c up to K": joint(classes), "c up to 10 K": closed_form(classes)}


def joint(classes: int) -> RIC:
    method = preset("fast", "ric-on-policy", Facts(MANY_ROWS, classes, side=32), {"credit": "joint"}).method
    assert isinstance(method, RIC)
    return method


def closed_form(classes: int) -> RIC:
    method = preset("fast", "ric-closed-form", Facts(MANY_ROWS, classes, side=32)).method
    assert isinstance(method, RIC)
    return method


def cap(method: RIC, classes: int) -> float:
    return (method.c_max + method.alpha_floor) / (method.c_max + classes * method.alpha_floor)


def optimum(log_truth: Truth, method: RIC, updates: int = 300) -> Dirichlet:
    """The policy with the highest E_q[log a_y]. It has the largest c, because more concentration is always better."""
    log_truth = log_truth.double()
    logits = log_truth.clone().requires_grad_()
    concentration = log_truth.new_full(log_truth.shape[:-1], method.c_max)
    optimizer = torch.optim.Adam([logits])
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 0.3 * decay(update / updates)
        policy = Dirichlet.around(logits.log_softmax(-1), concentration, method.alpha_floor)
        gain = (log_truth.exp() * policy.alpha.digamma()).sum(-1) - policy.total.digamma()
        optimizer.zero_grad()
        (-gain.sum()).backward()
        optimizer.step()
    return Dirichlet.around(logits.detach().log_softmax(-1), concentration, method.alpha_floor)


def decay(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


@torch.no_grad()
def judge(log_beliefs: Truth, log_truth: Truth) -> dict[str, float]:
    """Loss against q in nats, accuracy and calibration under q."""
    truth, beliefs = log_truth.double().exp(), log_beliefs.double()
    confidence, answer = beliefs.max(-1)
    right = truth.gather(-1, answer.unsqueeze(-1)).squeeze(-1)
    gap = torch.bincount(bin_index(confidence.exp()), confidence.exp() - right, BINS)
    return {
        "KL": float((truth * (log_truth - beliefs)).sum(-1).mean()),
        "accuracy": float(right.mean()),
        "ECE": float(gap.abs().sum() / len(right)),
        "confidence": float(confidence.exp().mean()),
    }


def at_best(classes: int, count: int = 100) -> list[Row]:
    torch.manual_seed(0)
    _, log_truth = draw_inputs(count, draw_teacher(classes))
    return [
        {"classes": classes, "range": name, "c up to": method.c_max, "ε": method.alpha_floor}
        | {"cap": cap(method, classes)}
        | judge(optimum(log_truth, method).log_mean(), log_truth)
        for name, method in ranges(classes).items()
    ]


def systems(classes: int) -> dict[str, Method[Any]]:
    closed, whole = (replace(method, horizon=STEPS) for method in (closed_form(classes), joint(classes)))
    wide = replace(whole, head_gain=closed.head_gain, alpha_floor=closed.alpha_floor, c_max=closed.c_max)
    normal = replace(whole, head="logistic-normal")
    return {
        "SL": Supervised(),
        "anytime": Anytime(horizon=STEPS),
        "RIC, closed form, c ≤ 10, ε = 0.01": replace(closed, c_max=10.0, alpha_floor=0.01),
        "RIC, closed form": closed,
        "RIC, on-policy, c ≤ K": whole,
        "RIC, on-policy, c ≤ K, marginal credit": replace(whole, credit="marginal"),
        "RIC, on-policy, c ≤ 10 K": wide,
        "RIC, on-policy, c ≤ 10 K, marginal credit": replace(wide, credit="marginal"),
        "logistic-normal, c ≤ 10": replace(normal, c_max=10.0),
        "logistic-normal, c up to K": normal,
    }


def learn(method: Method[Any], teacher: Float[Tensor, "classes features"], seed: int, updates: int) -> nn.Module:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(FEATURES, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE), nn.ReLU())
    model: nn.Module = method.build(Backbone(encoder, (FEATURES,)), len(teacher))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = RATE * decay(update / updates)
        inputs, log_truth = draw_inputs(BATCH, teacher)
        labels = torch.multinomial(log_truth.exp(), 1).squeeze(-1)
        loss, _ = method.loss(model, model, inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def as_learned(classes: int, seeds: int = SEEDS, updates: int = UPDATES) -> list[Row]:
    teacher = draw_teacher(classes)
    torch.manual_seed(seeds)  # no model is trained with this seed
    inputs, log_truth = draw_inputs(TESTED, teacher)
    rows: list[Row] = []
    for name, method in systems(classes).items():
        start = time.perf_counter()
        models = [learn(method, teacher, seed, updates) for seed in range(seeds)]
        seconds = (time.perf_counter() - start) / seeds
        results = [judge(method.refine(model, inputs).final, log_truth) for model in models]
        rows.append(
            {"classes": classes, "system": name, "q": float(log_truth.exp().amax(-1).mean())}
            | {key: statistics.mean(result[key] for result in results) for key in results[0]}
            | {"± KL": max(r["KL"] for r in results) - min(r["KL"] for r in results), "s": seconds}
        )
    return rows


def noise(classes: int, updates: int = 100, draws: int = 30) -> list[Row]:
    """Mean distance of the policy's gradient from its mean over samples of beliefs, relative to the norm of the mean,
    for one network early in training and the same inputs."""
    teacher = draw_teacher(classes)
    model = learn(systems(classes)["RIC, closed form"], teacher, 0, updates)
    inputs, log_truth = draw_inputs(BATCH, teacher)
    labels = torch.multinomial(log_truth.exp(), 1).squeeze(-1)
    rows: list[Row] = []
    for name, method in systems(classes).items():
        if not isinstance(method, RIC) or method.head != "dirichlet":
            continue
        alone = replace(method, value_coef=0.0)
        losses = (alone.loss(model, model, inputs, labels)[0] for _ in range(draws))
        drawn = torch.stack([torch.autograd.grad(loss, model.refiner.policy.weight)[0].flatten() for loss in losses])
        mean = drawn.mean(0)
        rows.append(
            {"classes": classes, "system": name, "noise": float((drawn - mean).norm(dim=1).mean() / mean.norm())}
        )
    return rows


def every(measure: Callable[[int], list[Row]]) -> list[Row]:
    return [row for classes in CLASSES for row in measure(classes)]


def main() -> None:
    options = argument_parser(__doc__).parse_args()
    device, path = options.device, options.json
    legend = "KL(q ‖ answer) in nats; accuracy: probability of the answer under q; ECE in 15 bins, against q."
    publish("The best mean belief of a Dirichlet", every(at_best), [legend], device, path)
    course = (
        f"{UPDATES} updates of {BATCH}, T = {STEPS}, {SEEDS} seeds, ± their range; q: the highest possible accuracy."
    )
    learned = path and path.with_stem(f"{path.stem}-learned")
    publish("What was learned", every(as_learned), [legend, course], device, learned)
    drawn = f"Weights of the policy head, {BATCH} inputs, T = {STEPS}; 1 is the norm of the mean gradient."
    publish("Noise of the gradient", every(noise), [drawn], device, path and path.with_stem(f"{path.stem}-noise"))


if __name__ == "__main__":
    main()
