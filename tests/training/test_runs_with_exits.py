"""Runs with exits are resumed, shared, loaded and pickled like others, and stages after an exit are not computed."""

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import cross_val_score
from torch import Tensor, nn

import ricnet
from problems import CPU, assert_same_weights
from refusals import refusal
from ricnet.data import Dataset
from ricnet.methods.inference import Iterative
from ricnet.models.classifier import Classifier
from ricnet.models.run import RunFolder
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.api import run
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

METHODS: dict[str, dict[str, Any]] = {
    "ric": {"halt_threshold": 0.3},
    "anytime": {"value_coef": 0.5, "halt_threshold": 0.3},
    "act": {},
    "pondernet": {},
}
TINY: dict[str, Any] = {"exits": "stage", "epochs": 2, "batch_size": 16, "width": 0.1, "device": "cpu"}


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class InThree(nn.Module):
    """A user's own encoder that says where it can be left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 16), nn.Linear(16, 6)

    def stages(self, exits: str) -> Sequence[nn.Module]:
        return [nn.Sequential(layer, nn.ReLU()) for layer in (self.first, self.second, self.third)]

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages("stage"):
            x = stage(x)
        return x


def looks(model: RecurrentClassifier) -> Counter[int]:
    """Rows that each stage is asked about, from now on."""
    rows: Counter[int] = Counter()
    for number, stage in enumerate(model.backbone.stages):
        stage.register_forward_hook(lambda _, inputs, __, number=number: rows.update({number: len(inputs[0])}))
    return rows


@pytest.mark.parametrize("steps_per_exit", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_at_the_same_exit_whether_the_rest_is_computed_or_not(
    method: str, steps_per_exit: int, dataset: Dataset, tmp_path: Path
) -> None:
    """Batches of any size, of a user's own encoder; an answer at exit n takes the stages up to n, and no other."""
    settings = TINY | METHODS[method] | {"steps_per_exit": steps_per_exit}
    found = ricnet.train(dataset, method=method, encoder=InThree(), out=tmp_path / "run", **settings)
    model, inputs = found.model, dataset.test.inputs
    assert isinstance(model, RecurrentClassifier)
    assert isinstance(found.method, Iterative)
    assert len(model.costs) == 3 * steps_per_exit
    assert all(before < after for before, after in zip((0.0, *model.costs), model.costs, strict=False))
    assert model.costs[-1] == 1
    full = found.refine(inputs, halt=False)
    asked = looks(model)
    halted = found.refine(inputs)
    assert torch.equal(halted.halt_step, full.halt_step)
    torch.testing.assert_close(halted.final, full.final)
    exits = (halted.halt_step + steps_per_exit - 1) // steps_per_exit
    most = int(halted.halt_step.max())
    assert asked == {stage: int((exits > stage).sum()) for stage in range((most - 1) // steps_per_exit + 1)}
    assert halted.cost is not None
    assert halted.cost.tolist() == pytest.approx([model.costs[step - 1] for step in halted.halt_step.tolist()])
    for row in range(3):
        alone = found.refine(inputs[row : row + 1])
        assert alone.halt_step == halted.halt_step[row]
        torch.testing.assert_close(alone.final[0], halted.final[row])


def test_killed_and_resumed_it_has_the_same_weights(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: value for name, value in TINY.items() if name != "device"}
    config = configure(dataset, "ric", "fast", encoder="mlp", updates_per_snapshot=4, **settings)
    run(config, dataset, RunFolder(tmp_path / "whole"), CPU)
    step = Trainer._step

    def step_and_fall(self: Trainer) -> None:
        step(self)
        if self.update == 7:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", step_and_fall)
        with pytest.raises(Killed):
            run(config, dataset, RunFolder(tmp_path / "killed"), CPU, checkpoint_seconds=0.0)
    run(config, dataset, RunFolder(tmp_path / "killed"), CPU, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.fixture(scope="module")
def trained(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    out = tmp_path_factory.mktemp("exits") / "run"
    return ricnet.train(dataset, encoder="mlp", steps_per_exit=2, out=out, **TINY)


def test_a_folder_to_share_holds_the_same_model(trained: Classifier, dataset: Dataset, tmp_path: Path) -> None:
    again = ricnet.load(trained.save_pretrained(tmp_path / "shared"))
    for other in (again, ricnet.load(str(trained.folder)), pickle.loads(pickle.dumps(trained))):
        expected, found = trained.refine(dataset.test.inputs), other.refine(dataset.test.inputs)
        assert torch.equal(found.final, expected.final)
        assert found.costs == expected.costs
    written = json.loads((tmp_path / "shared" / "config.json").read_text())["config"]["network"]
    assert (written["exits"], written["steps_per_exit"]) == ("stage", 2)


def test_time_is_given_by_the_stage(trained: Classifier, dataset: Dataset) -> None:
    ample, none = (trained.refine(dataset.test.inputs, halt=False, max_ms=limit) for limit in (1e6, 1e-6))
    assert (ample.steps, none.steps) == (4, 1)
    assert none.costs == ample.costs[:1]


def test_an_estimator_takes_exits() -> None:
    x, y = load_wine(return_X_y=True)
    settings = {name: value for name, value in TINY.items() if name != "epochs"}
    estimator = ricnet.RICClassifier(epochs=4, steps_per_exit=2, random_state=0, **settings)
    assert np.isfinite(cross_val_score(estimator, x, y, cv=2)).all()
    fitted = estimator.fit(x, y)
    path, costs = fitted.refine(x), fitted.classifier_.model.costs
    assert len(costs) == 4
    assert path.costs == costs[: path.steps], "as many as were chosen on the rows kept aside"
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(x), fitted.predict_proba(x))


@pytest.mark.parametrize(
    ("encoder", "names"),
    [
        (nn.Linear(4, 8), ("exits", "stage", "Linear", "stages(exits)")),
        (nn.Sequential(nn.Linear(4, 8)), ("exits", "stage", "two stages")),
    ],
)
def test_an_encoder_without_exits_is_one_sentence(
    encoder: nn.Module, names: tuple[str, ...], dataset: Dataset, tmp_path: Path
) -> None:
    with refusal(*names):
        ricnet.train(dataset, encoder=encoder, out=tmp_path / "run", **TINY)
