from ricnet.errors import nearest, what_else


def test_the_name_that_was_meant_is_found_whatever_its_capitals() -> None:
    assert nearest("CIFAR10", ["digits", "cifar10"]) == "cifar10"
    assert nearest("label", ["Label", "id"]) == "Label"
    assert nearest("gan", ["ric", "supervised"]) is None


def test_few_names_are_all_shown_and_of_many_the_nearest() -> None:
    few, many = ["fast", "paper"], ["epochs", *"abcdefgh"]
    assert what_else("fats", few) == "did you mean fast? There are: fast, paper."
    assert what_else("slow", few) == "choose one of: fast, paper."
    assert what_else("epoch", many) == "did you mean epochs?"
