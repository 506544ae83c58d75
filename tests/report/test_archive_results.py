import json
from pathlib import Path

import numpy as np
import pytest

from archive_results import archive_run, archive_text, log_scores
from ricnet.errors import RicnetError
from ricnet.report.page import command
from ricnet.report.runs import read_run

from .conftest import MakeRun, rewrite


def test_an_archived_run_is_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("ric-seed3", seed=3)
    path = archive_run(folder, tmp_path / "results")
    whole, kept = read_run(folder), read_run(path)
    assert path.name == "ric-seed3.json"
    assert (kept.method, kept.label, kept.config, kept.task) == (whole.method, whole.label, whole.config, whole.task)
    assert kept.hardware == whole.hardware
    assert kept.seconds == whole.seconds == 61.0
    for key in ("accuracy", "ece", "nll", "brier", "mean_steps", "mean_cell_evaluations"):
        assert kept.test[key] == pytest.approx(whole.test[key], rel=1e-5)
    assert [bin["n"] for bin in kept.test["reliability"]] == [bin["n"] for bin in whole.test["reliability"]]
    assert [entry["epoch"] for entry in kept.metrics] == list(range(1, 41))
    assert kept.metrics[7]["val"]["nll"] == pytest.approx(whole.metrics[7]["val"]["nll"], rel=1e-3)
    assert kept.examples is None


def test_the_text_can_be_archived_again(make_run: MakeRun, tmp_path: Path) -> None:
    path = archive_run(make_run(), tmp_path / "results")
    assert archive_text(read_run(path)) == path.read_text()


def test_log_scores_are_those_of_the_predictions(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    with np.load(folder / "predictions.npz") as stored:
        labels, beliefs = stored["test_labels"], stored["test_log_beliefs"].astype(float)
    expected = beliefs[np.arange(len(labels)), labels]
    kept = log_scores(read_run(archive_run(folder, tmp_path / "results")))
    assert kept is not None
    np.testing.assert_allclose(kept, expected, atol=0.51e-4)
    (folder / "predictions.npz").unlink()
    assert log_scores(read_run(archive_run(folder, tmp_path / "results"))) is None


def test_predictions_of_another_run_are_not_published(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    rewrite(folder / "evaluation.json", lambda entry: entry["test"].update(nll=0.1))
    with pytest.raises(RicnetError, match=r"predictions\.npz has NLL .* where evaluation\.json says 0\.1000"):
        archive_run(folder, tmp_path / "results")


@pytest.mark.parametrize("scores", [[], [None], ["", 1], [10**400], [{}], 7, {"a": 1}])
def test_log_scores_that_are_no_numbers_are_refused(make_run: MakeRun, tmp_path: Path, scores: object) -> None:
    """Found by fuzzing."""
    path = archive_run(make_run(), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"log_scores": scores}))
    with pytest.raises(RicnetError, match="log_scores that are no numbers"):
        log_scores(read_run(path))


def test_a_derived_run_has_no_curves_of_its_own(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    rewrite(folder / "config.json", lambda header: header.update(derived_from="ric-seed0"))
    kept = read_run(archive_run(folder, tmp_path / "results"))
    assert (kept.metrics, kept.derived_from, kept.seconds) == ([], "ric-seed0", None)


def test_no_path_of_the_machine_is_published_and_long_runs_stay_small(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(data="/home/somebody/photos")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(lines[epoch % 40]) | {"epoch": epoch + 1} for epoch in range(2000)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    path = archive_run(folder, tmp_path / "results")
    assert "/home" not in path.read_text()
    assert path.stat().st_size < 150_000
    epochs = [entry["epoch"] for entry in read_run(path).metrics]
    assert len(epochs) <= 201
    assert {1, 31, 2000} <= set(epochs)


def test_the_file_repeats_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    path = archive_run(make_run(), tmp_path / "results")
    assert command(read_run(path)) == f"ric train --config {path} --out run-again"


@pytest.mark.parametrize("content", ["{", "[]", '{"config": {}}', '{"metrics": {"epoch": [1], "lr": []}}'])
def test_a_broken_file_is_named(make_run: MakeRun, tmp_path: Path, content: str) -> None:
    path = archive_run(make_run(), tmp_path / "results")
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | json.loads(content)) if "metrics" in content else content)
    with pytest.raises(RicnetError, match=r"run\.json"):
        read_run(path)
