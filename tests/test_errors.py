import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from refusals import refusal
from ricnet.errors import (
    Interrupted,
    RicnetError,
    first_line,
    in_flags,
    in_python,
    nearest,
    require,
    require_extra,
    setting,
    spelled_in_python,
    what_else,
    whole_number,
)


def test_the_nearest_name_is_found_ignoring_case() -> None:
    assert nearest("CIFAR10", ["digits", "cifar10"]) == "cifar10"
    assert nearest("label", ["Label", "id"]) == "Label"
    assert nearest("gan", ["ric", "supervised"]) is None
    assert nearest("--out", ["--readout", "--csv"]) is None
    assert nearest("--noise", ["--lr", "--label-noise"]) == "--label-noise"


def test_whole_numbers_of_any_library_are_read() -> None:
    assert [whole_number(number, "steps") for number in (3, np.int64(3), torch.tensor(3))] == [3, 3, 3]


@pytest.mark.parametrize("value", [2.5, 2.0, True, "3", None], ids=repr)
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with refusal("steps", repr(value)):
        whole_number(value, "steps")


def test_few_names_are_all_shown_and_of_many_the_nearest() -> None:
    few, many = ["fast", "paper"], ["epochs", *"abcdefgh"]
    assert what_else("fats", few) == "did you mean fast? There are: fast, paper."
    assert what_else("slow", few) == "choose one of: fast, paper."
    assert what_else("epoch", many) == "did you mean epochs?"


@pytest.mark.parametrize(
    ("said", "flag", "parameter"),
    [
        (setting("batch_size", 8), "--batch-size 8", "batch_size=8"),
        (setting("select", "nll"), "--select nll", "select='nll'"),
        (setting("out", Path("runs/a")), "--out runs/a", "out='runs/a'"),
        (setting("overwrite", True), "--overwrite", "overwrite=True"),
        (setting("augment", False), "--no-augment", "augment=False"),
        (setting("seed"), "--seed", "random_state"),
    ],
)
def test_settings_are_spelled_as_flags_or_parameters(said: str, flag: str, parameter: str) -> None:
    sentence = f"see ric train --help, or lower {said}."
    assert in_flags(sentence) == f"see ric train --help, or lower {flag}."
    assert in_python(sentence, {"seed": "random_state"}) == f"see ric train --help, or lower {parameter}."


def test_an_error_carries_the_settings_it_speaks_of() -> None:
    with pytest.raises(RicnetError) as found, spelled_in_python():
        raise Interrupted(f"{setting('lr', 3.0)} is too much; raise {setting('clip')}.")
    assert isinstance(found.value, Interrupted)
    assert str(found.value) == "lr=3.0 is too much; raise clip."
    with pytest.raises(RicnetError) as found:
        require(False, "batch_size", 1, f"above {setting('accumulate')}")
    assert found.value.settings == ("batch_size", "accumulate")
    assert str(found.value) == "--batch-size 1 is out of range: it must be above --accumulate."
    with refusal("--calibration auto is not allowed: it must be none."):
        require(False, "calibration", "auto", "none")


def test_letters_that_mark_settings_do_no_harm_elsewhere() -> None:
    assert in_flags("a\x0eb\x0fc\x0ed") == "ab\x0fcd"


def test_a_missing_module_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("ric sing", "song", "json", "csv")
    monkeypatch.setitem(sys.modules, "csv", None)
    with refusal("ric sing", "csv, no_such_library", "pip install 'ricnet[song]'"):
        require_extra("ric sing", "song", "json", "csv", "no_such_library")


def test_only_the_first_line_of_an_error_is_shown() -> None:
    assert first_line(ValueError("\n  it broke.\nHere is why.")) == "it broke"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("x" * 999)) == "x" * 200
