"""Requests are batched; with exits, those at the same stage are computed together and none waits for the deepest."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ricnet
from problems import MadeOnce
from ricnet.apps.server.batching import DELIVERY, Batcher, Question, Stages, _choose, in_stages
from ricnet.apps.server.limits import Refusal
from ricnet.core.trajectory import Trajectory
from ricnet.data import load
from ricnet.methods import RIC, Anytime, Method, Supervised
from ricnet.methods.supervised import ExitHeads
from ricnet.models.classifier import Classifier, build_model
from ricnet.models.config import Config
from ricnet.nets.encoders import EncoderOptions
from ricnet.nets.refiner import RecurrentClassifier

from .asking import png
from .conftest import serving


@dataclass(frozen=True)
class Watched(Classifier):
    """A classifier that waits for `gate` and records its calls."""

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def refine(self, inputs: Any, max_steps: Any = None, halt: bool = True, max_ms: Any = None) -> Trajectory:
        self.entered.set()
        assert self.gate.wait(10)
        self.calls.append((len(inputs), max_steps, halt, max_ms))
        return super().refine(inputs, max_steps, halt, max_ms)


@pytest.fixture
def watched(digits: Classifier) -> Watched:
    return Watched(**{f.name: getattr(digits, f.name) for f in fields(Classifier)})


def start(batcher: Batcher, watched: Watched, first: Question) -> None:
    """Start a first request, so that all later ones wait."""
    batcher.ask(first)
    assert watched.entered.wait(10)


def test_waiting_requests_are_batched_and_get_their_own_answers(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=64)
    questions = [Question(inputs[i : i + 1 + i % 2]) for i in range(6)]
    start(batcher, watched, questions[0])
    for question in questions[1:]:
        batcher.ask(question)
    watched.gate.set()
    batcher.close()
    assert [call[0] for call in watched.calls] == [1, 8]
    assert (batcher.tally.requests, batcher.tally.inputs, batcher.tally.batches) == (6, 9, 2)
    for question in questions:
        alone = watched.refine(question.inputs)
        together = question.answer.result(0)
        assert together.halt_step.tolist() == alone.halt_step.tolist()
        assert torch.allclose(together.final, alone.final, atol=1e-5)


def test_requests_with_other_options_are_not_batched_together(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    one = inputs[:1]
    start(batcher, watched, Question(one))
    later = [Question(one), Question(one, 2), Question(one, trace=True), Question(one, 2), Question(inputs[:4])]
    later += [Question(one, deadline=time.perf_counter() + 60) for _ in range(2)]
    for question in later:
        batcher.ask(question)
    watched.gate.set()
    batcher.close()
    assert [call[:3] for call in watched.calls] == [
        *((1, None, True), (1, None, True), (2, 2, True), (1, None, False), (4, None, True)),
        *((1, None, True), (1, None, True)),
    ]
    assert [call[3] is None for call in watched.calls] == [True] * 5 + [False] * 2
    assert all(1000 < call[3] < 60_000 for call in watched.calls[5:])
    assert later[2].answer.result(0).steps == 4


def test_time_spent_waiting_counts(watched: Watched, inputs: torch.Tensor) -> None:
    """Its time is up before the model is free: one step is made all the same."""
    batcher = Batcher(watched, max_batch=4)
    start(batcher, watched, Question(inputs[:1]))
    late = Question(inputs[:1], deadline=time.perf_counter() - 1)
    batcher.ask(late)
    watched.gate.set()
    batcher.close()
    assert late.answer.result(0).steps == 1


def test_deadlines_allow_for_the_response(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    watched.gate.set()
    batcher.ask(Question(inputs[:1], deadline=time.perf_counter() + 60)).result(10)
    assert watched.calls[-1][3] < 60_000 - 1000 * DELIVERY
    batcher.close()


def test_an_error_reaches_the_client_and_the_thread_continues(digits: Classifier, inputs: torch.Tensor) -> None:
    batcher = Batcher(digits, max_batch=4)
    with pytest.raises(Exception, match="shape"):
        batcher.ask(Question(inputs[:, :, :5])).result(10)
    assert batcher.ask(Question(inputs[:1])).result(10).halt_step.shape == (1,)
    assert batcher.alive
    batcher.close()
    assert not batcher.alive
    with pytest.raises(Refusal, match="shutting down"):
        batcher.ask(Question(inputs[:1]))


def test_a_stuck_model_does_not_block_shutdown(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    start(batcher, watched, Question(inputs[:1]))
    batcher.close(timeout=0.05)
    assert batcher.alive
    with pytest.raises(Refusal):
        batcher.ask(Question(inputs[:1]))
    watched.gate.set()
    batcher.close()


def test_cancelled_requests_are_not_answered(watched: Watched, inputs: torch.Tensor) -> None:
    batcher = Batcher(watched, max_batch=4)
    start(batcher, watched, Question(inputs[:1]))
    gone = Question(inputs[:1], max_steps=2)
    batcher.ask(gone)
    assert gone.answer.cancel()
    watched.gate.set()
    batcher.close()
    assert len(watched.calls) == 1


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([None, 1, 2]), st.booleans(), st.booleans()), max_size=20),
    st.integers(1, 12),
)
def test_every_request_is_chosen_exactly_once(asked: list[tuple[Any, ...]], most: int) -> None:
    waiting = deque(Question(torch.zeros(n, 1), steps, trace, 1.0 if late else None) for n, steps, trace, late in asked)
    everyone, seen = list(waiting), []
    while waiting:
        first = waiting[0]
        batch = _choose(waiting, most)
        assert batch[0] is first
        assert len(batch) == 1 or sum(len(question.inputs) for question in batch) <= most
        assert len({(question.max_steps, question.trace) for question in batch}) == 1
        assert len(batch) == 1 or all(question.deadline is None for question in batch)
        seen += batch
    assert {id(question) for question in seen} == {id(question) for question in everyone}
    assert len(seen) == len(everyone)
    assert _choose(waiting, most) == []


# With exits


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return load("digits").test.inputs[:60]


@pytest.fixture(scope="module")
def exits(exits_run: Path, images: torch.Tensor) -> Classifier:
    """About half of those that are at an exit leave there."""
    found = ricnet.load(exits_run)
    values = found.refine(images, halt=False).values
    assert values is not None
    return replace(found, method=replace(found.method, halt_threshold=values[1:].median().item()))  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def by_confidence(made_once: MadeOnce) -> Classifier:
    """Supervised learning, without a value; about half of those at its first exit leave there."""
    settings = {"encoder": "conv", "width": 0.25, "exits": "stage", "calibration": "temperature"}

    def train(folder: Path) -> None:
        out = folder / "run"
        ricnet.train("digits", method="supervised", out=out, epochs=2, budget=0.6, device="cpu", **settings)

    return ricnet.load(made_once("by confidence", train) / "run")


@pytest.fixture(params=["exits", "by_confidence"])
def either(request: pytest.FixtureRequest) -> Classifier:
    found: Classifier = request.getfixturevalue(request.param)
    return found


@contextmanager
def counting_looks(classifier: Classifier) -> Iterator[list[tuple[int, int]]]:
    """Which stage was computed, and for how many."""
    seen: list[tuple[int, int]] = []
    assert isinstance(classifier.model, RecurrentClassifier | ExitHeads)
    hooks = [
        stage.register_forward_hook(lambda _, inputs, __, number=number: seen.append((number, len(inputs[0]))))
        for number, stage in enumerate(classifier.model.backbone.stages)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def finish(stages: Stages) -> dict[Question, Trajectory]:
    """Answers of all that wait."""
    answers: dict[Question, Trajectory] = {}
    while stages.waiting:
        answers |= stages.advance()
    return answers


def test_inputs_at_a_stage_are_batched_and_get_their_own_answers(exits: Classifier, images: torch.Tensor) -> None:
    expected = exits.refine(images)
    takes = expected.halt_step
    stages = Stages(exits, capacity=60)
    parts = [slice(20), slice(20, 21), slice(21, 60)]
    questions = [Question(images[rows]) for rows in parts]
    with counting_looks(exits) as looks:
        stages.enter(questions[:1])
        answers = stages.advance()
        stages.enter(questions[1:])
        answers |= finish(stages)
    assert answers.keys() == set(questions)
    for question, rows in zip(questions, parts, strict=True):
        assert torch.equal(answers[question].halt_step, takes[rows])
        torch.testing.assert_close(answers[question].final, expected.final[rows])
        assert answers[question].cost.tolist() == expected.cost[rows].tolist()  # type: ignore[union-attr]
    deeper = [int((takes > stage).sum()) for stage in (1, 2)]
    order = [(stage, sum(rows for _, rows in some)) for stage, some in groupby(looks, key=lambda look: look[0])]
    assert order == [(0, 60), (1, deeper[0]), (2, deeper[1])], "the first wait for the others, who are more"
    assert len(stages.free) == 60


def test_supervised_learning_goes_by_stages_too(images: torch.Tensor) -> None:
    config = Config(method=Supervised(), network=EncoderOptions("conv", width=0.25, exits="stage"))
    model, backbone = build_model(config, (1, 8, 8), 10)
    backbone.fit_normalization(images)
    whole = Classifier(config, config.method, model.eval(), (1, 8, 8), tuple("0123456789"))
    sure = whole.refine(images, halt=False).log_beliefs[0].amax(-1).exp().median().item()
    own = replace(whole, method=Supervised(confidence_threshold=sure), temperature=(1.0, 0.9, 0.8))
    assert in_stages(own)
    expected = own.refine(images)
    assert (expected.halt_step == 1).sum() in range(25, 36)
    stages = Stages(own, capacity=60)
    stages.enter([Question(images)])
    [answer] = finish(stages).values()
    assert torch.equal(answer.halt_step, expected.halt_step)
    torch.testing.assert_close(answer.log_beliefs, expected.log_beliefs)
    with serving(whole) as client:
        assert client.get("/v1/model").json()["horizon"] == 3
        assert ask(client, images[0], max_steps=1)["steps"] == 1


def test_requests_with_different_budgets_share_a_stage(either: Classifier, images: torch.Tensor) -> None:
    """The server's own rule is with a value to take two steps of the three that there are, without one a budget."""
    own = either
    if own.method.halts_by_value:
        own = replace(own, method=replace(own.method, horizon=2, halt_threshold=-9.0))  # type: ignore[call-arg]
    spent = [point.mean_cost for point in own.budgets]
    models = [None, *(own.with_budget(budget) for budget in (spent[0], spent[len(spent) // 2], 1.0))]
    questions = [Question(images[:15], classifier=model) for model in models]
    expected = {question: (question.classifier or own).refine(images[:15]) for question in questions}
    assert len({tuple(path.halt_step.tolist()) for path in expected.values()}) == 4
    stages = Stages(own, capacity=60)
    with counting_looks(own) as looks:
        stages.enter(questions)
        answers = finish(stages)
    for question, path in expected.items():
        assert torch.equal(answers[question].halt_step, path.halt_step)
        torch.testing.assert_close(answers[question].log_beliefs, path.log_beliefs)
    rows = [sum(count for stage, count in looks if stage == number) for number in range(3)]
    assert rows == [sum(int((path.halt_step > stage).sum()) for path in expected.values()) for stage in range(3)]
    assert [stage for stage, _ in groupby(looks, key=lambda look: look[0])] == [0, 1, 2], "all budgets together"


def test_simultaneous_budgets_do_not_affect_each_other(either: Classifier, images: torch.Tensor) -> None:
    spent = [point.mean_cost for point in either.budgets]
    asked = [{"budget": budget, **more} for more in ({}, {"trace": True}, {"max_steps": 2}) for budget in spent[::8]]
    with serving(either) as client, ThreadPoolExecutor(8) as clients:
        assert [point["mean_cost"] for point in client.get("/v1/model").json()["budgets"]] == spent
        questions = [(options, row) for options in [*asked, {}] for row in (0, 7)]
        answers = [*clients.map(lambda question: ask(client, images[question[1]], **question[0]), questions)]
    for (options, row), answer in zip(questions, answers, strict=True):
        model = either.with_budget(options["budget"]) if options else either
        alone = model.refine(images[row : row + 1], options.get("max_steps"))
        assert answer["steps"] == int(alone.halt_step)
        assert answer["confidence"] == pytest.approx(float(alone.final.exp().max()), abs=1e-5)
        assert answer["cost"] == pytest.approx(float(alone.cost))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [RIC(horizon=3), Anytime(horizon=3, value_coef=0.5), Supervised()])
def test_a_nan_input_gets_nan_and_no_other_answer(method: Method[Any]) -> None:
    """It was in the same place before."""
    config = Config(method=method, network=EncoderOptions("mlp", exits="block"))
    model, backbone = build_model(config, (5,), 4)
    backbone.fit_normalization(torch.randn(8, 5))
    served = Classifier(config, method, model.eval(), (5,), tuple("abcd"))
    stages = Stages(served, capacity=2)
    for inputs, answered in ((torch.randn(2, 5), True), (torch.full((2, 5), 3e38), False)):
        stages.enter([Question(inputs)])
        [answer] = finish(stages).values()
        assert answer.final.isfinite().all() == answered
        assert answer.final.isnan().all() != answered


@pytest.mark.parametrize("budget", [0.0001, 1.5, "much"])
def test_a_budget_that_no_threshold_keeps_is_refused(exits: Classifier, images: torch.Tensor, budget: object) -> None:
    with serving(exits) as client:
        sent = client.post("/v1/predict", files={"images": ("digit.png", png(images[0, 0]))}, data={"budget": budget})
    assert sent.status_code == 422
    assert sent.json()["error"].startswith("budget")


def test_a_budget_is_refused_before_an_image_is_decoded(exits: Classifier) -> None:
    with serving(exits) as client:
        sent = client.post("/v1/predict", files={"images": ("digit.png", b"no image")}, data={"budget": 0.0001})
    assert sent.json()["error"].startswith("budget")


def test_a_budget_is_refused_without_exits(numbers_client: httpx.Client) -> None:
    sent = numbers_client.post("/v1/predict", json={"features": [0.0] * 4, "budget": 0.5})
    assert sent.status_code == 422
    assert "exits='stage'" in sent.json()["error"]
    assert numbers_client.get("/v1/model").json()["budgets"] is None


def test_every_stage_is_chosen_eventually(exits: Classifier, images: torch.Tensor) -> None:
    stages = Stages(exits, capacity=200)
    hard = Question(images[exits.refine(images).halt_step == 3][:1])
    stages.enter([hard])
    stages.advance()
    answered: set[Question] = set()
    for _ in range(59):
        stages.enter([Question(images[:2])])
        answered |= stages.advance().keys()
    assert hard in answered


def test_a_server_answers_as_python_with_the_cost(exits: Classifier, images: torch.Tensor) -> None:
    batcher = Batcher(exits, max_batch=8)
    questions = [Question(images[row : row + 1 + row % 3]) for row in range(0, 50, 2)]
    questions += [Question(images[:2], trace=True), Question(images[:2], max_steps=2), Question(images[:4])]
    for question in questions:
        batcher.ask(question)
    batcher.close(timeout=20.0)
    for question in questions:
        alone, path = exits.refine(question.inputs, question.max_steps), question.answer.result(0)
        assert torch.equal(path.halt_step, alone.halt_step)
        torch.testing.assert_close(path.final, alone.final)
        torch.testing.assert_close(path.cost, alone.cost)
    assert batcher.tally.requests == len(questions)
    assert batcher.tally.inputs == sum(len(question.inputs) for question in questions)


def test_an_error_at_the_stages_reaches_all_requests_there(
    exits: Classifier, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(exits, max_batch=4)
    with pytest.raises(Exception, match="shape"):
        batcher.ask(Question(images[:1, :, :5])).result(10)
    with monkeypatch.context() as patch:
        patch.setattr(RecurrentClassifier, "run_stage", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batcher.ask(Question(images[:1])).result(10)
    with monkeypatch.context() as patch:
        patch.setattr(Stages, "_wait", lambda *_: 1 / 0)
        for _ in range(3):  # together more than there is room for
            with pytest.raises(ZeroDivisionError):
                batcher.ask(Question(images[:4])).result(10)
    assert batcher.ask(Question(images[:4])).result(10).halt_step.shape == (4,)
    batcher.close(timeout=20.0)


def test_responses_have_exit_and_cost(exits: Classifier, images: torch.Tensor) -> None:
    assert exits.folder is not None
    measured = json.loads((exits.folder / "evaluation.json").read_text())["test"]
    with serving(exits) as client:
        model = client.get("/v1/model").json()
        assert model["costs"] == sorted(model["costs"])
        assert model["costs"][-1] == 1
        assert (model["budget"], model["test"]["mean_cost"]) == (None, pytest.approx(measured["mean_cost"]))
        image = ask(client, images[0])
        assert image["cost"] == pytest.approx(model["costs"][image["steps"] - 1])


def test_test_results_are_null_with_another_budget(exits_run: Path) -> None:
    with serving(ricnet.load(exits_run).with_budget(0.8)) as client:
        model = client.get("/v1/model").json()
    assert (model["budget"], model["test"]) == (0.8, None)


def ask(client: httpx.Client, image: torch.Tensor, **options: float) -> dict[str, float]:
    sent = client.post("/v1/predict", files={"images": ("digit.png", png(image[0]))}, data=options)
    answer: dict[str, float] = sent.json()["predictions"][0]
    return answer
