from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from ricnet.report.pictures import Picture, _refinement, pictures, save_figures
from ricnet.report.runs import RunGroup
from ricnet.report.thumbnails import BARS


@pytest.fixture(scope="module")
def drawn(systems: list[RunGroup]) -> list[Picture]:
    return pictures(systems)


@pytest.fixture(scope="module")
def drawn_alone(systems: list[RunGroup]) -> list[Picture]:
    """RIC with a threshold of its own."""
    run = systems[0].first
    method = {**run.config["method"], "halt_threshold": 0.1}
    return pictures([RunGroup("RIC", (replace(run, config={**run.config, "method": method}),))])


def alone(groups: list[RunGroup]) -> list[RunGroup]:
    return [RunGroup(group.label, group.runs[:1]) for group in groups]


def test_a_comparison_has_one_figure_of_each_kind(drawn: list[Picture]) -> None:
    found = {picture.name: picture for picture in drawn}
    expected = ["refinement-ric", "reliability", "risk", "compute", "steps", "halting", "training"]
    assert list(found) == expected
    assert len(found["reliability"].figure.axes) == 2 * 3
    for name in ("risk", "compute", "steps", "training"):
        assert "bands their 95 % Student-t intervals" in found[name].caption
    assert all(picture.alt for picture in found.values())


def test_single_runs_have_no_words_about_seeds(drawn_alone: list[Picture]) -> None:
    assert not any("seed" in picture.caption for picture in drawn_alone)


def test_a_supervised_run_has_no_step_figures(systems: list[RunGroup]) -> None:
    assert [picture.name for picture in pictures(alone(systems)[1:2])] == ["reliability", "risk", "training"]


def test_runs_left_out_are_named(systems: list[RunGroup], tmp_path: Path) -> None:
    sl = systems[1]
    old = RunGroup("SL", (replace(sl.first, path=tmp_path, label="SL, seed 0"),))
    (risk,) = (picture for picture in pictures([*alone([sl]), old]) if picture.name == "risk")
    assert "Left out for want of a predictions.npz: SL, seed 0;" in risk.caption
    assert "risk" not in [picture.name for picture in pictures([old])]


def test_only_a_system_with_a_value_is_said_to_look_ahead(drawn: list[Picture]) -> None:
    compute = next(picture for picture in drawn if picture.name == "compute")
    assert "For RIC, the step whose value says stop is computed too" in compute.caption


def test_derived_systems_are_named_but_not_drawn(systems: list[RunGroup]) -> None:
    (sl,) = alone(systems[1:2])
    borrowed = RunGroup("SL + temperature", (replace(sl.first, derived_from="base"),))
    (training,) = (picture for picture in pictures([sl, borrowed]) if picture.name == "training")
    assert training.alt.endswith("by epoch: SL.")
    assert "Not trained, but read out of the weights of another: SL + temperature." in training.caption
    assert "training" not in [picture.name for picture in pictures([borrowed])]


def test_captions_tell_of_bands_that_are_cut(drawn: list[Picture], systems: list[RunGroup]) -> None:
    """Of two seeds far apart a band is ten times as wide as they are, and the panel is not."""
    metrics = [[{"epoch": k, "val": {"nll": height}} for k in (1, 2)] for height in (5.0, 6.0)]
    wide = RunGroup("SL", tuple(replace(systems[1].first, metrics=entries) for entries in metrics))
    found = {picture.name: picture for picture in pictures([wide])}
    assert "goes on beyond it" in found["training"].caption
    assert "goes on beyond it" not in found["risk"].caption
    assert not any("goes on beyond it" in picture.caption for picture in drawn)


def test_rows_are_explained_where_there_are_any(drawn: list[Picture], systems: list[RunGroup]) -> None:
    run = systems[0].first
    assert run.examples is not None
    flat = replace(run.examples, inputs=run.examples.inputs.reshape(len(run.examples.labels), -1))
    assert BARS in _refinement(RunGroup("RIC", (replace(run, examples=flat),))).caption
    assert BARS not in drawn[0].caption


def test_the_runs_own_threshold_is_told(drawn: list[Picture], drawn_alone: list[Picture]) -> None:
    assert "once it is less than zero, it stops" in drawn[0].caption
    assert "once it is less than 0.1, it stops" in drawn_alone[0].caption


def test_files_are_written_and_nothing_leaks(systems: list[RunGroup], tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    paths = save_figures([systems[1].first], tmp_path / "deep" / "figures")
    names = {"reliability", "risk", "training"}
    assert {path.name for path in paths} == {f"{name}.{end}" for name in names for end in ("png", "pdf")}
    assert all(path.stat().st_size > 1000 for path in paths)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_no_words_are_cut_off(drawn: list[Picture], drawn_alone: list[Picture]) -> None:
    for picture in (*drawn, *drawn_alone):
        assert not clipped(picture.figure), picture.name


def clipped(figure: Figure) -> list[str]:
    """Titles, labels and legends that reach beyond the figure; a pixel is forgiven."""
    texts = [ax.title for ax in figure.axes] + [axis.label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    frame = figure.bbox.padded(1)
    boxes = {text.get_text(): text.get_window_extent() for text in texts if text.get_text()}
    return [
        name
        for name, box in boxes.items()
        if not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
    ]
