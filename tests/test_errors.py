import numpy as np
import pytest
import torch

from ricnet.errors import RicnetError, nearest, what_else, whole_number


def test_the_name_that_was_meant_is_found_whatever_its_capitals() -> None:
    assert nearest("CIFAR10", ["digits", "cifar10"]) == "cifar10"
    assert nearest("label", ["Label", "id"]) == "Label"
    assert nearest("gan", ["ric", "supervised"]) is None


def test_whole_numbers_are_told_from_what_python_takes_for_them() -> None:
    assert [whole_number(number, "steps") for number in (3, np.int64(3), torch.tensor(3))] == [3, 3, 3]
    for value, shown in ((2.5, "2.5"), (2.0, "2.0"), (True, "True"), ("3", "'3'"), (None, "None")):
        with pytest.raises(RicnetError, match=f"^steps is {shown}; it must be a whole number"):
            whole_number(value, "steps")


def test_few_names_are_all_shown_and_of_many_the_nearest() -> None:
    few, many = ["fast", "paper"], ["epochs", *"abcdefgh"]
    assert what_else("fats", few) == "did you mean fast? There are: fast, paper."
    assert what_else("slow", few) == "choose one of: fast, paper."
    assert what_else("epoch", many) == "did you mean epochs?"
