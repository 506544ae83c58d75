import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from archive_results import archive_run, archive_text, log_scores, main
from made_runs import collapse, rewrite
from refusals import refusal
from ricnet.report.page import command
from ricnet.report.runs import RunRecord, read_run

MakeRun = Callable[..., Path]


def test_an_archived_run_is_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("ric-seed3", seed=3)
    path = archive_run(folder, tmp_path / "results")
    whole, kept = read_run(folder), read_run(path)
    assert path.name == "ric-seed3.json"
    assert (kept.method, kept.label, kept.config, kept.task) == (whole.method, whole.label, whole.config, whole.task)
    assert (kept.hardware, kept.seconds, kept.examples) == (whole.hardware, 61.0, None)
    for key in ("accuracy", "ece", "nll", "brier", "mean_steps", "mean_cell_evaluations"):
        assert kept.test[key] == pytest.approx(whole.test[key], rel=1e-5)
    assert [bin["n"] for bin in kept.test["reliability"]] == [bin["n"] for bin in whole.test["reliability"]]
    assert [entry["epoch"] for entry in kept.metrics] == list(range(1, 41))
    assert kept.metrics[7]["val"]["nll"] == pytest.approx(whole.metrics[7]["val"]["nll"], rel=1e-3)
    assert archive_text(kept) == path.read_text()  # it can be archived again
    assert command(kept) == f"ric train --config {path} --out ric-seed3-again"


def test_log_scores_are_those_of_the_predictions(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    with np.load(folder / "predictions.npz") as stored:
        labels, beliefs = stored["test_labels"], stored["test_log_beliefs"].astype(float)
    kept = log_scores(read_run(archive_run(folder, tmp_path / "results")))
    np.testing.assert_allclose(kept, beliefs[np.arange(len(labels)), labels], atol=0.51e-4)
    rewrite(folder / "evaluation.json", lambda entry: entry["test"].update(nll=0.1))
    with refusal("predictions.npz", "evaluation.json", "0.1000"):  # of different runs
        archive_run(folder, tmp_path / "results")
    (folder / "predictions.npz").unlink()
    assert log_scores(read_run(archive_run(folder, tmp_path / "results"))) is None


FUZZED: list[object] = [[], [None], ["", 1], [10**400], [{}], [[1], [1, 2]], [True], 7, {"a": 1}]
"""Log-scores found by fuzzing."""


@pytest.mark.parametrize("scores", FUZZED, ids=range(len(FUZZED)))
def test_changed_scores_are_refused(ric: RunRecord, tmp_path: Path, scores: object) -> None:
    path = archive_run(ric.path, tmp_path)
    rewrite(path, lambda stored: stored.update(log_scores=scores))
    with refusal("log_scores"):
        log_scores(read_run(path))


@pytest.mark.parametrize("content", ["{", "[]", '{"config": {}}', None])
def test_changed_archives_are_refused(ric: RunRecord, tmp_path: Path, content: str | None) -> None:
    """Without content: columns of different length."""
    path = archive_run(ric.path, tmp_path)
    if content is None:
        rewrite(path, lambda stored: stored.update(metrics={"epoch": [1], "lr": []}))
    else:
        path.write_text(content)
    with refusal(path):
        read_run(path)


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["archive_results", str(tmp_path), "--to", str(tmp_path / "out")])
    with refusal(tmp_path, kind=SystemExit):
        main()
    assert not (tmp_path / "out").exists()


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


def test_epochs_that_were_measured_on_all_data_are_not_thinned_away(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    plain = {key: value for key, value in first.items() if key not in ("test", "train_eval")}
    rows = [plain | {"epoch": epoch} | ({"test": first["val"]} if epoch % 10 == 0 else {}) for epoch in range(1, 2001)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewrite(folder / "evaluation.json", lambda entry: entry.update(selected_epoch=1283))
    kept = read_run(archive_run(folder, tmp_path / "results"))
    assert [entry["epoch"] for entry in kept.metrics if "test" in entry] == list(range(10, 2001, 10))
    assert 1283 in [entry["epoch"] for entry in kept.metrics]
    assert len(kept.metrics) < 500


def test_a_collapse_is_kept_though_its_epoch_is_not(make_run: MakeRun, tmp_path: Path) -> None:
    """And by the runs that share its weights, which have no curves."""
    folder = collapse(make_run("ric-seed0"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    more = [lines[0] | {"epoch": epoch, "update": 9 * epoch} for epoch in range(41, 2001)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, *more]))
    kept = read_run(path := archive_run(folder, tmp_path / "results"))
    assert 30 not in [line["epoch"] for line in kept.metrics]
    assert kept.collapses == read_run(folder).collapses != ()
    assert archive_text(kept) == path.read_text()
    rewrite(folder / "config.json", lambda header: header.update(derived_from="ric-seed0"))
    derived = read_run(archive_run(folder, tmp_path / "derived"))
    assert (derived.metrics, derived.collapses) == ([], kept.collapses)
    assert '"collapses"' not in archive_run(make_run("fine"), tmp_path / "results").read_text()
