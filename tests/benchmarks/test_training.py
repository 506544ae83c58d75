import pytest
import torch

import training
from common import Scale, random_images
from training import TABLE_METHODS, Candidate, build, candidates, flops_per_image, measure, measure_table

CPU = torch.device("cpu")
TINY = Scale("mlp", 0.125, side=4, batch=8, turns=1, calls=1)


def test_every_method_has_its_row_and_its_ratio_to_supervised_learning() -> None:
    rows = {row["method"]: row for row in measure(CPU, TINY)}
    assert set(rows) == {"supervised", "ric", "ric, on-policy", "anytime", "act", "pondernet"}
    supervised = rows["supervised"]["ms"]
    for row in rows.values():
        assert row["× SL"] == pytest.approx(row["ms"] / supervised)
        assert row["images/s"] == pytest.approx(1000 * TINY.batch / row["ms"])


def test_on_a_gpu_the_two_that_are_compared_run_in_every_way() -> None:
    ways = ("eager", "compiled", "graph", "graph, compiled")
    all_ways = [Candidate(system, way) for system in ("supervised", "ric") for way in ways]
    assert [c for c in candidates(torch.device("cuda")) if c.system in ("supervised", "ric")] == all_ways


def test_flops_are_those_of_products_done_by_hand() -> None:
    """An MLP of 48 inputs, 16 and 16 hidden units and 10 outputs, a classifier of its own; 2 FLOPs a weight and image
    forward, as many for the gradient of the weight, and for that of the input but in the first layer."""
    dataset = random_images(TINY.side)
    first, later = 48 * 16, 16 * 16 + 16 * 10
    trainer = build(Candidate("supervised", "eager"), dataset, CPU, TINY)
    assert flops_per_image(trainer, dataset) == 4 * first + 6 * later


def test_each_method_of_a_table_has_its_ratio_to_supervised_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TABLES", {"small": (60, 3)})
    monkeypatch.setattr(training, "TABLE_TURNS", 1)
    rows = {row["method"]: row for row in measure_table("small", CPU)}
    assert set(rows) == set(TABLE_METHODS)
    for row in rows.values():
        assert row["× SL"] == pytest.approx(row["CPU ms"] / rows["supervised"]["CPU ms"])
