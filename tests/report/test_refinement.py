import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refusals import refusal
from ricnet.report.gallery import bars, data_uri
from ricnet.report.refinement import SIDE, leading_rival, refinement_figure, small_image, telling_rows
from ricnet.report.runs import RunRecord, read_run


def test_refinement_shows_halt_value_truth_and_the_start_from_uniform(ric: RunRecord) -> None:
    examples = ric.examples
    image, belief, value = refinement_figure(ric, rows=[3]).axes
    halt, label = int(examples.halt_step[3]), examples.labels[3]
    assert image.get_title() == f"true class: {ric.class_names[label]}"
    assert belief.lines[0].get_xdata()[0] == halt
    assert f"{halt} step" in belief.get_title()
    dot = value.lines[-1]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (halt, examples.values[halt, 3])
    assert dot.get_ydata()[0] < 0
    heights = {int(x): y for x, y in belief.collections[0].get_paths()[0].vertices if y > 0}
    assert heights[0] == pytest.approx(0.1)
    assert heights[7] == pytest.approx(float(np.exp(examples.log_beliefs[6, 3, label])))


def test_the_value_is_held_against_the_runs_own_threshold(ric: RunRecord) -> None:
    early = [int(ric.examples.halt_step.argmin())]
    for threshold, words in ((None, "V < 0: stops"), (0.05, "V < 0.05: stops"), (-0.2, "V < -0.2: stops")):
        method = {"name": "ric"} | ({} if threshold is None else {"halt_threshold": threshold})
        value = refinement_figure(replace(ric, config={**ric.config, "method": method}), rows=early).axes[2]
        assert [text.get_text() for text in value.texts] == [words]
        assert value.lines[0].get_ydata()[0] == (threshold or 0)


def test_telling_rows_end_with_a_wrong_one(ric: RunRecord) -> None:
    examples = ric.examples
    rows = telling_rows(examples)
    assert (examples.answers[rows] == examples.labels[rows]).tolist() == [True, True, True, False]
    first = {name: getattr(examples, name)[:1] for name in ("inputs", "labels", "halt_step")}
    one = replace(examples, **first, log_beliefs=examples.log_beliefs[:, :1], values=None, kind=None)
    assert telling_rows(one) == [0]
    assert telling_rows(replace(one, labels=(one.answers + 1) % 10)) == [0]
    assert [leading_rival(np.array([0.5, 0.3, 0.2]), label) for label in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(("method", "tabular"), [("ric", True), ("ric", False), ("act", True), ("supervised", False)])
def test_refinement_of_every_kind(make_run: Callable[..., Path], tabular: bool, method: str) -> None:
    names = ["$x^{", "a\nb", "x" * 40, *"3456789"]
    run = read_run(make_run(method=method, tabular=tabular, class_names=names))
    assert len(refinement_figure(run).axes) == (12 if method == "ric" else 8)
    with refusal("examples.npz"):
        refinement_figure(replace(run, examples=None))


def decoded(uri: str) -> tuple[str, Image.Image]:
    head, _, content = uri.partition(";base64,")
    return head, Image.open(io.BytesIO(base64.b64decode(content)))


def test_small_images_keep_every_pixel_and_photographs_are_small() -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    head, image = decoded(data_uri(pixels))
    assert head == "data:image/png"
    np.testing.assert_array_equal(np.asarray(image), pixels.transpose(1, 2, 0))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 240, 160), dtype=np.uint8)
    head, image = decoded(data_uri(pixels))
    assert (head, image.size) == ("data:image/jpeg", (SIDE * 160 // 240, SIDE))
    assert len(data_uri(pixels)) < 12_000  # noise is the worst a photograph can be


def test_grey_runs_from_black_to_white() -> None:
    image = np.asarray(small_image(np.array([[[0, 8], [12, 16]]], dtype=np.uint8)))
    assert image.tolist() == [[0, 127], [191, 255]]
    assert np.asarray(small_image(np.full((1, 2, 2), 7, dtype=np.uint8))).tolist() == [[0, 0], [0, 0]]


def test_bars_rise_and_hang_from_zero() -> None:
    """From −1 to 3 is 100 high: zero lies at 75, and a unit is 25."""
    assert bars(np.array([3.0, -1.0])) == "M0 75v-75h40V75zM50 75v25h40V75z"
    for odd in ([0.0, 0.0], [np.nan, np.inf], [5.0]):
        path = bars(np.array(odd))
        assert "n" not in path  # neither nan nor inf
        assert path.count("M") == len(odd)
