from dataclasses import replace
from pathlib import Path

from ricnet.report.runs import RunRecord
from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES, Scale
from ricnet_paper.table2_settings import experiments

from .conftest import MakeRuns, pick, through_csv

TABLE2 = ITEMS["table2"]


def validated(run: RunRecord, accuracy: float, nll: float) -> RunRecord:
    return replace(run, evaluation={**run.evaluation, "val": {"accuracy": accuracy, "nll": nll}})


def test_the_paper_s_sweep() -> None:
    for name, seeds in (("smoke", 1), ("small", 1), ("paper", 5)):
        found = experiments(SCALES[name])
        settings = [dict(one.changes) for one in found]
        swept = {
            (c.system, s["optimizer"], s["activation"], s["batch_size"]) for c, s in zip(found, settings, strict=True)
        }
        assert len(found) == len(swept) == 2 * 2 * 2 * 2
        assert {len(one.seeds) for one in found} == {seeds}
        assert {s.get("lr") for s in settings if s["optimizer"] == "sgd"} == {0.1}
        assert not any("lr" in s for s in settings if s["optimizer"] == "adam")


def test_validation_accuracy_chooses_then_nll(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(experiments(scale))
    asked = experiments(scale)
    scores = [(0.9, 0.1), (0.95, 0.5), (0.95, 0.2), *[(0.8, 0.01)] * 5]
    for one, (accuracy, nll) in zip(asked[:8], scores, strict=True):
        runs[one] = [validated(run, accuracy, nll) for run in runs[one]]
    runs[asked[-1]] = []
    rows = through_csv(TABLE2.tabulate(scale, runs), tmp_path)
    settings = rows.drop_duplicates(["system", "optimizer", "activation", "batch_size"])
    assert pick(settings, system="SL")["chosen"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert pick(settings, system="RIC")["chosen"].sum() == 1
    assert TABLE2.write is not None
    text = TABLE2.write(rows)
    assert "| **SL** | **adam** | **silu** | **128** | **95.00** | **0.200** |" in text["md"]
    assert "RIC with sgd, silu, 256: no run finished." in text["md"]
    assert "Scale smoke: conv" in text["md"]
    assert r"\textbf{silu}" in text["tex"]
