from hypothesis import given
from hypothesis import strategies as st

from ricnet.report.runs import nest, to_columns, to_rows
from ricnet.report.titles import flatten

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


@given(entries)
def test_nesting_undoes_flattening(entry: dict) -> None:
    assert nest(flatten(entry)) == entry


@given(st.lists(entries, min_size=1, max_size=4))
def test_rows_come_back_from_their_columns(rows: list[dict]) -> None:
    first = rows[0]
    alike = [first | {"epoch": place} for place, _ in enumerate(rows)]
    assert to_rows(to_columns(alike)) == alike


def test_what_a_row_does_not_have_is_not_made_up() -> None:
    rows = [{"epoch": 1, "val": {"nll": 2.0}}, {"epoch": 2}]
    assert to_columns(rows) == {"epoch": [1, 2], "val.nll": [2.0, None]}
    assert to_rows(to_columns(rows)) == rows
