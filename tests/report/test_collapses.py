from ricnet.report.collapses import alarm_words, alarms


def test_an_epoch_of_the_best_validation_nll_gives_no_alarm() -> None:
    found = [{"epoch": epoch, "accuracy": 0.2, "best_accuracy": 0.9} for epoch in (1, 2, 3, 4, 5)]
    lines = [{"epoch": epoch, "val": {"nll": nll}} for epoch, nll in ((1, 1.0), (2, 0.5), (3, 0.6), (4, 0.5))]
    assert [each["epoch"] for each in alarms(found, [*lines, {"epoch": 5, "val": {"nll": None}}])] == [3, 5]
    assert [each["epoch"] for each in alarms(found, [{"epoch": 5}])] == [1, 2, 3, 4, 5]


def test_falls_and_jumps_are_told_apart_each_with_its_largest() -> None:
    fall = [{"epoch": e, "accuracy": a, "best_accuracy": 0.9} for e, a in ((21, 0.7), (22, 0.4), (23, 0.6))]
    jump = [{"epoch": e, "value_loss": loss, "median_value_loss": 0.0308} for e, loss in ((26, 0.228), (40, 0.411))]
    falls = (
        "training collapsed in 3 epochs between 21 and 23, the largest in epoch 22: "
        "training accuracy 40.0 %, 50.0 points below its best"
    )
    jumps = (
        "the value loss jumped in 2 epochs between 26 and 40, the largest in epoch 40: "
        "to 0.411, from a median of 0.0308 in the 20 epochs before"
    )
    assert alarm_words(fall) == falls
    assert alarm_words(jump) == jumps
    assert alarm_words([*fall, *jump]) == f"{falls}; {jumps}"
    assert alarm_words([jump[0] | fall[0]]) == (
        "training collapsed in epoch 21: training accuracy 70.0 %, 20.0 points below its best; "
        "the value loss jumped in epoch 21: to 0.228, from a median of 0.0308 in the 20 epochs before"
    )
    assert alarm_words([]) == ""
