"""Early exits: inputs, costs and values of the steps, and that skipped stages are not computed."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from refusals import refusal
from ricnet.core import mdp
from ricnet.methods import METHODS, RIC, Anytime, ClosedForm, OnPolicy, Supervised
from ricnet.methods.inference import Steps, unroll
from ricnet.methods.ric import Estimates
from ricnet.nets.backbone import Backbone, divide
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.refiner import at_step
from ricnet.training.recipes import Facts, preset

CLASSES, WIDTH = 3, 4
INPUTS = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % CLASSES
FACTS = Facts(rows=100, classes=CLASSES, side=0, exits=True)


class Counted(nn.Module):
    """A layer that says how many rows it has seen."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(inputs, WIDTH, bias=False), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        return self.layer(x).tanh()


def network(method, steps_per_exit=1):
    torch.manual_seed(0)
    encoder = nn.Sequential(Counted(5), Counted(WIDTH), Counted(WIDTH))
    return method.build(Backbone(encoder, (5,), "block", steps_per_exit), CLASSES).eval()


def rows_seen(model):
    return [stage.rows for stage in model.backbone.stages]


def forget(model):
    for stage in model.backbone.stages:
        stage.rows = 0


def test_costs_are_the_multiply_adds_of_stages_and_steps():
    model = network(RIC(horizon=3))
    gates, hidden = 3 * WIDTH, WIDTH + CLASSES
    step = WIDTH * gates + CLASSES * gates + WIDTH * gates + WIDTH * (CLASSES + 2) + hidden * WIDTH + WIDTH
    stages = [5 * WIDTH, WIDTH * WIDTH, WIDTH * WIDTH]
    spent = torch.tensor([stage + step for stage in stages], dtype=torch.float64).cumsum(0)
    assert model.costs == pytest.approx((spent / spent[-1]).tolist())


def test_step_t_reads_stage_of_its_exit():
    model = network(RIC(horizon=6), steps_per_exit=2)
    context, seen = model.context(INPUTS), INPUTS
    assert len(context) == len(model.costs) == 6
    for stage, module in enumerate(model.backbone.stages):
        seen = module(seen)
        expected = model.refiner.from_features[stage](seen)
        assert torch.equal(at_step(context, 2 * stage), expected)
        assert torch.equal(at_step(context, 2 * stage + 1), expected)


def test_inference_reads_the_same_stages_as_training_with_two_steps_an_exit():
    method = RIC(horizon=6)
    model = network(method, steps_per_exit=2)
    context, (thought, belief) = model.context(INPUTS), model.initial_state(INPUTS)
    path = method.refine(model, INPUTS)
    assert path.steps == 6
    for t in range(6):
        thought = model.refiner.think(at_step(context, t), thought, belief)
        belief = method.policy(model.refiner.heads(thought)).log_mean().exp()
        torch.testing.assert_close(path.log_beliefs[t].exp(), belief)


@pytest.mark.parametrize("exits", ["stage", "block"])
def test_stages_of_a_resnet_do_its_work(exits):
    encoder = build_encoder(EncoderOptions("resnet10", width=0.1), (3, 8, 8)).eval()
    x = seen = torch.randn(2, 3, 8, 8)
    stages = divide(encoder, exits)
    for stage in stages:
        seen = stage(seen)
    assert torch.equal(seen.mean((2, 3)), encoder(x))


def test_blocks_and_stages_of_a_resnet18():
    encoder = build_encoder(EncoderOptions("resnet18", width=0.1), (3, 8, 8))
    assert [len(divide(encoder, exits)) for exits in ("stage", "block")] == [4, 8]
    assert [
        len(divide(build_encoder(EncoderOptions(name), shape), "stage"))
        for name, shape in (("conv", (1, 8, 8)), ("mlp", (7,)))
    ] == [3, 2]


@pytest.mark.parametrize("encoder", [nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 4))], ids=["layer", "sequence of one"])
def test_an_encoder_that_cannot_be_left_early_is_refused(encoder):
    with refusal("exits"):
        divide(encoder, "stage")


def test_remaining_gain_by_hand():
    rewards, values = torch.tensor([0.5, -0.2, 0.3]), torch.tensor([9.0, 1.0, -1.0, 0.0])
    assert torch.allclose(mdp.remaining_gain(rewards, values, stops=False), torch.tensor([0.6, 0.1, 0.3]))
    # the value before the third step is negative: who stops there gains nothing from it
    assert torch.allclose(mdp.remaining_gain(rewards, values, stops=True), torch.tensor([0.3, -0.2, 0.3]))


@pytest.mark.parametrize("price", [0.0, 0.7])
def test_the_value_of_ric_learns_the_remaining_gain_minus_its_price(price):
    method = RIC(horizon=3, rollouts=2, compute_price=price, normalize_advantages=False)
    model = network(method)
    rollout = method.roll_out(model, model.context(INPUTS))
    estimates = method.estimate_advantages(rollout, LABELS)
    scores = mdp.log_scores(rollout.log_actions, LABELS)
    before = torch.cat([torch.full_like(scores[:1], -math.log(CLASSES)), scores[:-1]])
    spent = torch.tensor([0.0, *model.costs])
    assert (rollout.values[-1] == 0).all()
    following = torch.zeros_like(scores[0])
    for t in (2, 1, 0):
        stays = rollout.values[t + 1] > 0 if price else torch.ones_like(following, dtype=torch.bool)
        following = scores[t] - before[t] - price * (spent[t + 1] - spent[t]) + following * stays
        assert torch.allclose(estimates.targets[t], following, atol=1e-6)
    returns = sum(method.gamma**k * (scores[k] - before[k]) for k in range(3))
    assert torch.allclose(estimates.advantages[0], returns - rollout.values[0], atol=1e-6)


@pytest.mark.parametrize("price", [0.0, 0.7])
def test_the_closed_form_with_exits_by_hand(price):
    """The default with exits. A step counts with E[log a_y], the value from the belief that was fed back; log a_y is
    in the return of its step once, and −γ times as the start of the next one."""
    method = ClosedForm(horizon=3, rollouts=2, compute_price=price, normalize_advantages=False, gae_lambda=0.3)
    model = network(method)
    rollout = method.roll_out(model, model.context(INPUTS))
    estimates = method.estimate_advantages(rollout, LABELS)
    drawn, expected = mdp.log_scores(rollout.log_actions, LABELS), rollout.policy.expected_log_score(LABELS)
    spent, uniform = torch.tensor([0.0, *model.costs]), torch.full_like(drawn[0], -math.log(CLASSES))
    following, discounted = torch.zeros_like(uniform), torch.zeros_like(uniform)
    for t in (2, 1, 0):
        start, fed_back = (expected[t - 1], drawn[t - 1]) if t else (uniform, uniform)
        stays = rollout.values[t + 1] > 0 if price else torch.ones_like(following, dtype=torch.bool)
        following = expected[t] - start - price * (spent[t + 1] - spent[t]) + following * stays
        discounted = expected[t] - start + method.gamma * discounted
        torch.testing.assert_close(estimates.targets[t], following + start - fed_back, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(estimates.advantages[t], discounted - rollout.values[t], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(drawn, expected, atol=0.01)
    assert estimates.reward_coefficient.flatten().tolist() == pytest.approx([1 - method.gamma] * 2 + [1.0])
    torch.testing.assert_close(estimates.own_advantages, estimates.reward_coefficient * (drawn - expected))


@pytest.mark.parametrize("credit", ["joint", "marginal"])
def test_the_label_baseline_with_exits_compares_discounted_returns(credit):
    """Each roll-out against the other one, by Σ_k γ^{k−t} r_k + log a_{t−1,y}; not by the value's target, which is
    undiscounted and less the price."""
    method = OnPolicy(
        horizon=3, rollouts=2, label_baseline=True, compute_price=0.7, normalize_advantages=False, credit=credit
    )
    model = network(method)
    rollout = method.roll_out(model, model.context(INPUTS))
    estimates = method.estimate_advantages(rollout, LABELS)
    drawn = mdp.log_scores(rollout.log_actions, LABELS)
    scores = drawn if credit == "joint" else rollout.policy.expected_log_score(LABELS)
    following = torch.zeros_like(scores[0])
    for t in (2, 1, 0):
        start = scores[t - 1] if t else torch.full_like(scores[0], -math.log(CLASSES))
        following = scores[t] - start + method.gamma * following
        outcome = following + start
        if credit == "marginal":  # E[log a_{t,y}] is a constant of the state
            outcome = outcome - (1 - method.gamma * (t < 2)) * scores[t]
        torch.testing.assert_close(estimates.advantages[t], outcome - outcome.flip(0), rtol=1e-4, atol=1e-5)


def test_the_closed_form_differentiates_the_expected_gain_of_each_exit():
    method = ClosedForm(horizon=3, rollouts=2, value_coef=0.0, normalize_advantages=False)
    model = network(method)
    rollout = method.roll_out(model, model.context(INPUTS))
    heads = method.replay(model, model.context(INPUTS), rollout.log_actions)
    nothing = torch.zeros_like(rollout.values[:-1])
    coefficient = torch.tensor([0.2, 0.2, 1.0]).view(3, 1, 1)
    estimates = Estimates(nothing, nothing, nothing, nothing, coefficient)
    loss, _ = method.actor_critic_loss(heads, rollout, estimates, LABELS)
    torch.testing.assert_close(loss, -(coefficient * method.policy(heads).expected_log_score(LABELS)).mean())


@pytest.mark.parametrize("price", [0.0, 0.7])
def test_the_value_of_anytime_learns_the_remaining_gain_minus_its_price(price):
    """By hand, in the loss itself: the error of a value against what is still to be gained, less the price."""
    method = Anytime(horizon=3, value_coef=0.5, compute_price=price)
    model = network(method)
    heads = unroll(model, INPUTS, 3, value_first=True)
    scores, spent = mdp.log_scores(heads.logits.log_softmax(-1), LABELS), torch.tensor([0.0, *model.costs])
    following, errors = torch.zeros(len(LABELS)), []
    for t in (2, 1, 0):
        gain = scores[t] - (scores[t - 1] if t else -math.log(CLASSES)) - price * (spent[t + 1] - spent[t])
        stays = heads.value[t + 1] > 0 if price and t < 2 else torch.ones(len(LABELS), dtype=torch.bool)
        following = gain + following * stays
        errors.append((heads.value[t] - following).square().mean())
    _, metrics = method.loss(model, model, INPUTS, LABELS)
    torch.testing.assert_close(metrics["value_loss"], torch.stack(errors).mean())


def test_gains_by_hand():
    """Two steps with γ = 0.5: without exits GAE with λ = 0.5, with them returns in which the value is no bootstrap."""
    rewards, values, costs = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0, 4.0]), torch.tensor([0.3, 0.7])
    plain = mdp.estimate(rewards, values, 0.5, 0.5)
    deltas = [1.0 - 0.5 - 0.5, 2.0 + 2.0 + 1.0]
    assert plain.advantages.tolist() == pytest.approx([deltas[0] + 0.25 * deltas[1], deltas[1]])
    assert plain.returns.tolist() == plain.targets.tolist() == pytest.approx([1.25 + 0.5, 5.0 - 1.0])
    assert plain.discount == 0.25
    staged = mdp.estimate(rewards, values, 0.5, 0.5, costs)
    assert staged.returns.tolist() == pytest.approx([2.0, 2.0])
    assert staged.advantages.tolist() == pytest.approx([1.5, 3.0])
    assert staged.targets.tolist() == pytest.approx([3.0, 2.0])
    assert staged.discount == 0.5
    priced = mdp.estimate(rewards, values, 0.5, 0.5, costs, price=1.0)
    assert priced.returns.tolist() == pytest.approx([2.0, 2.0])
    assert priced.targets.tolist() == pytest.approx([0.7, 1.3])  # V(s_2) < 0: it would stop after the first step


@pytest.mark.parametrize("learns", [True, False])
def test_only_the_part_that_estimates_the_value_is_trained(learns):
    with_exits, whole = network(RIC(horizon=3)), RIC(horizon=3).build(Backbone(nn.Linear(5, 4), (5,)), CLASSES)
    for model in (with_exits, whole):
        model.train_value(learns)
    critic = {p.requires_grad for p in with_exits.refiner.critic.parameters()}
    assert (critic, with_exits.refiner.value.weight.requires_grad) == ({learns}, False)
    assert whole.refiner.value.weight.requires_grad is learns


def test_replay_asks_the_value_of_the_state_before_each_step():
    method = RIC(horizon=3, rollouts=2)
    model = network(method)
    context = model.context(INPUTS)
    rollout = method.roll_out(model, context)
    heads = method.replay(model, context, rollout.log_actions)
    assert torch.allclose(heads.value, rollout.values[:-1], atol=1e-6)  # on-policy: the same network, the same states
    assert torch.allclose(method.policy(heads).log_mean(), rollout.policy.log_mean(), atol=1e-5)


def test_unroll_and_inference_see_the_same():
    method = Anytime(horizon=3, value_coef=0.5)
    model = network(method)
    path = method.refine(model, INPUTS)
    heads = unroll(model, INPUTS, 3, value_first=True)
    assert torch.allclose(path.log_beliefs, heads.logits.log_softmax(-1), atol=1e-6)
    assert torch.allclose(path.values, heads.value, atol=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_halted_examples_enter_no_further_stage_and_keep_their_answers(name):
    method = preset("fast", name, FACTS).method
    if hasattr(method, "horizon"):
        method = replace(method, horizon=3)
    model = network(method)
    if method.halts_by_value:
        values = method.refine(model, INPUTS).values
        method = replace(method, halt_threshold=float(values[1:].median()))
    if isinstance(method, Supervised):
        method = replace(
            method, confidence_threshold=float(method.refine(model, INPUTS).log_beliefs.exp().amax(-1).median())
        )
    forget(model)
    everything = method.refine(model, INPUTS, halt=False)
    assert rows_seen(model) == [len(INPUTS)] * 3
    forget(model)
    halted = method.refine(model, INPUTS, halt=True)
    assert rows_seen(model) == [int((halted.halt_step > stage).sum()) for stage in range(3)]
    assert torch.equal(halted.halt_step, everything.halt_step)
    assert torch.allclose(halted.final, everything.final, atol=1e-5)
    assert torch.equal(halted.cost, torch.tensor(model.costs)[halted.halt_step - 1])
    assert halted.cell_evaluations.equal(halted.halt_step)
    if halted.values is not None:
        assert torch.allclose(halted.values, everything.frozen().values, atol=1e-6)


def test_sl_learns_from_the_mean_cross_entropy_of_its_exits():
    model = network(Supervised())
    each = [nn.functional.cross_entropy(logits, LABELS).item() for logits in model(INPUTS)]
    assert len(set(each)) == 3
    assert Supervised().loss(model, model, INPUTS, LABELS)[0].item() == pytest.approx(sum(each) / 3)


def test_sl_answers_once_at_each_exit_and_takes_a_budget():
    with refusal("steps-per-exit", "2"):
        network(Supervised(), steps_per_exit=2)
    assert Supervised().takes_budget


def test_the_value_before_a_step_moves_the_thought_and_not_the_belief():
    """V(s_2) is asked of τ_1, which no belief of the policy has reached yet, and of a_1, which is a constant to it."""
    model = network(Anytime(horizon=3, value_coef=0.5))
    value = unroll(model, INPUTS, 3, value_first=True).value[1].sum()
    weights = (model.refiner.policy.weight, model.refiner.from_features[0].weight)
    policy, thought = torch.autograd.grad(value, weights, allow_unused=True)
    assert policy is None or not policy.any()
    assert thought.any()


def test_sl_turns_a_threshold_on_doubt_into_one_on_confidence():
    thresholds = {0.25: 0.75, 0.0: 1.0, -1.0: None}
    assert {t: Supervised().stopping_by(t, 3).confidence_threshold for t in thresholds} == thresholds


def test_sl_leaves_at_the_first_exit_that_is_sure_enough():
    model = network(Supervised())
    confidence = Supervised().refine(model, INPUTS).log_beliefs.exp().amax(-1)
    sure = float(confidence.median())
    expected = [next((t + 1 for t in range(2) if row[t] >= sure), 3) for row in confidence.t().tolist()]
    assert len(set(expected)) > 1
    assert Supervised(confidence_threshold=sure).refine(model, INPUTS).halt_step.tolist() == expected


def test_sl_is_as_sure_as_the_temperature_of_each_exit_leaves_it():
    model, temperatures = network(Supervised()), (0.5, 1.0, 3.0)
    asked = Supervised().at_exits(model, temperatures)
    seen = INPUTS
    for stage, temperature in enumerate(temperatures):
        before, logits = model.run_stage(stage, seen)
        seen, read = asked.run_stage(model, stage, seen)
        torch.testing.assert_close(read[:, -1], 1 - (logits / temperature).softmax(-1).amax(-1))
        torch.testing.assert_close(read[:, :-1], logits.log_softmax(-1))
        assert torch.equal(seen, before)


def test_sl_halts_at_exactly_the_threshold():
    made = Steps(torch.zeros(2, 3, CLASSES), torch.tensor([[0.5, 0.25, 0.125], [0.25] * 3]), torch.ones(2, 3).bool())
    model = network(Supervised())
    assert Supervised(confidence_threshold=0.75).at_exits(model).goes_on(made)[0].tolist() == [True, False, False]
    assert Supervised().at_exits(model).goes_on(made).all()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_all_of_a_network_with_exits_learns(name):
    method = preset("fast", name, FACTS).method
    method = replace(method, horizon=3) if hasattr(method, "horizon") else method
    model = network(method).train()
    loss, _ = method.loss(model, model, INPUTS, LABELS)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
