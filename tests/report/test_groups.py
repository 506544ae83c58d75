from pathlib import Path

from ricnet.report.runs import repeats_note

from .conftest import rewrite
from .systems import groups_of, write_run, write_system


def test_runs_alike_in_all_but_the_seed_are_one_system(tmp_path: Path) -> None:
    ric, sl = write_system(tmp_path, "ric"), write_system(tmp_path, "supervised", seeds=2)
    first, second = groups_of(ric[2], sl[1], ric[0], ric[1], sl[0])
    assert (first.label, first.seeds) == ("RIC", (0, 1, 2))
    assert (second.label, second.seeds) == ("SL", (0, 1))
    assert [run.path.name for run in first.runs] == ["ric-0", "ric-1", "ric-2"]
    assert first.first is first.runs[0]


def test_one_setting_more_is_another_system_and_the_label_says_which(tmp_path: Path) -> None:
    plain = [write_run(tmp_path / f"a{seed}", seed=seed, lr=0.1) for seed in range(2)]
    other = [write_run(tmp_path / f"b{seed}", seed=seed, lr=0.2) for seed in range(2)]
    assert [group.label for group in groups_of(*plain, *other)] == ["RIC, lr 0.1", "RIC, lr 0.2"]
    assert [len(group.runs) for group in groups_of(*plain, *other)] == [2, 2]


def test_the_order_of_settings_in_the_file_makes_no_difference(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", seed=0, lr=0.1, epochs=3)
    b = write_run(tmp_path / "b", seed=1, epochs=3, lr=0.1)
    assert len(groups_of(a, b)) == 1


def test_of_runs_with_the_same_seed_the_first_counts(tmp_path: Path) -> None:
    a, b = write_system(tmp_path, "ric", seeds=2)
    again, last = write_run(tmp_path / "again", seed=1), write_run(tmp_path / "last", seed=1)
    (group,) = groups_of(again, a, b, last)
    assert group.seeds == (0, 1)
    assert [run.path.name for run in group.runs] == ["ric-0", "again"]
    assert [run.path.name for run in group.repeats] == ["ric-1", "last"]
    assert repeats_note([group]).endswith("those of another run: ric-1 and last.")
    assert repeats_note(groups_of(a, b)) == ""


def test_a_derived_run_is_not_the_trained_one_of_the_same_settings(tmp_path: Path) -> None:
    trained, derived = write_run(tmp_path / "trained"), write_run(tmp_path / "derived")
    rewrite(derived / "config.json", lambda header: header.update(derived_from="other"))
    groups = groups_of(trained, derived)
    assert [group.label for group in groups] == ["RIC, trained", "RIC, derived"]
    assert not any(group.repeats for group in groups)


def test_what_is_looked_at_and_how_fast_makes_no_other_system(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", seed=0, optimization={"lr": 0.1, "measure_all": True, "measure_every": 5})
    b = write_run(tmp_path / "b", seed=1, optimization={"lr": 0.1, "compile": "off"})
    c = write_run(tmp_path / "c", seed=2, optimization={"lr": 0.2, "measure_all": False, "compile": "off"})
    assert [len(group.runs) for group in groups_of(a, b, c)] == [2, 1]


def test_an_older_run_may_lack_a_setting_or_write_it_as_a_whole_number(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", seed=0, optimization={"lr": 0.1})
    new = write_run(tmp_path / "new", seed=1, optimization={"lr": 0.1, "accumulate": 1})
    other = write_run(tmp_path / "other", seed=2, optimization={"lr": 0.1, "accumulate": 2})
    whole = write_run(tmp_path / "whole", seed=3, optimization={"lr": 0.1, "accumulate": 2.0})
    assert [len(group.runs) for group in groups_of(old, new, other, whole)] == [2, 2]
