"""Answers of a model with exits: those at the same stage are computed together, and nobody waits for the deepest."""

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image

import ricnet
from ricnet.apps.server.batching import Batcher, Question
from ricnet.apps.server.stages import Stages, in_stages
from ricnet.core.trajectory import Trajectory
from ricnet.data import load
from ricnet.methods import RIC, Anytime, Method, Supervised
from ricnet.methods.exits import ExitHeads
from ricnet.models.classifier import Classifier, build_model
from ricnet.models.config import Config
from ricnet.nets.encoders import EncoderOptions
from ricnet.nets.refiner import RecurrentClassifier

from .conftest import serving


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    return load("digits").test.inputs[:60]


@pytest.fixture(scope="module")
def exits(exits_run: Path, digits: torch.Tensor) -> Classifier:
    """About half of those that are at an exit leave there."""
    found = ricnet.load(exits_run)
    values = found.refine(digits, halt=False).values
    assert values is not None
    return replace(found, method=replace(found.method, halt_threshold=values[1:].median().item()))  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def by_confidence(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """Supervised learning, without a value; about half of those at its first exit leave there."""
    run = tmp_path_factory.mktemp("runs") / "by_confidence"
    settings = {"encoder": "conv", "width": 0.25, "exits": "stage", "calibration": "temperature"}
    return ricnet.train("digits", method="supervised", out=run, epochs=2, budget=0.6, device="cpu", **settings)


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


def test_whoever_is_at_a_stage_goes_on_together_and_each_gets_its_own(exits: Classifier, digits: torch.Tensor) -> None:
    expected = exits.refine(digits)
    takes = expected.halt_step
    stages: Stages[str] = Stages(exits, room=60)
    with counting_looks(exits) as looks:
        stages.enter({"first": digits[:20]}, {"first": exits})
        answers = stages.advance()
        stages.enter({"second": digits[20:21], "third": digits[21:60]}, {"second": exits, "third": exits})
        while stages.under_way:
            answers |= stages.advance()
    assert answers.keys() == {"first", "second", "third"}
    for name, rows in (("first", slice(20)), ("second", slice(20, 21)), ("third", slice(21, 60))):
        assert torch.equal(answers[name].halt_step, takes[rows])
        torch.testing.assert_close(answers[name].final, expected.final[rows])
        assert answers[name].cost.tolist() == expected.cost[rows].tolist()  # type: ignore[union-attr]
    deeper = [int((takes > stage).sum()) for stage in (1, 2)]
    order = [(stage, sum(rows for _, rows in some)) for stage, some in groupby(looks, key=lambda look: look[0])]
    assert order == [(0, 60), (1, deeper[0]), (2, deeper[1])], "the first wait for the others, who are more"
    assert stages.room == 60


def test_supervised_learning_goes_by_stages_too(digits: torch.Tensor) -> None:
    config = Config(method=Supervised(), network=EncoderOptions("conv", width=0.25, exits="stage"))
    model, backbone = build_model(config, (1, 8, 8), 10)
    backbone.fit_normalization(digits)
    whole = Classifier(config, config.method, model.eval(), (1, 8, 8), tuple("0123456789"))
    sure = whole.refine(digits, halt=False).log_beliefs[0].amax(-1).exp().median().item()
    own = replace(whole, method=Supervised(confidence_threshold=sure), temperature=(1.0, 0.9, 0.8))
    assert in_stages(own)
    expected, answers = own.refine(digits), dict[str, Trajectory]()
    assert (expected.halt_step == 1).sum() in range(25, 36)
    stages: Stages[str] = Stages(own, room=60)
    stages.enter({"all": digits}, {"all": own})
    while not answers:
        answers = stages.advance()
    assert torch.equal(answers["all"].halt_step, expected.halt_step)
    torch.testing.assert_close(answers["all"].log_beliefs, expected.log_beliefs)
    with serving(whole) as client:
        assert client.get("/v1/model").json()["horizon"] == 3
        assert ask(client, digits[0], max_steps=1)["steps"] == 1


def test_budgets_share_a_stage_and_each_gets_what_it_would_alone(either: Classifier, digits: torch.Tensor) -> None:
    """The server's own rule is with a value to take two steps of the three that there are, without one a budget."""
    own = either
    if own.method.halts_by_value:
        own = replace(own, method=replace(own.method, horizon=2, halt_threshold=-9.0))  # type: ignore[call-arg]
    spent = [point.mean_cost for point in own.budgets]
    models = {"own": own, "least": own.with_budget(spent[0]), "half": own.with_budget(spent[len(spent) // 2])}
    models["all"] = own.with_budget(1.0)
    expected = {name: model.refine(digits[:15]) for name, model in models.items()}
    assert len({tuple(path.halt_step.tolist()) for path in expected.values()}) == 4
    stages: Stages[str] = Stages(own, room=60)
    answers = dict[str, Trajectory]()
    with counting_looks(own) as looks:
        stages.enter(dict.fromkeys(models, digits[:15]), models)
        while stages.under_way:
            answers |= stages.advance()
    for name, path in expected.items():
        assert torch.equal(answers[name].halt_step, path.halt_step)
        torch.testing.assert_close(answers[name].log_beliefs, path.log_beliefs)
    rows = [sum(count for stage, count in looks if stage == number) for number in range(3)]
    assert rows == [sum(int((path.halt_step > stage).sum()) for path in expected.values()) for stage in range(3)]
    assert [stage for stage, _ in groupby(looks, key=lambda look: look[0])] == [0, 1, 2], "all budgets together"


def test_two_requests_with_two_budgets_at_once_get_what_each_would_alone(
    either: Classifier, digits: torch.Tensor
) -> None:
    spent = [point.mean_cost for point in either.budgets]
    asked = [{"budget": budget, **more} for more in ({}, {"trace": True}, {"max_steps": 2}) for budget in spent[::8]]
    with serving(either) as client, ThreadPoolExecutor(8) as clients:
        assert [point["mean_cost"] for point in client.get("/v1/model").json()["budgets"]] == spent
        questions = [(options, row) for options in [*asked, {}] for row in (0, 7)]
        answers = [*clients.map(lambda question: ask(client, digits[question[1]], **question[0]), questions)]
    for (options, row), answer in zip(questions, answers, strict=True):
        model = either.with_budget(options["budget"]) if options else either
        alone = model.refine(digits[row : row + 1], options.get("max_steps"))
        assert answer["steps"] == int(alone.halt_step)
        assert answer["confidence"] == pytest.approx(float(alone.final.exp().max()), abs=1e-5)
        assert answer["cost"] == pytest.approx(float(alone.cost))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [RIC(horizon=3), Anytime(horizon=3, value_coef=0.5), Supervised()])
def test_who_is_nan_gets_nan_and_not_the_answer_of_another(method: Method[Any]) -> None:
    """It was in the same place before."""
    config = Config(method=method, network=EncoderOptions("mlp", exits="block"))
    model, backbone = build_model(config, (5,), 4)
    backbone.fit_normalization(torch.randn(8, 5))
    served = Classifier(config, method, model.eval(), (5,), tuple("abcd"))
    stages: Stages[str] = Stages(served, room=2)
    answers = dict[str, Trajectory]()
    for name, inputs in (("sound", torch.randn(2, 5)), ("far beyond", torch.full((2, 5), 3e38))):
        stages.enter({name: inputs}, {name: served})
        while stages.under_way:
            answers |= stages.advance()
    assert answers["sound"].final.isfinite().all()
    assert answers["far beyond"].final.isnan().all()


@pytest.mark.parametrize("budget", [0.0001, 1.5, "much"])
def test_a_budget_that_no_threshold_keeps_is_refused(exits: Classifier, digits: torch.Tensor, budget: object) -> None:
    with serving(exits) as client:
        sent = client.post("/v1/predict", files={"images": ("digit.png", png(digits[0]))}, data={"budget": budget})
    assert sent.status_code == 422
    assert sent.json()["error"].startswith("budget")


def test_a_budget_is_refused_before_an_image_is_decoded(exits: Classifier) -> None:
    with serving(exits) as client:
        sent = client.post("/v1/predict", files={"images": ("digit.png", b"no image")}, data={"budget": 0.0001})
    assert sent.json()["error"].startswith("budget")


def test_a_model_without_exits_says_that_a_budget_means_nothing_to_it(numbers_client: httpx.Client) -> None:
    sent = numbers_client.post("/v1/predict", json={"features": [0.0] * 4, "budget": 0.5})
    assert sent.status_code == 422
    assert "exits='stage'" in sent.json()["error"]
    assert numbers_client.get("/v1/model").json()["budgets"] is None


def test_nobody_is_passed_over_forever(exits: Classifier, digits: torch.Tensor) -> None:
    stages: Stages[int] = Stages(exits, room=200)
    hard = digits[exits.refine(digits).halt_step == 3][:1]
    stages.enter({0: hard}, {0: exits})
    stages.advance()
    answered: set[int] = set()
    for asker in range(1, 60):
        stages.enter({asker: digits[:2]}, {asker: exits})
        answered |= stages.advance().keys()
    assert 0 in answered


def test_a_server_answers_as_python_does_and_says_what_it_cost(exits: Classifier, digits: torch.Tensor) -> None:
    batcher = Batcher(exits, max_batch=8)
    questions = [Question(digits[row : row + 1 + row % 3]) for row in range(0, 50, 2)]
    questions += [Question(digits[:2], trace=True), Question(digits[:2], max_steps=2), Question(digits[:4])]
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


def test_a_failure_is_told_to_those_under_way_and_survived(
    exits: Classifier, digits: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(exits, max_batch=4)
    with pytest.raises(Exception, match="shape"):
        batcher.ask(Question(digits[:1, :, :5])).result(10)
    with monkeypatch.context() as patch:
        patch.setattr(RecurrentClassifier, "look", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batcher.ask(Question(digits[:1])).result(10)
    with monkeypatch.context() as patch:
        patch.setattr(Stages, "_wait", lambda *_: 1 / 0)
        for _ in range(3):  # together more than there is room for
            with pytest.raises(ZeroDivisionError):
                batcher.ask(Question(digits[:4])).result(10)
    assert batcher.ask(Question(digits[:4])).result(10).halt_step.shape == (4,)
    batcher.close(timeout=20.0)


def test_clients_hear_where_it_left_and_what_it_cost(exits: Classifier, digits: torch.Tensor) -> None:
    assert exits.folder is not None
    measured = json.loads((exits.folder / "evaluation.json").read_text())["test"]
    with serving(exits) as client:
        model = client.get("/v1/model").json()
        assert model["costs"] == sorted(model["costs"])
        assert model["costs"][-1] == 1
        assert (model["budget"], model["test"]["mean_cost"]) == (None, pytest.approx(measured["mean_cost"]))
        image = ask(client, digits[0])
        assert image["cost"] == pytest.approx(model["costs"][image["steps"] - 1])


def test_what_was_measured_is_not_said_of_another_budget(exits_run: Path) -> None:
    with serving(ricnet.load(exits_run).with_budget(0.8)) as client:
        model = client.get("/v1/model").json()
    assert (model["budget"], model["test"]) == (0.8, None)


def png(image: torch.Tensor) -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(image[0].numpy()).save(file, "png")
        return file.getvalue()


def ask(client: httpx.Client, image: torch.Tensor, **options: float) -> dict[str, float]:
    sent = client.post("/v1/predict", files={"images": ("digit.png", png(image))}, data=options)
    answer: dict[str, float] = sent.json()["predictions"][0]
    return answer
