"""scikit-learn's estimator checks on tiny networks, and typical use of the estimators."""

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_wine
from sklearn.metrics import recall_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from torch import nn

import ricnet
from refusals import cases, refusal
from ricnet.apps.estimators import (
    SHOWN,
    Estimator,
    InputError,
    _on_cpu,
    as_dataset,
    as_inputs,
    example_weights,
    pixel_scale,
    usual_fraction,
)
from ricnet.methods import METHODS, Supervised
from ricnet.training.recipes import LARGE_TABLE

TINY: dict[str, Any] = {"epochs": 5, "batch_size": 64, "lr": 0.05, "weight_decay": 0.0, "width": 0.1, "device": "cpu"}
ESTIMATORS = [
    ricnet.RICClassifier(**TINY | {"epochs": 8, "lr": 0.06}, horizon=2),
    ricnet.SupervisedClassifier(**TINY | {"epochs": 10}),
    ricnet.AnytimeClassifier(**TINY, horizon=2),
    ricnet.ACTClassifier(**TINY, horizon=2),
    ricnet.PonderNetClassifier(**TINY, horizon=2),
]
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight 2 counts as much as two rows (tests/methods/test_method.py), but minibatches of repeated rows "
        "are other minibatches, so that fits agree in expectation only; scikit-learn's MLPClassifier fails it too"
    )
}
by_name = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
X, Y = load_wine(return_X_y=True)


@parametrize_with_checks(ESTIMATORS[:1], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learns_checks(estimator: Estimator, check: Callable[[Estimator], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS[1:], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learns_checks_of_other_methods(estimator: Estimator, check: Callable[[Estimator], None]) -> None:
    """All estimators are one class with other hyper-parameters, so that one of them stands for the rest day by day."""
    check(estimator)


def test_the_list_of_expected_failures_is_short() -> None:
    checks = [getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(ESTIMATORS[0])]
    assert len(checks) >= 50
    assert [name for name in checks if name in EXPECTED_FAILURES] == list(EXPECTED_FAILURES)


def small(kind: type[Estimator] = ricnet.SupervisedClassifier, **changes: Any) -> Estimator:
    return kind(**TINY | {"epochs": 15, "batch_size": 32, "lr": 0.02, "random_state": 0} | changes)


@by_name
def test_fitted_twice_copied_and_pickled_it_answers_the_same(estimator: Estimator) -> None:
    fitted = clone(estimator).set_params(random_state=3).fit(X, Y)
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(clone(fitted).fit(X, Y).predict_proba(X), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), expected)
    np.testing.assert_array_equal(copy.deepcopy(fitted).predict_proba(X), expected)
    other = clone(fitted).set_params(random_state=4).fit(X, Y)
    assert not np.allclose(other.predict_proba(X), expected)


def test_pickled_weights_are_those_of_a_cpu_and_in_its_precision() -> None:
    fitted = small().fit(X, Y)
    moved = _on_cpu(fitted.classifier_)
    assert {parameter.device.type for parameter in moved.model.parameters()} == {"cpu"}
    assert moved.model is not fitted.classifier_.model
    fitted.classifier_.model[0].autocast = torch.bfloat16  # as on a GPU
    assert _on_cpu(fitted.classifier_).model[0].autocast is None


def test_works_in_pipelines_and_searches_of_scikit_learn() -> None:
    search = GridSearchCV(small(), {"lr": [1e-9, 0.02]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"lr": 0.02}
    pipeline = make_pipeline(StandardScaler(), small())
    answers = cross_val_predict(pipeline, X, Y, cv=3)
    assert (answers == Y).mean() > 0.9
    calibrated = CalibratedClassifierCV(small(), cv=2).fit(X, Y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1)
    assert calibrated.score(X, Y) > 0.9


def test_frames_text_labels_and_feature_names() -> None:
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])])
    names = np.array(["red", "white", "rosé"])[Y]
    fitted = small().fit(frame, names)
    assert fitted.classes_.tolist() == ["red", "rosé", "white"]
    assert (fitted.predict(frame) == names).mean() > 0.9
    assert fitted.feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[frame.columns[::-1]])


def test_refine_tells_the_way_to_the_answer() -> None:
    fitted = small(ricnet.RICClassifier, horizon=4).fit(X, Y)
    path = fitted.refine(X)
    assert path.log_beliefs.shape == (4, len(X), 3)
    np.testing.assert_allclose(path.final.exp().numpy(), fitted.predict_proba(X))
    assert path.values is not None
    whole = fitted.refine(X, halt=False)
    assert torch.equal(whole.halt_step, path.halt_step)
    assert fitted.refine(X, max_steps=2).steps == 2
    with pytest.raises(ValueError, match="not fitted yet"):
        small().refine(X)


def test_a_class_of_more_weight_is_answered_more_often() -> None:
    generator = np.random.default_rng(0)
    labels = (np.arange(300) % 10 == 0).astype(int)
    table = generator.normal(size=(300, 2)) + labels[:, None]
    recalls = [
        recall_score(labels, small(class_weight=weight).fit(table, labels).predict(table))
        for weight in (None, "balanced", {0: 1, 1: 100})
    ]
    assert recalls[0] < 0.5 < recalls[1] < recalls[2]
    by_row = small().fit(table, labels, sample_weight=np.where(labels == 1, 100.0, 1.0))
    by_class = small(class_weight={0: 1, 1: 100}).fit(table, labels)
    np.testing.assert_array_equal(by_row.predict_proba(table), by_class.predict_proba(table))


@by_name
def test_rows_of_weight_zero_are_as_if_they_were_not_there(estimator: Estimator) -> None:
    weights = (np.arange(len(X)) % 3 > 0).astype(float)
    with_zeros = clone(estimator).set_params(random_state=0).fit(X, Y, sample_weight=weights)
    kept = weights > 0
    without = clone(estimator).set_params(random_state=0).fit(X[kept], Y[kept], sample_weight=weights[kept])
    np.testing.assert_array_equal(with_zeros.predict_proba(X), without.predict_proba(X))


def test_images_of_bytes_and_of_fractions_are_the_same_images() -> None:
    images, labels = load_digits(return_X_y=True)
    grey = np.rint(images.reshape(-1, 8, 8)[:300] * 255 / 16).astype(np.uint8)
    fitted = small(epochs=6).fit(grey, labels[:300])
    assert fitted.score(grey, labels[:300]) > 0.8
    expected = fitted.predict_proba(grey)
    with_axis = small(epochs=6).fit(grey[..., None], labels[:300])
    np.testing.assert_array_equal(with_axis.predict_proba(grey[..., None]), expected)
    fractions = small(epochs=6).fit(grey / 255, labels[:300])
    np.testing.assert_array_equal(fractions.predict_proba(grey / 255), expected)
    with refusal("0..1", kind=ValueError):
        fractions.predict(grey.astype(float))
    with refusal("(1, 8, 4)", "(1, 8, 8)", kind=ValueError):
        fitted.predict(grey[:, :, :4])


def test_patience_stops_early_and_needs_rows_to_judge_by() -> None:
    fitted = small(epochs=200, patience=3, validation_fraction=0.2).fit(X, Y)
    assert 4 <= fitted.n_iter_ < 200
    assert small().fit(X, Y).n_iter_ == 15
    with refusal("validation_fraction"):
        small(patience=3, validation_fraction=0.0).fit(X, Y)


def test_any_module_can_be_the_encoder_and_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(13, 8), nn.Tanh())
    before = module[0].weight.clone()
    fitted = small(encoder=module).fit(X, Y)
    assert torch.equal(module[0].weight, before)
    assert fitted.score(X, Y) > 0.9
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_the_default_encoder_is_the_presets_and_settings_reach_the_run() -> None:
    settings: dict[str, Any] = {"epochs": 1, "width": 0.1, "gamma": 0.7, "horizon": 2, "random_state": 5}
    config = ricnet.RICClassifier(**settings).fit(X, Y).classifier_.config
    assert (config.method.gamma, config.method.horizon, config.network.width, config.seed) == (0.7, 2, 0.1, 5)
    assert (config.optimization.epochs, config.optimization.select) == (1, "nll")
    cost = ricnet.ACTClassifier(**TINY | {"epochs": 1}, horizon=2, ponder_cost=0.5).fit(X, Y).classifier_.config.method
    prior = ricnet.PonderNetClassifier(**TINY | {"epochs": 1}, horizon=2, prior=0.4).fit(X, Y).classifier_.config.method
    assert (cost.ponder_cost, prior.prior) == (0.5, 0.4)
    unwatched = small(epochs=1, validation_fraction=0.0).fit(X, Y).classifier_.config.optimization
    assert (unwatched.select, unwatched.patience) == ("last", None)
    plain, wide, paper = (  # what the user sets goes before what small tables get
        ricnet.SupervisedClassifier(epochs=1, **changes).fit(X, Y).classifier_.config
        for changes in ({}, {"width": 0.7}, {"preset": "paper"})
    )
    assert (plain.network.width, plain.optimization.batch_size, plain.optimization.epochs) == (0.5, 50, 1)
    assert wide.network.width == 0.7
    assert (paper.optimization.lr, paper.network.width) == (3e-4, 1.0)


@dataclass(frozen=True)
class Gentle(Supervised):
    name: ClassVar[str] = "gentle"
    patience_with_errors: float = 0.5


def test_a_registered_method_has_an_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own hyper-parameters, and found again by pickle."""
    assert not hasattr(ricnet, "GentleClassifier")
    monkeypatch.setitem(METHODS, "gentle", Gentle)
    fitted = small(ricnet.GentleClassifier, epochs=1, patience_with_errors=0.25).fit(X, Y)
    assert fitted.classifier_.config.method == Gentle(patience_with_errors=0.25)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_a_data_frame_is_read_as_the_command_reads_a_table() -> None:
    frame = pd.DataFrame(
        {
            "id": range(120),
            "size": np.r_[np.linspace(0, 1, 119), np.nan],
            "colour": ["red", "blue", "red"] * 40,
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(120) % 7, unit="D"),
        }
    )
    kind = np.where((frame["colour"] == "red") & (frame["size"].fillna(0) < 0.6), "yes", "no")
    fitted = small(epochs=60).fit(frame, kind)
    columns = fitted.classifier_.columns
    assert [(column.name, column.kind) for column in columns.inputs] == [
        ("id", "number"),
        ("size", "number"),
        ("colour", "category"),
        ("seen", "date"),
    ]
    assert fitted.score(frame, kind) > 0.9
    assert fitted.predict(frame.iloc[:3]).tolist() == ["yes", "no", "yes"]
    assert list(fitted.feature_names_in_) == list(frame.columns)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(frame), fitted.predict(frame))
    with pytest.warns(UserWarning, match="'colour' .* 'green'"):
        fitted.predict(frame.head(2).assign(colour="green"))
    with refusal("data frame", kind=ValueError):
        fitted.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["size"]])
    with pytest.raises(ValueError, match="samples"):
        small().fit(frame, kind[:-1])


@pytest.mark.parametrize(
    "settings", [{}, {"exits": "stage"}, {"feedback": "sample"}], ids=["plain", "exits", "sampled"]
)
def test_threads_neither_disturb_a_fit_nor_are_disturbed(settings: dict[str, Any]) -> None:
    """Two threads fit while a third draws from torch's generator, which goes on as if they were not there."""
    estimator = ricnet.RICClassifier(**TINY, **settings, random_state=3)
    alone = estimator.fit(X, Y)
    over, drawn = threading.Event(), list[float]()

    def draw() -> None:
        while not over.is_set():
            drawn.append(torch.rand(()).item())

    torch.manual_seed(4)
    with ThreadPoolExecutor(3) as threads:
        drawing = threads.submit(draw)
        fits = [threads.submit(clone(estimator).fit, X, Y) for _ in range(2)]
        fitted = [fit.result() for fit in fits]
        over.set()
        drawing.result()
    weights = alone.classifier_.model.state_dict()
    for other in fitted:
        assert all(torch.equal(weights[name], tensor) for name, tensor in other.classifier_.model.state_dict().items())
        assert other.classifier_.temperature == alone.classifier_.temperature
        if not settings.get("feedback"):  # whose answers are drawn
            assert np.array_equal(other.predict_proba(X), alone.predict_proba(X))
    undisturbed = torch.Generator().manual_seed(4)
    assert drawn == [torch.rand((), generator=undisturbed).item() for _ in drawn]


@pytest.mark.parametrize("name", ["rank", "mileage", "id"])
def test_a_frame_keeps_every_column_and_is_learned_as_well_as_an_array(name: str) -> None:
    """Whole numbers that never repeat were dropped as identifiers: accuracy 0.52 instead of 0.99."""
    rng = np.random.default_rng(0)
    rank = rng.permutation(300)
    kind = (rank < 150).astype(int)
    frame = pd.DataFrame({name: rank, "noise": rng.normal(size=300)})
    of_frame, of_array = small(epochs=40).fit(frame, kind), small(epochs=40).fit(frame.to_numpy(), kind)
    np.testing.assert_array_equal(of_frame.predict(frame), of_array.predict(frame.to_numpy()))
    assert of_frame.score(frame, kind) > 0.95
    with_gap = frame.assign(noise=[np.nan, *frame["noise"][1:]], same=1.0)
    assert small(epochs=40).fit(with_gap, kind).score(with_gap, kind) > 0.95


def test_gaps_of_an_array_are_those_of_a_frame() -> None:
    """A frame with NaN was learned from, the same numbers as an array were refused."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(200, 3))
    kind = (numbers[:, 0] > 0).astype(int)
    gaps = np.where(rng.random((200, 3)) < 0.1, np.nan, numbers)
    frame = pd.DataFrame(gaps, columns=list("abc"))
    of_array, of_frame = small(epochs=20).fit(gaps, kind), small(epochs=20).fit(frame, kind)
    np.testing.assert_allclose(of_array.predict_proba(gaps), of_frame.predict_proba(frame), atol=1e-6)
    assert of_array.score(gaps, kind) > 0.8
    whole = small(epochs=20).fit(numbers, kind)  # and a gap where fit saw none is the mean
    filled = np.where(np.isnan(gaps), numbers.mean(0), gaps)
    np.testing.assert_allclose(whole.predict_proba(gaps), whole.predict_proba(filled), atol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(of_array)).predict(gaps), of_array.predict(gaps))
    for broken in (np.full((2, 3), np.inf), np.zeros((2, 4))):
        with pytest.raises(ValueError, match=r"infinity|features"):
            of_array.predict(broken)
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.full((4, 8, 8), np.nan), [0, 1, 0, 1])


def test_random_states_of_any_kind_are_taken() -> None:
    twice = [small(epochs=1, random_state=np.random.RandomState(7)).fit(X, Y).predict_proba(X) for _ in range(2)]
    np.testing.assert_array_equal(*twice)
    unseeded = [small(epochs=1, random_state=None).fit(X, Y).predict_proba(X) for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_fitting_is_silent_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    small().fit(X, Y)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    small(verbose=1).fit(X, Y)
    assert "epoch 15/15" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": -1.0}, "lr=-1.0 "),
        ({"encoder": "resnet18"}, "images"),
        ({"preset": "slow"}, "preset='slow' "),
        ({"device": "abacus"}, "device='abacus'"),
        ({"validation_fraction": 1.5}, "validation_fraction is 1.5;"),
        ({"batch_size": 1}, "batch_size=1 "),
        ({"random_state": -1}, "random_state=-1 "),
    ],
)
def test_bad_settings_are_refused_by_the_names_they_have_here(changes: dict[str, Any], named: str) -> None:
    with refusal(named, kind=InputError):
        small(**changes).fit(X, Y)


@pytest.mark.parametrize("algorithm", ["act", "ric-closed"])  # the first is a method, but not one of RIC's
def test_only_algorithms_of_ric_are_algorithms(algorithm: str) -> None:
    with refusal(f"algorithm='{algorithm}' is unknown", "ric-closed-form", kind=InputError):
        small(ricnet.RICClassifier, algorithm=algorithm).fit(X, Y)


def test_images_with_exits_keep_rows_aside_to_leave_by() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images[:300] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    fitted = small(exits="stage", epochs=3, budget=0.5).fit(images, labels[:300])
    cost = fitted.refine(images).cost
    assert cost is not None
    assert cost.mean() < 0.7
    assert len(fitted.classifier_.budgets) > 2
    whole = small(exits="stage", epochs=1, validation_fraction=0.0)
    assert whole.fit(images, labels[:300]).classifier_.budgets == ()
    with refusal("budget", "validation_fraction", kind=InputError):
        clone(whole).set_params(budget=0.5).fit(images, labels[:300])
    with refusal("budget=0.5", "exits='stage'", kind=InputError):
        small(budget=0.5).fit(images, labels[:300])


@pytest.mark.parametrize(("fraction", "fitted"), [(0.0, ("none", "value")), (0.3, ("auto", "auto"))])
def test_nothing_is_fitted_without_rows_kept_aside(fraction: float, fitted: tuple[str, str]) -> None:
    """Rows that were learned from say nothing of when to stop, or how sure to be."""
    rows, labels = torch.randn(20, 3), torch.arange(20) % 2
    dataset = as_dataset(rows, labels, None, ("a", "b"), fraction, 0)
    config = ricnet.RICClassifier(validation_fraction=fraction)._config(dataset, fraction, 0)
    assert (config.calibration, config.halt_rule) == fitted


# Arrays as tensors


@pytest.mark.parametrize(
    ("array", "scale"),
    [
        (np.zeros((2, 3)), None),
        (np.full((2, 3, 3), 1.0), 255.0),
        (np.full((2, 3, 3), 1.5), 1.0),
        (np.full((2, 3, 3), True), 255.0),
        (np.full((2, 3, 3), 1, np.uint8), 1.0),
        (np.full((2, 3, 3), 1, np.int64), 1.0),
    ],
)
def test_how_bright_a_pixel_is_meant_to_be(array: np.ndarray, scale: float | None) -> None:
    assert pixel_scale(array) == scale


def test_channels_come_first_inside() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    inputs = as_inputs(colour, 1.0)
    assert inputs.shape == (2, 3, 4, 5)
    assert inputs[1, 2, 3, 4] == colour[1, 3, 4, 2]
    assert torch.equal(as_inputs(colour / 255, 255.0), inputs)
    assert as_inputs(colour[..., 0], 1.0).shape == (2, 1, 4, 5)


@pytest.mark.parametrize(
    ("images", "named"),
    cases(
        {
            "channels first": (np.zeros((2, 3, 32, 32)), "last"),
            "fractions": (np.full((2, 3, 3), 0.5), "255"),
            "ones": (np.ones((2, 3, 3)), "255"),
            "true or false": (np.full((2, 3, 3), True), "255"),
        }
    ),
)
def test_other_images_are_refused_where_pixels_were_fitted(images: np.ndarray, named: str) -> None:
    with refusal(named, kind=InputError):
        as_inputs(images, 1.0)


def test_black_and_white_bytes_are_pixels() -> None:
    assert not as_inputs(np.zeros((2, 3, 3)), 1.0).any()
    assert as_inputs(np.ones((2, 3, 3), np.uint8), 1.0).all()


@pytest.mark.parametrize("shape", [(0, 8, 8), (0, 8, 8, 3), (2, 0, 8)])
def test_no_image_is_too_few(shape: tuple[int, ...]) -> None:
    for array in (np.zeros(shape), np.zeros(shape, np.uint8)):
        with refusal("no pixels", kind=InputError):
            pixel_scale(array)
        for scale in (1.0, 255.0):
            with refusal("no pixels", kind=InputError):
                as_inputs(array, scale)


def test_tables_become_float32_and_too_large_numbers_are_refused() -> None:
    assert as_inputs(np.arange(6).reshape(2, 3), None).dtype == torch.float32
    with pytest.raises(ValueError, match="infinity or a value too large"):
        as_inputs(np.full((2, 2), 1e300), None)


def test_weights_of_row_and_class_are_multiplied() -> None:
    labels = np.array(["a", "a", "a", "b"])
    assert example_weights(None, None, labels) is None
    by_both = example_weights([1, 2, 3, 4], {"a": 10, "b": 1}, labels)
    np.testing.assert_array_equal(by_both, [10, 20, 30, 4])
    balanced = example_weights(None, "balanced", labels)
    np.testing.assert_allclose(balanced, [4 / 6, 4 / 6, 4 / 6, 4 / 2])  # n / (classes · rows of the class)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        example_weights([1, 2, 3, -4], None, labels)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count, dtype=torch.float32)[:, None], torch.arange(count) % 2


def test_without_validation_rows_all_are_learned_from() -> None:
    dataset = as_dataset(*rows(10), None, ("a", "b"), 0.0, 0)
    assert len(dataset.train) == len(dataset.val) == 10
    assert dataset.train.weights is None
    assert len(as_dataset(*rows(2 * SHOWN + 1), None, ("a", "b"), 0.0, 0).val) <= SHOWN


def test_validation_rows_are_stratified_seeded_and_keep_their_weights() -> None:
    weights = np.arange(1, 41, dtype=float)
    parts = [as_dataset(*rows(40), weights, ("a", "b"), 0.25, seed) for seed in (0, 0, 1)]
    assert [len(part.train) for part in parts] == [30, 30, 30]
    assert parts[0].val.labels.sum() == 5
    assert torch.equal(parts[0].val.inputs, parts[1].val.inputs)
    assert not torch.equal(parts[0].val.inputs, parts[2].val.inputs)
    for split in (parts[0].train, parts[0].val):
        assert split.weights is not None
        assert torch.equal(split.weights, split.inputs[:, 0] + 1)


def test_images_may_be_shifted_a_little_tables_not() -> None:
    images = torch.zeros(4, 1, 16, 20, dtype=torch.uint8)
    assert as_dataset(images, torch.tensor([0, 1, 0, 1]), None, ("a", "b"), 0.0, 0).augmentation.crop_padding == 2
    assert as_dataset(*rows(4), None, ("a", "b"), 0.0, 0).augmentation.crop_padding == 0


def test_one_class_is_not_enough_nor_two_of_which_one_has_no_weight() -> None:
    inputs, labels = rows(4)
    with refusal("one class", kind=ValueError):
        as_dataset(inputs, torch.zeros_like(labels), None, ("a",), 0.0, 0)
    with refusal("one class"):
        as_dataset(inputs, labels, np.array([1.0, 0, 1, 0]), ("a", "b"), 0.0, 0)
    inputs, labels, names = rows(5)[0], torch.tensor([0, 0, 1, 2, 2]), ("ant", "bee", "cow")
    with refusal("bee", "validation_fraction", kind=InputError):  # a class of one row cannot be divided
        as_dataset(inputs, labels, None, names, 0.4, 0)
    assert len(as_dataset(inputs, labels, None, names, 0.0, 0).train) == 5


@pytest.mark.parametrize(
    ("rows", "is_table", "has_exits", "fraction"),
    [
        (49, True, True, 0.0),
        (50, True, False, 0.15),
        (50, False, False, 0.0),
        (50, False, True, 0.15),
        (LARGE_TABLE - 1, True, False, 0.15),
        (LARGE_TABLE, True, False, 0.15),
        (4 * LARGE_TABLE, True, False, 0.0375),
        (LARGE_TABLE, True, True, 0.15),
    ],
)
def test_rows_are_kept_aside_where_something_is_chosen_by_them(
    rows: int, is_table: bool, has_exits: bool, fraction: float
) -> None:
    labels = np.arange(rows) % 2
    assert usual_fraction(labels, None, is_table, has_exits) == fraction
    lonely = np.where(np.arange(rows) == 0, 2, labels)  # of which none can be kept aside
    assert usual_fraction(lonely, None, is_table, has_exits) == 0
    weights = np.r_[0.0, np.ones(rows)]  # a row of weight 0 does not count
    assert usual_fraction(np.r_[2, labels], weights, is_table, has_exits) == fraction


def test_sets_need_rows_that_fit_has_not_seen() -> None:
    fitted = small().fit(X[::2], Y[::2])
    with pytest.raises(ValueError, match=r"call calibrate\(X, y\) first"):
        fitted.predict_set(X[3::4], 0.8)
    sets = fitted.calibrate(X[1::4], Y[1::4]).predict_set(X[3::4], 0.8)
    assert all(one[0] == answer for one, answer in zip(sets, fitted.predict(X[3::4]), strict=True))
    assert all(np.isin(one, fitted.classes_).all() for one in sets)
    with pytest.raises(ValueError, match=r"coverage=0\.99 needs at least 99 calibration examples and there are 45"):
        fitted.predict_set(X[3::4], 0.99)
    with pytest.raises(ValueError, match="which fit did not see"):
        fitted.calibrate(X[:2], [Y[0], 99])


def test_costs_change_the_answer() -> None:
    fitted = small().fit(X[::2], Y[::2])
    classes = len(fitted.classes_)
    fitted.cost_matrix = np.tile(np.eye(classes)[0], (classes, 1)) * -1  # the first answer always pays
    assert (fitted.predict(X[3::4]) == fitted.classes_[0]).all()
    fitted.cost_matrix = np.zeros((classes, classes + 1))
    with pytest.raises(ValueError, match="cost_matrix has shape"):
        fitted.predict(X[3::4])


@pytest.mark.parametrize("form", [list, pd.Series, partial(pd.Series, dtype="string"), partial(np.array, dtype=object)])
def test_labels_that_are_missing_are_refused(form: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="Input y contains NaN: 1 of 4"):
        small().fit(np.zeros((4, 2)), form(["a", None, "b", "a"]))
    with pytest.raises(ValueError, match="Input y contains NaN: 1 of 4"):
        small().fit(pd.DataFrame({"size": [0.0, 1.0, 2.0, 3.0]}), form(["a", np.nan, "b", "a"]))
