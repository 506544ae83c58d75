"""scripts/study_recipes.py: candidates that can be trained, the rule that names the winner, and no test rows."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import study_recipes as study
from queued import train_here, write_data
from recipe_candidates import SEARCHES, Search, Times
from ricnet.data import Dataset, Split
from ricnet.data.dataset import PHOTOGRAPHS, Augmentation
from study_recipes import JUDGES, Trial, changed, configuration, table, walk, winner

CPU = torch.device("cpu")
TOY = Search(
    "",
    {"encoder": "conv", "width": 0.25},
    {"batch_size": 32, "lr": 1e-3, "epochs": 1, "average_share": 0.1},
    {"batch": [{"batch_size": 16, "lr": Times(0.5)}], "optimizer": [{"optimizer": "nesterov", "lr": 1e30}]},
)


def write_result(trial: Trial, archives: Path, scores: list[int] | None) -> None:
    archives.mkdir(exist_ok=True)
    entry: dict[str, Any] = {"diverged": scores is None, "accuracy": 0.5, "log_scores": scores}
    entry["nll_tempered"] = None if scores is None else -1e-4 * sum(scores) / len(scores)
    (archives / f"{trial.name}.json").write_text(json.dumps(entry))


def scores(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_lowest_loss_wins_if_it_is_shown() -> None:
    tried = [{"lr": 1}, {"lr": 2}, {"lr": 3}]
    first, better, noisy = scores(-1.0, -1.1, -0.9), scores(-0.8, -0.9, -0.8), scores(-2.5, -0.6, 0.3)
    assert winner(tried, [first, better, scores(-2, -2, -2)]) == {"lr": 2}
    assert winner(tried, [first, None, noisy]) == {"lr": 1}  # better by less than a standard error
    assert winner(tried, [None, scores(-2, -2, -2), better]) == {"lr": 3}
    assert winner(tried, [None, None, None]) == {"lr": 1}


def test_factors_are_of_the_present_value() -> None:
    assert changed({"lr": 2e-3, "epochs": 4}, {"lr": Times(0.5), "flip": "alternating"}) == {
        "lr": 1e-3,
        "epochs": 4,
        "flip": "alternating",
    }


@pytest.mark.parametrize("name", SEARCHES)
def test_every_candidate_can_be_configured_for_every_method(name: str) -> None:
    search = SEARCHES[name]
    now = {**search.fixed, **search.start}
    tried = [search.fixed, *(changed(now, change) for changes in search.stages.values() for change in changes)]
    for settings in tried:
        dataset = images(settings.get("oversize", 1.0), "resolution" in settings)
        for method in study.CONFIRMED:
            config = configuration(Trial(name, method, settings), dataset, CPU)
            made = vars(config) | vars(config.network) | vars(config.optimization) | vars(config.method)
            assert all(made[key] == value for key, value in settings.items() if key != "average_share")
            if settings.get("average_share") == 0.1:  # a tenth of the updates
                updates = config.optimization.epochs * (8_192 // config.optimization.batch_size)
                assert config.optimization.average == pytest.approx(1 - 10 / updates)


def images(oversize: float, photographs: bool) -> Dataset:
    side = round(oversize * 128) if photographs else 32
    parts = [
        Split(torch.zeros(1, 3, side, side, dtype=torch.uint8).expand(rows, -1, -1, -1), torch.arange(rows) % 10)
        for rows in (8_192, 10, 0)
    ]
    varied = PHOTOGRAPHS if photographs else Augmentation(crop_padding=4, flip=True)
    return Dataset("images", *parts, tuple("abcdefghij"), varied, oversize=oversize)


def test_a_stage_starts_from_the_winner_of_the_stage_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCHES, "toy", TOY)
    start = {**TOY.fixed, **TOY.start}
    smaller = changed(start, TOY.stages["batch"][0])
    steps, now, missing = walk("toy", tmp_path)
    assert (len(steps), now) == (1, start)
    assert [(trial.settings, trial.method) for trial in missing] == [(s, m) for s in (start, smaller) for m in JUDGES]
    for trial in missing:
        write_result(trial, tmp_path, [-9_000, -9_100] if trial.settings == smaller else [-12_000, -12_000])
    steps, now, missing = walk("toy", tmp_path)
    assert now == smaller
    assert steps[1][1][0] == smaller
    assert {trial.settings["batch_size"] for trial in missing} == {
        16
    }  # what the first stage has trained is not repeated
    for trial in missing:
        write_result(trial, tmp_path, None)
    steps, now, missing = walk("toy", tmp_path)
    assert now == smaller
    assert len(missing) == 3 * 2 * 3  # methods, result and `fast`, seeds
    assert {trial.seed for trial in missing}.isdisjoint({0})
    rows = table(tmp_path).splitlines()
    assert "−0.295 ± 0.005 |" in rows[3]  # of −1.2 less −0.9 and −0.91
    assert rows[5].count("diverged") == 2


def test_a_search_from_data_to_table_without_test_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(monkeypatch)
    data = write_data(tmp_path / "data.npz")
    toy = Search(data, TOY.fixed, TOY.start, {"optimizer": TOY.stages["optimizer"]}, seeds=())
    monkeypatch.setitem(SEARCHES, "toy", toy)
    runs, archives = tmp_path / "runs", tmp_path / "archives"
    monkeypatch.setattr(sys, "argv", ["study", "toy", "--runs", str(runs), "--to", str(archives), "--device", "cpu"])
    study.main()
    out = capsys.readouterr().out
    assert "0 failed, 0 left" in out
    assert out.count("diverged") == 2
    for folder in runs.glob("toy-*"):
        assert json.loads((folder / "config.json").read_text())["data"]["rows"]["test"] == 0
        if (folder / "evaluation.json").is_file():
            assert json.loads((folder / "evaluation.json").read_text())["test"] is None


def test_an_unknown_search_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "cifar100"])
    with pytest.raises(SystemExit):
        study.main()
