from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive_results import to_columns
from ricnet.errors import RicnetError
from ricnet.report.runs import flatten, group_seeds, read_run, read_runs, repeats_note, to_rows

from .conftest import MakeRun, rewrite
from .systems import groups_of, write_run, write_system


def test_a_run_is_read_back(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert (run.label, run.data_name, run.iterative, len(run.metrics)) == ("RIC", "digits", True, 40)
    assert run.examples is not None
    assert run.examples.values is not None
    assert run.examples.log_beliefs.shape[::2] == (20, 10)


def test_answers_are_read_at_the_halt(make_run: MakeRun) -> None:
    examples = read_run(make_run()).examples
    assert examples is not None
    for i, halt in enumerate(examples.halt_step):
        assert examples.answers[i] == examples.log_beliefs[halt - 1, i].argmax()


def test_one_step_methods_are_not_iterative(make_run: MakeRun) -> None:
    run = read_run(make_run(method="supervised"))
    assert not run.iterative
    assert run.examples is not None
    assert run.examples.values is None


@pytest.mark.parametrize(("method", "name"), [("ric", "RIC"), ("supervised", "SL"), ("act", "ACT"), ("mine", "mine")])
def test_methods_have_their_usual_names(make_run: MakeRun, method: str, name: str) -> None:
    assert read_run(make_run(method=method)).label == name


def test_labels_say_what_differs(make_run: MakeRun) -> None:
    ric, fast = {"name": "ric", "gamma": 0.8}, {"name": "ric", "gamma": 0.9}
    runs = read_runs([make_run("a", method="supervised"), make_run("b"), make_run("c", seed=1)])
    assert [run.label for run in runs] == ["SL", "RIC, seed 0", "RIC, seed 1"]
    runs = read_runs([make_run("d", lr=1, epochs=2), make_run("e", data="svhn", out="y")])
    assert [run.label for run in runs] == ["RIC, digits", "RIC, svhn"]
    folders = [make_run("f"), make_run("g")]
    for folder, method in zip(folders, (ric, fast), strict=True):
        rewrite(folder / "config.json", lambda header, method=method: header["config"].update(method=method))
    assert [run.label for run in read_runs(folders)] == ["RIC, gamma 0.8", "RIC, gamma 0.9"]


def test_what_most_runs_have_is_left_out(make_run: MakeRun) -> None:
    runs = read_runs([make_run("a"), make_run("b", lr=0.01), make_run("c", weight_decay=0.5)])
    assert [run.label for run in runs] == ["RIC", "RIC, lr 0.01", "RIC, weight decay 0.5"]


def test_of_many_differences_the_most_telling_will_do(make_run: MakeRun) -> None:
    """Two runs of a photo folder that differ in everything a preset and a person may set."""
    small = {"resolution": 64, "encoder": "resnet10", "epochs": 50, "lr": 0.003, "batch_size": 32, "seed": 1}
    large = {"resolution": 128, "encoder": "resnet18", "epochs": 80, "lr": 0.004, "batch_size": 512, "preset": "mine"}
    runs = read_runs([make_run("a", data="x/photos", **small), make_run("b", data="x/photos", **large)])
    assert [run.label for run in runs] == ["RIC, preset fast", "RIC, preset mine"]
    del large["preset"]
    runs = read_runs([make_run("c", data="x/photos", **small), make_run("d", data="x/photos", **large)])
    assert [run.label for run in runs] == ["RIC, resnet10", "RIC, resnet18"]


def test_settings_are_said_as_a_person_would(make_run: MakeRun) -> None:
    def labels(**settings: tuple[object, object]) -> list[str]:
        pair = [{name: values[i] for name, values in settings.items()} for i in (0, 1)]
        folders = [make_run(f"{'-'.join(settings)}{i}", **each) for i, each in enumerate(pair)]
        return [run.label.removeprefix("RIC, ") for run in read_runs(folders)]

    assert labels(resolution=(None, 64)) == ["own resolution", "64 pixels"]
    assert labels(epochs=(10, 20)) == ["10 epochs", "20 epochs"]
    assert labels(augment=(True, False)) == ["augment", "no augment"]
    assert labels(calibration=("none", "auto")) == ["raw", "temperature if it helps"]
    assert labels(label_noise=(0.0, 0.4)) == ["0 % flipped", "40 % flipped"]


def test_a_setting_that_older_runs_did_not_have_tells_nothing_apart(make_run: MakeRun) -> None:
    runs = read_runs([make_run("old"), make_run("new", halt_rule="value", seed=1)])
    assert [run.label for run in runs] == ["RIC, seed 0", "RIC, seed 1"]
    assert len(group_seeds(runs)) == 1


def test_equal_runs_are_told_apart_by_their_folders(make_run: MakeRun) -> None:
    assert [run.label for run in read_runs([make_run("one"), make_run("two")])] == ["RIC, one", "RIC, two"]
    labels = [run.label for run in read_runs([make_run("a/run"), make_run("b/run")])]
    assert len(set(labels)) == 2


def test_a_folder_named_twice_is_one_run(make_run: MakeRun) -> None:
    first, second = make_run("a"), make_run("b", method="supervised")
    assert [run.label for run in read_runs([first, second, first / "." / "../a"])] == ["RIC", "SL"]


def test_an_unfinished_run_says_how_to_go_on(make_run: MakeRun) -> None:
    path = make_run()
    (path / "evaluation.json").unlink()
    with pytest.raises(RicnetError, match=r"not finished: `ric train --out .*run --resume`"):
        read_run(path)


def test_a_run_without_examples_is_still_a_run(make_run: MakeRun) -> None:
    path = make_run()
    (path / "examples.npz").unlink()
    assert read_run(path).examples is None


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match="no run folder"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["config.json", "evaluation.json", "metrics.jsonl", "examples.npz"])
@pytest.mark.parametrize("content", [b"{", b"[1, 2]", b"\xff\xfe\x00", b"{}"])
def test_broken_files_are_named(make_run: MakeRun, name: str, content: bytes) -> None:
    path = make_run()
    (path / name).write_bytes(content)
    with pytest.raises(RicnetError, match=name):
        read_run(path)


@pytest.mark.parametrize("change", [{"y": 99}, {"halt_step": 0}, {"halt_step": 21}])
def test_examples_out_of_range_are_refused(make_run: MakeRun, change: dict[str, int]) -> None:
    path = make_run() / "examples.npz"
    arrays = dict(np.load(path))
    np.savez(path, **arrays | {key: np.full_like(arrays[key], value) for key, value in change.items()})
    with pytest.raises(RicnetError, match="out of range"):
        read_run(path.parent)


@pytest.mark.parametrize("kind", [np.full(14, 4), np.full(14, -1), np.zeros(3, dtype=int)])
def test_kinds_that_do_not_fit_are_refused(make_run: MakeRun, kind: np.ndarray) -> None:
    path = make_run() / "examples.npz"
    np.savez(path, **dict(np.load(path)) | {"kind": kind})
    with pytest.raises(RicnetError, match="kinds do not fit"):
        read_run(path.parent)


def test_a_derived_run_was_not_trained(make_run: MakeRun) -> None:
    path = make_run()
    assert (read_run(path).derived_from, read_run(path).seconds) == (None, 61.0)
    rewrite(path / "config.json", lambda header: header.update(derived_from="base"))
    assert (read_run(path).derived_from, read_run(path).seconds) == ("base", None)


def test_the_threshold_is_zero_unless_set(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.halt_threshold == 0
    assert replace(run, config={**run.config, "method": {"name": "ric", "halt_threshold": 0.1}}).halt_threshold == 0.1


def test_data_noise_and_test_set_make_a_task(make_run: MakeRun) -> None:
    run = read_run(make_run(data="my/leaves", label_noise=0.4))
    assert run.task == ("my/leaves", 0.4, 450)
    assert run.data_label == "leaves, 40 % flipped"


def test_examples_of_other_classes_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(RicnetError, match="fit together"):
        read_run(make_run(class_names=["a", "b"]))


def test_a_missing_measure_is_named(make_run: MakeRun) -> None:
    path = make_run()
    rewrite(path / "evaluation.json", lambda evaluation: evaluation["test"].pop("reliability"))
    with pytest.raises(RicnetError, match=r"lacks test\.reliability"):
        read_run(path)


def test_a_table_is_called_by_its_name_and_its_target(make_run: MakeRun) -> None:
    run = read_run(make_run("table"))
    for data, label in (("/data/my.csv#kind/type", "my.csv#kind/type"), ("/data/photos", "photos")):
        assert replace(run, config={**run.config, "data": data}).data_label == label


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


names = st.text("abc", min_size=1, max_size=3)
numbers = st.integers() | st.floats(allow_nan=False)
entries = st.recursive(
    st.dictionaries(names, numbers, min_size=1, max_size=3),
    lambda inner: st.dictionaries(names, numbers | inner, min_size=1, max_size=3),
    max_leaves=6,
)


def test_names_are_those_of_the_command_line() -> None:
    assert flatten({"seed": 1, "method": {"name": "ric", "gamma": 0.8}}) == {
        **{"seed": 1, "method.name": "ric", "method.gamma": 0.8}
    }


@given(st.lists(entries, min_size=1, max_size=4))
def test_rows_come_back_from_their_columns(rows: list[dict]) -> None:
    first = rows[0]
    alike = [first | {"epoch": place} for place, _ in enumerate(rows)]
    assert to_rows(to_columns(alike)) == alike


def test_what_a_row_does_not_have_is_not_made_up() -> None:
    rows = [{"epoch": 1, "val": {"nll": 2.0}}, {"epoch": 2}]
    assert to_columns(rows) == {"epoch": [1, 2], "val.nll": [2.0, None]}
    assert to_rows(to_columns(rows)) == rows
