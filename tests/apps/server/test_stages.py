"""Answers of a model with exits: those at the same stage are computed together, and nobody waits for the deepest."""

import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import httpx
import pytest
import torch
from PIL import Image

import ricnet
from ricnet.apps.server.batching import Batcher, Question
from ricnet.apps.server.stages import Stages, in_stages
from ricnet.core.trajectory import Trajectory
from ricnet.data import load
from ricnet.methods import Supervised
from ricnet.nets.encoders import EncoderOptions
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.classifier import Classifier, build_model
from ricnet.training.config import Config

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


@pytest.fixture
def looks(exits: Classifier) -> Iterator[list[tuple[int, int]]]:
    """Which stage was computed, and for how many."""
    seen: list[tuple[int, int]] = []
    assert isinstance(exits.model, RecurrentClassifier)
    hooks = [
        stage.register_forward_hook(lambda _, inputs, __, number=number: seen.append((number, len(inputs[0]))))
        for number, stage in enumerate(exits.model.backbone.stages)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def test_whoever_is_at_a_stage_goes_on_together_and_each_gets_its_own(
    exits: Classifier, digits: torch.Tensor, looks: list[tuple[int, int]]
) -> None:
    expected = exits.refine(digits)
    takes = expected.halt_step
    stages: Stages[str] = Stages(exits, room=60)
    looks.clear()
    stages.enter({"first": digits[:20]})
    answers = stages.advance()
    stages.enter({"second": digits[20:21], "third": digits[21:60]})
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
    stages.enter({"all": digits})
    while not answers:
        answers = stages.advance()
    assert torch.equal(answers["all"].halt_step, expected.halt_step)
    torch.testing.assert_close(answers["all"].log_beliefs, expected.log_beliefs)
    with serving(whole) as client:
        assert client.get("/v1/model").json()["horizon"] == 3
        assert ask(client, digits[0], max_steps=1)["steps"] == 1


def test_nobody_is_passed_over_forever(exits: Classifier, digits: torch.Tensor) -> None:
    stages: Stages[int] = Stages(exits, room=200)
    hard = digits[exits.refine(digits).halt_step == 3][:1]
    stages.enter({0: hard})
    stages.advance()
    answered: set[int] = set()
    for asker in range(1, 60):
        stages.enter({asker: digits[:2]})
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
    assert batcher.ask(Question(digits[:4])).result(10).halt_step.shape == (4,)
    batcher.close(timeout=20.0)


def test_clients_hear_where_it_left_and_what_it_cost(exits: Classifier, digits: torch.Tensor) -> None:
    with serving(exits) as client:
        model = client.get("/v1/model").json()
        assert model["costs"] == sorted(model["costs"])
        assert model["costs"][-1] == 1
        assert (model["budget"], model["test"] is None) == (None, False)
        image = ask(client, digits[0])
        assert image["cost"] == pytest.approx(model["costs"][image["steps"] - 1])


def test_what_was_measured_is_not_said_of_another_budget(exits_run: Path) -> None:
    with serving(ricnet.load(exits_run).with_budget(0.8)) as client:
        model = client.get("/v1/model").json()
    assert (model["budget"], model["test"]) == (0.8, None)


def ask(client: httpx.Client, image: torch.Tensor, **options: int) -> dict[str, float]:
    with io.BytesIO() as file:
        Image.fromarray(image[0].numpy()).save(file, "png")
        sent = client.post("/v1/predict", files={"images": ("digit.png", file.getvalue())}, data=options)
    answer: dict[str, float] = sent.json()["predictions"][0]
    return answer
