import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from ricnet.errors import RicnetError
from ricnet.report.examples import SIDE, bars, data_uri, leading_rival, refinement_figure, small_image, telling_rows
from ricnet.report.runs import RunGroup, RunRecord, read_run

from .conftest import MakeRun


@pytest.fixture
def ric(systems: list[RunGroup]) -> RunRecord:
    return systems[0].first


def test_refinement_shows_halt_value_and_truth(ric: RunRecord) -> None:
    assert ric.examples is not None
    assert ric.examples.values is not None
    image, belief, value = refinement_figure(ric, rows=[3]).axes
    halt = int(ric.examples.halt_step[3])
    assert image.get_title() == f"true class: {ric.class_names[ric.examples.labels[3]]}"
    assert belief.lines[0].get_xdata()[0] == halt
    assert f"{halt} step" in belief.get_title()
    dot = value.lines[-1]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (halt, ric.examples.values[halt, 3])
    assert dot.get_ydata()[0] < 0


def test_the_value_is_held_against_the_runs_own_threshold(ric: RunRecord) -> None:
    assert ric.examples is not None
    early = [int(ric.examples.halt_step.argmin())]
    assert ric.examples.halt_step[early[0]] < 7
    for threshold, words in ((None, "V < 0: stops"), (0.05, "V < 0.05: stops"), (-0.2, "V < -0.2: stops")):
        method = {"name": "ric"} | ({} if threshold is None else {"halt_threshold": threshold})
        value = refinement_figure(replace(ric, config={**ric.config, "method": method}), rows=early).axes[2]
        assert [text.get_text() for text in value.texts] == [words]
        assert value.lines[0].get_ydata()[0] == (threshold or 0)


def test_the_true_class_stands_on_the_floor_from_uniform(ric: RunRecord) -> None:
    assert ric.examples is not None
    floor = refinement_figure(ric, rows=[0]).axes[1].collections[0].get_paths()[0].vertices
    label = ric.examples.labels[0]
    heights = {int(x): y for x, y in floor if y > 0}
    assert heights[0] == pytest.approx(0.1)
    assert heights[7] == pytest.approx(float(np.exp(ric.examples.log_beliefs[6, 0, label])))


def test_telling_rows_end_with_a_wrong_one(ric: RunRecord) -> None:
    examples = ric.examples
    assert examples is not None
    rows = telling_rows(examples)
    assert (examples.answers[rows] == examples.labels[rows]).tolist() == [True, True, True, False]
    one = replace(
        examples,
        inputs=examples.inputs[:1],
        labels=examples.labels[:1],
        log_beliefs=examples.log_beliefs[:, :1],
        values=None,
        halt_step=examples.halt_step[:1],
        kind=None,
    )
    assert telling_rows(one) == [0]
    assert telling_rows(replace(one, labels=(one.answers + 1) % 10)) == [0]


def test_the_rival_is_the_best_of_the_others() -> None:
    belief = np.array([0.5, 0.3, 0.2])
    assert [leading_rival(belief, label) for label in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("tabular", [False, True])
@pytest.mark.parametrize("method", ["ric", "act", "supervised"])
def test_refinement_of_every_kind(make_run: MakeRun, tabular: bool, method: str) -> None:
    names = ["$x^{", "a\nb", "x" * 40, *"3456789"]
    figure = refinement_figure(read_run(make_run(method=method, tabular=tabular, class_names=names)))
    assert len(figure.axes) == (12 if method == "ric" else 8)


def test_refinement_without_examples(ric: RunRecord) -> None:
    with pytest.raises(RicnetError, match=r"examples\.npz"):
        refinement_figure(replace(ric, examples=None))


def decoded(uri: str) -> tuple[str, Image.Image]:
    head, _, content = uri.partition(";base64,")
    return head, Image.open(io.BytesIO(base64.b64decode(content)))


def test_small_images_keep_every_pixel() -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    head, image = decoded(data_uri(pixels))
    assert head == "data:image/png"
    np.testing.assert_array_equal(np.asarray(image), pixels.transpose(1, 2, 0))


def test_grey_runs_from_black_to_white() -> None:
    image = np.asarray(small_image(np.array([[[0, 8], [12, 16]]], dtype=np.uint8)))
    assert image.tolist() == [[0, 127], [191, 255]]
    assert np.asarray(small_image(np.full((1, 2, 2), 7, dtype=np.uint8))).tolist() == [[0, 0], [0, 0]]


def test_photographs_are_small() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 240, 160), dtype=np.uint8)
    head, image = decoded(data_uri(pixels))
    assert (head, image.size) == ("data:image/jpeg", (SIDE * 160 // 240, SIDE))
    assert len(data_uri(pixels)) < 12_000  # noise is the worst a photograph can be


def test_bars_rise_and_hang_from_zero() -> None:
    """From −1 to 3 is 100 high: zero lies at 75, and a unit is 25."""
    assert bars(np.array([3.0, -1.0])) == "M0 75v-75h40V75zM50 75v25h40V75z"


@pytest.mark.parametrize("features", [[0.0, 0.0], [np.nan, np.inf], [5.0]])
def test_bars_of_odd_features_stay_inside(features: list[float]) -> None:
    path = bars(np.array(features))
    assert "nan" not in path
    assert "inf" not in path
    assert path.count("M") == len(features)
