from dataclasses import replace

import pytest

from ricnet.report.figures import by_task, label_rows, overlay_grid, panel_grid, task_title
from ricnet.report.runs import RunGroup


def on(group: RunGroup, **config: object) -> RunGroup:
    return RunGroup(group.label, (replace(group.first, config={**group.first.config, **config}),))


def test_data_and_noise_make_a_task(systems: list[RunGroup]) -> None:
    ric, sl, act = systems
    noisy, elsewhere = on(sl, label_noise=0.2), on(act, data="my/svhn")
    found = by_task([ric, elsewhere, noisy, sl])
    assert [[group.label for group in alike] for alike in found] == [["RIC", "SL"], ["ACT"], ["SL"]]
    assert [task_title(alike[0]) for alike in found] == ["digits", "svhn", "digits, 20 % flipped"]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 4), (5, 3), (8, 4), (9, 3)])
def test_panels_stand_at_most_four_abreast(count: int, columns: int) -> None:
    figure, panels = panel_grid(count, heights=(2.0, 1.0))
    label_rows(panels, "above", "below")
    assert len(panels) == count
    assert len(figure.axes) == 2 * count
    named = [above.get_ylabel() == "above" for above, _ in panels]
    assert named == [place % columns == 0 for place in range(count)]


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (3, 1), (4, 2), (5, 2)])
def test_overlays_stand_at_most_three_abreast(count: int, rows: int) -> None:
    figure, panels = overlay_grid(count)
    assert len(panels) == len(figure.axes) == count
    assert panels[0].get_gridspec().nrows == rows
