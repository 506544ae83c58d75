import pytest

from filmstrip import belief
from ricnet.errors import counted, listing
from ricnet.io import short
from ricnet.report.tables import markdown_safe, number, percent


def test_names_are_one_printable_line() -> None:
    assert short("a\nb\x1b[31m") == "a�b�[31m"
    assert short("x" * 20, 5) == "xxxx…"


@pytest.mark.parametrize(("value", "text"), [(61, "61.0"), (1234.56, "1,234.6"), (None, "–"), (float("nan"), "–")])
def test_numbers(value: float | None, text: str) -> None:
    assert number(value, 1) == text


def test_shares() -> None:
    assert (percent(0.98444), percent(1), percent(None)) == ("98.44 %", "100.00 %", "–")


def test_one_epoch_is_no_epochs() -> None:
    assert (counted(1, "epoch"), counted(20, "epoch")) == ("1 epoch", "20 epochs")


def test_listing() -> None:
    assert [listing(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def test_markdown_has_no_say_in_names() -> None:
    assert markdown_safe(r"a|b *c* _d_ `e` [f] <i> \\") == r"a\|b \*c\* \_d\_ \`e\` \[f\] &lt;i> \\\\"


def test_nothing_short_of_certainty_is_called_certain() -> None:
    assert [belief(share) for share in (0.994, 0.996, 0.99999, 1.0)] == ["99 %", "> 99 %", "> 99 %", "100 %"]
