from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Runs
from ricnet.studies.controls.halting import HALTING
from ricnet.studies.paper.rows import Rows, number, pick, read_csv, write_csv
from ricnet.studies.scales import SCALES, Scale

from .conftest import MakeRun

SMOKE = SCALES["smoke"]
# Three steps, two examples. V(s_2) < 0 stops the first validation example after one step, nothing stops the second:
# with the look ahead that costs 2 and 3. On test data the first stops after two steps and the second after one.
VAL_VALUES = [[1, 1], [-1, 1], [1, 1]]
TEST_VALUES = [[-9, -9], [1, -0.5], [-0.5, 1]]
VAL_CONFIDENCE = [[0.6, 0.5], [0.7, 0.8], [0.9, 0.9]]
TEST_CONFIDENCE = [[0.85, 0.3], [0.9, 0.4], [0.95, 0.75]]
SCORES = [[-1, -2], [-0.5, -1], [-0.25, -0.5]]
RIGHT = [[False, True], [True, False], [True, True]]


def save(run: RunRecord, **values: list[list[float]]) -> RunRecord:
    arrays = {}
    for split, confidence in (("val", VAL_CONFIDENCE), ("test", TEST_CONFIDENCE)):
        arrays |= {
            f"{split}_labels": np.zeros(2, dtype=np.int64),
            f"{split}_log_beliefs": np.zeros((2, 2), dtype=np.float32),
            f"{split}_halt_step": np.full(2, 3),
            f"{split}_cell_evaluations": np.full(2, 3),
            f"{split}_step_scores": np.array(SCORES, dtype=np.float32),
            f"{split}_step_confidence": np.array(confidence, dtype=np.float32),
            f"{split}_step_correct": np.array(RIGHT),
            f"{split}_step_entropy": 1 - np.array(confidence, dtype=np.float32),
            f"{split}_values": np.array(values[split], dtype=np.float32),
        }
    np.savez(run.path / "predictions.npz", **arrays)
    return run


def tabulated(scale: Scale, runs: Runs, folder: Path) -> Rows:
    write_csv(HALTING.tabulate(scale, runs), folder / "rows.csv")
    return read_csv(folder / "rows.csv")


def found(rows: Rows, rule: str) -> dict[str, float | None]:
    own = pick(rows, part="at equal cost", rule=rule)
    return {str(row["measure"]): number([row], "mean") for row in own}


@pytest.fixture(scope="module")
def rows(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    one = replace(SMOKE, seeds=(0,))
    mean_fed, sample_fed = HALTING.cells(one)
    run = save(make_run("ric"), val=VAL_VALUES, test=TEST_VALUES)
    return tabulated(
        one, {mean_fed: [run], sample_fed: [make_run("ric-sampled-feedback")]}, tmp_path_factory.mktemp("csv")
    )


def test_the_value_halts_as_trained_and_pays_for_its_look_ahead(rows: Rows) -> None:
    """At 0. A threshold fitted to its own cost on validation data would be −1, and stop no test example."""
    assert found(rows, "value") == {
        "accuracy": 1.0,
        "ece": pytest.approx((0.1 + 0.7) / 2),
        "nll": pytest.approx((0.5 + 2) / 2),
        "cost": 2.5,
        "steps": 1.5,
        "steps_right": 1.5,
        "steps_wrong": None,
    }


def test_others_are_fitted_on_validation_data_and_measured_on_test_data(rows: Rows) -> None:
    """Confidence 0.8 takes 3 and 2 steps on validation data, the budget of 2.5; on test data 1 and 3."""
    for rule in ("confidence", "entropy"):
        own = found(rows, rule)
        assert (own["cost"], own["steps"], own["accuracy"], own["nll"]) == (2, 2, 0.5, 0.75)
        assert (own["steps_right"], own["steps_wrong"]) == (3, 1)
    own = found(rows, "fixed number of steps")
    assert (own["cost"], own["steps"], own["nll"]) == (2.5, 2.5, 0.5)


def test_frontiers_start_where_a_rule_can_and_end_at_the_horizon(rows: Rows) -> None:
    for rule, least in (("value", 2), ("confidence", 1), ("fixed number of steps", 1)):
        budgets = [row["budget"] for row in pick(rows, part="frontier", rule=rule, measure="nll")]
        assert (len(budgets), budgets[0], budgets[-1]) == (20, least, 3)
        costs = [number([row], "mean") for row in pick(rows, part="frontier", rule=rule, measure="cost")]
        assert costs[-1] == 3


def test_each_seed_has_its_own_budget(make_run: MakeRun, tmp_path: Path) -> None:
    """The second seed's value stops nothing: its rules may spend 3, the first's 2.5."""
    mean_fed, sample_fed = HALTING.cells(SMOKE)
    never = {"val": [[1, 1]] * 3, "test": [[1, 1]] * 3}
    runs = [save(make_run("ric"), val=VAL_VALUES, test=TEST_VALUES), save(make_run("ric", 1), **never)]
    rows = tabulated(SMOKE, {mean_fed: runs, sample_fed: []}, tmp_path)
    assert found(rows, "value")["cost"] == found(rows, "fixed number of steps")["cost"] == 2.75
    assert found(rows, "fixed number of steps")["nll"] == (0.5 + 0.375) / 2


def test_the_table(rows: Rows) -> None:
    assert HALTING.write is not None
    text = HALTING.write(rows)["md"]
    assert "| value | 100.00 | 0.400 | 1.250 | 2.50 | 1.50 | 1.50 | – |" in text
    assert "| fixed number of steps | 100.00 |" in text
    assert "Scale smoke: conv, inputs 1 × 8 × 8, 30 epochs, preset fast." in text


def test_the_figure(rows: Rows) -> None:
    assert HALTING.draw is not None
    figure = HALTING.draw(rows)
    star = next(line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2.5, 1.25)
    assert [bar.get_height() for bar in figure.axes[2].patches] == [4, 6, 4, 6]
    assert not figure.axes[0].collections  # no bands over one another
    assert "Scale smoke" in figure.legends[0].get_title().get_text()
