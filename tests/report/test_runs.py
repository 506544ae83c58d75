from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from filmstrip import belief
from made_runs import collapse, groups_of, rewrite, write_run, write_system
from refusals import refusal
from ricnet.errors import counted, listing
from ricnet.evaluation.choices import NEVER
from ricnet.io import short
from ricnet.report.figures import looks
from ricnet.report.runs import RunRecord, collapse_note, group_seeds, read_run, read_runs, repeats_note
from ricnet.report.tables import markdown_safe, number, percent

MakeRun = Callable[..., Path]


def test_a_run_is_read_back_with_its_answers_at_the_halt(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert (run.label, run.data_name, run.iterative, len(run.metrics)) == ("RIC", "digits", True, 40)
    assert run.examples.log_beliefs.shape[::2] == (20, 10)
    assert run.examples.values.shape == run.examples.log_beliefs.shape[:2]
    for i, halt in enumerate(run.examples.halt_step):
        assert run.examples.answers[i] == run.examples.log_beliefs[halt - 1, i].argmax()
    (run.path / "examples.npz").unlink()
    assert read_run(run.path).examples is None
    one_pass = read_run(make_run("sl", method="supervised"))
    assert (one_pass.iterative, one_pass.examples.values) == (False, None)


def test_attributes_of_a_run_record(make_run: MakeRun) -> None:
    run = read_run(make_run(data="my/leaves", label_noise=0.4))
    assert (run.derived_from, run.seconds, run.halt_threshold) == (None, 61.0, 0)
    assert run.task == ("my/leaves", 0.4, 300)
    assert run.data_label == "leaves, 40 % flipped"
    for data, label in (("/data/my.csv#kind/type", "my.csv#kind/type"), ("/data/photos", "photos")):
        assert replace(run, config={"data": data}).data_label == label
    assert replace(run, config={"method": {"name": "ric", "halt_threshold": 0.1}}).halt_threshold == 0.1
    assert replace(run, config={"method": {"name": "ric", "halt_threshold": NEVER}}).halt_threshold is None
    rewrite(run.path / "config.json", lambda header: header.update(derived_from="base"))
    assert (read_run(run.path).derived_from, read_run(run.path).seconds) == ("base", None)


def labels_of(*folders: Path) -> list[str]:
    return [run.label for run in read_runs(folders)]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([{"method": "supervised"}, {}, {"seed": 1}], ["SL", "RIC, seed 0", "RIC, seed 1"]),
        ([{"method": "act"}, {"method": "mine"}], ["ACT", "mine"]),
        ([{"lr": 1, "epochs": 2}, {"data": "svhn", "out": "y"}], ["RIC, digits", "RIC, svhn"]),
        ([{}, {"lr": 0.01}, {"weight_decay": 0.5}], ["RIC", "RIC, lr 0.01", "RIC, weight decay 0.5"]),
        ([{"resolution": None}, {"resolution": 64}], ["RIC, own resolution", "RIC, 64 pixels"]),
        ([{"epochs": 10}, {"epochs": 20}], ["RIC, 10 epochs", "RIC, 20 epochs"]),
        ([{"augment": True}, {"augment": False}], ["RIC, augment", "RIC, no augment"]),
        ([{"calibration": "none"}, {"calibration": "auto"}], ["RIC, raw", "RIC, temperature if it helps"]),
        ([{"label_noise": 0.0}, {"label_noise": 0.4}], ["RIC, 0 % flipped", "RIC, 40 % flipped"]),
        ([{}, {"halt_rule": "value", "seed": 1}], ["RIC, seed 0", "RIC, seed 1"]),  # older runs have no halt_rule
        ([{}, {}], ["RIC, run0", "RIC, run1"]),
    ],
)
def test_labels_name_the_settings_that_differ(
    make_run: MakeRun, settings: list[dict[str, Any]], labels: list[str]
) -> None:
    assert labels_of(*(make_run(f"run{i}", **each) for i, each in enumerate(settings))) == labels


RULE = {
    **{"halt_threshold": 0.0, "max_steps": 3, "nll": 0.1, "mean_steps": 2.0, "nll_before": 0.2, "reached": True},
    **{"steps_before": 9.0, "n": 300},
}


def test_labels_say_whether_the_halt_was_chosen_beside_a_temperature(make_run: MakeRun) -> None:
    """SL with both settings on auto has no halting rule to choose."""
    both = {"calibration": "auto", "halt_rule": "auto"}
    folders = [make_run("raw"), make_run("temperature", calibration="auto"), make_run("both", **both)]
    rewrite(folders[2] / "evaluation.json", lambda entry: entry.update(fitted={"halting": RULE}))
    folders += [make_run("sl", "supervised", **both), make_run("sl-raw", "supervised")]
    words = ["RIC, raw", "RIC, temperature if it helps", "RIC, halt and temperature chosen"]
    assert labels_of(*folders) == [*words, "SL, temperature if it helps", "SL, raw"]


def test_the_halt_of_supervised_learning_is_said_without_a_value(make_run: MakeRun) -> None:
    folders = [make_run(name, "supervised", calibration="temperature") for name in ("all the way", "budget")]
    rewrite(folders[1] / "evaluation.json", lambda entry: entry.update(fitted={"halting": RULE}))
    assert labels_of(*folders) == ["SL + temperature, own halt", "SL + temperature, halt chosen"]


def test_labels_of_methods_and_of_folders(make_run: MakeRun) -> None:
    folders = [make_run("f"), make_run("g")]
    for folder, gamma in zip(folders, (0.8, 0.9), strict=True):
        method = {"name": "ric", "gamma": gamma}
        rewrite(folder / "config.json", lambda header, method=method: header["config"].update(method=method))
    assert labels_of(*folders) == ["RIC, gamma 0.8", "RIC, gamma 0.9"]
    assert len(set(labels_of(make_run("a/run"), make_run("b/run")))) == 2
    first, second = make_run("first"), make_run("second", method="supervised")
    assert labels_of(first, second, first / "." / "../first") == ["RIC", "SL"]  # a folder named twice is one run


def test_of_many_differences_the_most_telling_will_do(make_run: MakeRun) -> None:
    """Runs of a photo folder with many different settings."""
    small = {"resolution": 64, "encoder": "resnet10", "epochs": 50, "lr": 0.003, "batch_size": 32, "seed": 1}
    large = {"resolution": 128, "encoder": "resnet18", "epochs": 80, "lr": 0.004, "batch_size": 512}
    folders = [make_run("a", **small), make_run("b", preset="mine", **large), make_run("c", **large)]
    assert labels_of(*folders[:2]) == ["RIC, preset fast", "RIC, preset mine"]
    assert labels_of(folders[0], folders[2]) == ["RIC, resnet10", "RIC, resnet18"]


@pytest.fixture
def timed(ric: RunRecord) -> RunRecord:
    """Two epochs of 10 updates of 100 images, at 500 and at 1000 images/s."""
    lines = [{"epoch": k, "update": 10 * k, "images_per_second": 500.0 * k} for k in (1, 2)]
    return replace(ric, metrics=lines, config=ric.config | {"optimization": {"batch_size": 100}})


def test_the_clock_counts_updates_alone(ric: RunRecord, timed: RunRecord) -> None:
    assert timed.clock == {1: 2.0, 2: 3.0}
    assert (timed.training_seconds, timed.images_per_second) == (3.0, 750.0)
    few = replace(timed, data=timed.data | {"rows": {"train": 50}})  # a batch is no larger than the data
    assert few.clock == {1: 1.0, 2: 1.5}
    assert replace(timed, data={}).clock == {}  # found by fuzzing
    derived = replace(timed, derived_from="ric-seed0")
    assert (derived.training_seconds, derived.images_per_second) == (None, None)
    assert (ric.clock, ric.training_seconds, ric.images_per_second) == ({}, 61.0, None)


def test_runs_alike_in_all_but_the_seed_are_one_system(tmp_path: Path) -> None:
    ric, sl = write_system(tmp_path, "ric"), write_system(tmp_path, "supervised", seeds=2)
    first, second = groups_of(ric[2], sl[1], ric[0], ric[1], sl[0])
    assert (first.label, first.seeds) == ("RIC", (0, 1, 2))
    assert (second.label, second.seeds) == ("SL", (0, 1))
    assert [run.path.name for run in first.runs] == ["ric-0", "ric-1", "ric-2"]
    assert first.first is first.runs[0]


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ([{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}, {"lr": 0.2}], [2, 2]),
        ([{"lr": 0.1, "epochs": 3}, {"epochs": 3, "lr": 0.1}], [2]),  # whatever the order in the file
        ([{}, {"halt_rule": "value"}], [2]),  # a setting that older runs did not have
        (  # what is measured, and how fast, makes no other system
            [
                {"optimization": {"lr": 0.1, "measure_all": True, "measure_every": 5}},
                {"optimization": {"lr": 0.1, "compile": "off"}},
                {"optimization": {"lr": 0.2, "measure_all": False, "compile": "off"}},
            ],
            [2, 1],
        ),
        (  # an older run may lack a setting or write it as a whole number
            [{"optimization": {"lr": 0.1, **more}} for more in ({}, *({"accumulate": k} for k in (1, 2, 2.0)))],
            [2, 2],
        ),
    ],
)
def test_runs_that_differ_in_seed_are_one_system(
    tmp_path: Path, settings: list[dict[str, Any]], sizes: list[int]
) -> None:
    folders = [write_run(tmp_path / str(seed), seed=seed, **each) for seed, each in enumerate(settings)]
    assert [len(group.runs) for group in groups_of(*folders)] == sizes


@pytest.mark.parametrize(("price", "sizes"), [(0.0, [2]), (0.5, [1, 1])])
def test_a_methods_setting_that_older_runs_did_not_have(tmp_path: Path, price: float, sizes: list[int]) -> None:
    old, new = write_system(tmp_path, "ric", seeds=2)
    rewrite(new / "config.json", lambda header: header["config"]["method"].update(compute_price=price))
    assert [len(group.runs) for group in groups_of(old, new)] == sizes


def test_of_runs_with_the_same_seed_the_first_counts(tmp_path: Path) -> None:
    a, b = write_system(tmp_path, "ric", seeds=2)
    again, last = write_run(tmp_path / "again", seed=1), write_run(tmp_path / "last", seed=1)
    (group,) = groups_of(again, a, b, last)
    assert group.seeds == (0, 1)
    assert [run.path.name for run in group.runs] == ["ric-0", "again"]
    assert [run.path.name for run in group.repeats] == ["ric-1", "last"]
    assert repeats_note([group]).endswith("ric-1 and last.")
    assert repeats_note(groups_of(a, b)) == ""


def test_a_derived_run_is_not_the_trained_one_of_the_same_settings(make_run: MakeRun) -> None:
    trained, derived = make_run("trained"), make_run("derived")
    rewrite(derived / "config.json", lambda header: header.update(derived_from="other"))
    groups = group_seeds(read_runs([trained, derived]))
    assert [group.label for group in groups] == ["RIC, trained", "RIC, derived"]
    assert not any(group.repeats for group in groups)


def test_how_words_and_numbers_are_written() -> None:
    assert (short("a\nb\x1b[31m"), short("x" * 20, 5)) == ("a�b�[31m", "xxxx…")
    assert [number(x, 1) for x in (61, 1234.56, None, float("nan"))] == ["61.0", "1,234.6", "–", "–"]
    assert (percent(0.98444), percent(1), percent(None)) == ("98.44 %", "100.00 %", "–")
    assert [belief(share) for share in (0.994, 0.996, 0.99999, 1.0)] == ["99 %", "> 99 %", "> 99 %", "100 %"]
    assert (counted(1, "epoch"), counted(20, "epoch")) == ("1 epoch", "20 epochs")
    assert [listing(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert markdown_safe(r"a|b *c* _d_ `e` [f] <i> \\") == r"a\|b \*c\* \_d\_ \`e\` \[f\] &lt;i> \\\\"


def test_a_final_fit_is_always_marked(make_run: MakeRun) -> None:
    """Also where another setting tells the runs apart, and for a single run."""
    folders = [make_run("a"), make_run("b", preset="paper", final_fit=True)]
    assert [run.label for run in read_runs(folders)] == ["RIC", "RIC, final fit"]
    assert read_run(folders[1]).label == "RIC, final fit"
    assert [look.name for look in looks(groups_of(*folders)).values()] == ["RIC", "RIC, final fit"]


WHAT = (
    "† Training collapsed: fallen (epoch 30: training accuracy 65.0 %, 25.0 points below its best; "
    "the value loss jumped in epoch 30: to 6, from a median of 1 in the 20 epochs before)."
)


def test_a_run_that_collapsed_is_marked_by_its_own_record(make_run: MakeRun) -> None:
    """Also a run of an older version, whose metrics.jsonl does not record collapses."""
    fine, fallen = read_runs([make_run("fine", seed=0), collapse(make_run("fallen", seed=1))])
    assert (fine.collapses, fine.label) == ((), "RIC, seed 0")
    assert [each["epoch"] for each in fallen.collapses] == [30]
    assert fallen.label == "RIC, seed 1 †"
    assert collapse_note([fine, fallen]) == WHAT
    assert collapse_note([fine]) == ""
    assert collapse_note([fallen, replace(fine, path=fallen.path)]) == WHAT  # of the same name in another folder
    jumped = replace(fine, collapses=({"epoch": 26, "value_loss": 0.2, "median_value_loss": 0.03},))
    words = "† The value loss jumped: fine (epoch 26: to 0.2, from a median of 0.03 in the 20 epochs before)."
    assert collapse_note([jumped]) == words
    assert collapse_note([fallen, jumped]) == f"{WHAT} {words}"


def test_a_group_is_marked_if_any_of_its_seeds_collapsed(make_run: MakeRun) -> None:
    sl = [make_run(f"sl{seed}", "supervised", seed=seed) for seed in range(2)]
    ric = [make_run("ric0", seed=0), collapse(make_run("ric1", seed=1))]
    groups = groups_of(*sl, *ric)
    assert [(group.label, group.collapsed) for group in groups] == [("SL", False), ("RIC †", True)]
    (same,) = groups_of(ric[0], collapse(make_run("again", seed=0)))
    assert same.label == "RIC"  # the one that collapsed repeats a seed and is left out


def test_weights_of_a_collapsed_run_are_marked_and_its_training_is_named_once(make_run: MakeRun) -> None:
    folder = make_run("derived")
    stored = [{"epoch": 7, "accuracy": 0.2, "best_accuracy": 0.5}]
    rewrite(folder / "config.json", lambda header: header.update(derived_from="base", collapses=stored))
    base = replace(read_run(folder), path=Path("base"), derived_from=None)
    derived = read_run(folder)
    assert derived.collapses == tuple(stored)
    note = "† Training collapsed: base (epoch 7: training accuracy 20.0 %, 30.0 points below its best)."
    assert collapse_note([base, derived]) == collapse_note([derived]) == note


@pytest.mark.parametrize(
    "stored",
    [
        *([], None, 3, [3], [{}], [{"accuracy": 0.1, "best_accuracy": 0.5}], [{"epoch": 0}]),
        *([{"epoch": 1, "accuracy": 0.1}], [{"epoch": 1, "value_loss": "9", "median_value_loss": 1}]),
    ],
)
def test_invalid_collapses_are_refused(make_run: MakeRun, stored: Any) -> None:
    folder = make_run()
    rewrite(folder / "config.json", lambda header: header.update(collapses=stored))
    with refusal("config.json", "collapses"):
        read_run(folder)


def test_a_shortened_name_keeps_its_mark() -> None:
    assert short("RIC, on-policy, marginal credit, seed 2 †", 32) == "RIC, on-policy, marginal cred… †"
    assert len(short("x" * 40 + " †", 32)) == 32
    assert short("RIC †", 5) == "RIC †"
