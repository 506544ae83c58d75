from collections.abc import Sequence
from typing import Any

import pytest

from ricnet.evaluation.collapse import CollapseWatch, collapses, summary, words


def lines(accuracy: Sequence[float] = (), value_loss: Sequence[float] = (), first: int = 1) -> list[dict[str, Any]]:
    """One line an epoch, of whichever was measured."""
    columns = {name: column for name, column in (("accuracy", accuracy), ("value_loss", value_loss)) if column}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [{"epoch": epoch, "train": row} for epoch, row in enumerate(rows, start=first)]


def epochs(*given: Any) -> list[float]:
    return [each["epoch"] for each in collapses(lines(*given))]


@pytest.mark.parametrize("best", [0.2, 0.4, 0.787, 1.0])
def test_more_than_ten_points_below_the_best_training_accuracy(best: float) -> None:
    """0.4 - 0.3 is more than 0.1 in floating point, and is ten points all the same."""
    assert epochs([best, best - 0.1]) == []
    assert epochs([best, best - 0.1001]) == [2]


def test_the_best_is_of_all_epochs_and_of_this_run_alone() -> None:
    assert epochs([0.3, 0.95, 0.9, 0.86, 0.84, 0.6, 0.96]) == [5, 6]
    assert epochs([0.95, 0.86, 0.77, 0.86]) == [3]
    assert epochs([0.1, 0.1, 0.1]) == []


def test_the_first_twenty_updates_set_no_best_and_are_no_collapse() -> None:
    """A small table makes one update an epoch, and its first accuracies say little."""
    accuracy = [0.9, 0.4, *[0.6] * 17, 0.86, 0.75, 0.8, 0.69]
    slow = [line | {"update": line["epoch"]} for line in lines(accuracy)]
    assert [each["epoch"] for each in collapses(slow)] == [23]
    fast = [line | {"update": 21 * line["epoch"]} for line in lines([0.9, 0.4])]
    assert [each["epoch"] for each in collapses(fast)] == [2]


@pytest.mark.parametrize(("rows", "fallen"), [(100, 0.55), (128, 0.58), (20_000, 0.6999)])
def test_accuracies_of_few_rows_must_also_differ_by_four_standard_errors(rows: int, fallen: float) -> None:
    """√((.8·.2 + .55·.45) / 100) = .0638, four of which are .255; of 20,000 rows .016, which decides nothing."""
    four = 4 * ((0.16 + fallen * (1 - fallen)) / rows) ** 0.5
    assert [each["epoch"] for each in collapses(lines([0.8, fallen]), rows)] == ([2] if 0.8 - fallen > four else [])
    assert (0.8 - fallen > four) == (rows == 20_000)
    assert [each["epoch"] for each in collapses(lines([0.8, fallen - 0.02]), rows)] == [2]
    assert [each["epoch"] for each in collapses(lines([0.8, fallen]))] == [2]  # how many there were is not known


def test_a_value_loss_of_more_than_five_times_its_median() -> None:
    steady = [1.0, 3.0] * 10  # median 2, mean 2; sorted, the tenth and the eleventh are 1 and 3
    assert epochs([], [*steady, 10.0]) == []
    assert epochs([], [*steady, 10.01]) == [21]


def test_the_median_is_no_mean() -> None:
    assert epochs([], [*[1.0] * 15, *[4.0] * 5, 5.5]) == [21]  # mean 1.75


def test_the_median_is_of_the_twenty_epochs_before() -> None:
    """Until there are so many nothing is judged; those before them are forgotten, and the epoch itself is not one."""
    assert epochs([], [*[1.0] * 19, 6.0]) == []
    assert epochs([], [*[1.0] * 20, 6.0]) == [21]
    forgotten = [*[100.0] * 11, *[1.0] * 9]  # median 100 now, 1 after one more
    assert epochs([], [*forgotten, 1.0, 6.0]) == []  # ten of each: 50.5
    assert epochs([], [*forgotten, 1.0, 1.0, 6.0]) == [23]
    assert epochs([], [*[1.0] * 10, *[2.0] * 10, 7.6]) == [21]  # of the twenty alone 1.5; with its own 2


def test_a_jump_that_lasts_is_reported_until_it_is_the_rule() -> None:
    found = epochs([], [*[1.0] * 20, *[9.0] * 15])
    assert found == [*range(21, 31)]  # at epoch 31 half of the window are jumps: median 5


def test_both_at_once_stand_in_one_entry_with_what_they_are_held_against() -> None:
    found = collapses(lines([*[0.8] * 20, 0.3], [*[2.0] * 20, 11.0]))
    assert found == [{"epoch": 21, "accuracy": 0.3, "best_accuracy": 0.8, "value_loss": 11.0, "median_value_loss": 2.0}]
    assert words(found[0]) == (
        "training accuracy 30.0 %, 50.0 points below its best; value loss 11, median of 20 epochs 2"
    )


def test_archived_curves_keep_some_epochs_only() -> None:
    """The window is of twenty epochs, not of twenty lines."""
    thinned = [{"epoch": epoch, "train": {"value_loss": loss}} for epoch, loss in ((1, 90), (20, 80), (39, 1), (41, 9))]
    assert collapses(thinned) == [{"epoch": 41, "value_loss": 9, "median_value_loss": 1}]
    assert collapses([thinned[0], thinned[-1]]) == []  # nothing was kept of the twenty epochs before


def test_what_was_not_measured_is_not_judged() -> None:
    train = ({}, None, 3, {"accuracy": None, "value_loss": "x"})
    odd: list[Any] = [{}, *({"train": each, "update": "many"} for each in train)]
    assert collapses({"epoch": epoch, **line} for epoch, line in enumerate(odd, start=30)) == []
    assert epochs([0.9, 0.5]) == [2]  # no method without a value is spared


def test_a_resumed_watch_goes_on_where_it_stopped() -> None:
    whole = lines([*[0.9] * 22, 0.5, 0.5, 0.9, 0.7], [*[1.0] * 22, 8.0, 1.0, 1.0, 1.0])
    for stop in range(len(whole)):
        watch = CollapseWatch()
        for line in whole[:stop]:
            watch.see(line)
        rest = [(line["epoch"], bool(watch.see(line)), watch.begins) for line in whole[stop:]]
        expected = [(23, True, True), (24, True, False), (25, False, False), (26, True, True)]
        assert rest[-4:] == expected[-len(rest) :][-4:]


def test_the_summary_has_the_worst_of_either_kind() -> None:
    found = collapses(lines([*[0.9] * 20, 0.7, 0.4, 0.9], [*[2.0] * 20, 21.0, 12.0, 2.0]))
    assert summary(found) == (
        "2 epochs from 21 to 22: worst training accuracy 40.0 %, 50.0 points below its best; "
        "value loss 21, median of 20 epochs 2"
    )
    assert summary(found[:1]) == (
        "epoch 21: training accuracy 70.0 %, 20.0 points below its best; value loss 21, median of 20 epochs 2"
    )
