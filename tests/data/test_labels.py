from pathlib import Path

import pytest
import torch

from ricnet.data import load, whole_path
from ricnet.data.tables import short_name, shown_name, with_target
from ricnet.errors import RicnetError


def write(path: Path, labels: list[str]) -> Path:
    """The number is the row's own; the text says whether it is even."""
    rows = [f"{row},{'even' if row % 2 == 0 else 'odd'},{label}" for row, label in enumerate(labels)]
    path.write_text("\n".join(["number,parity,kind", *rows]))
    return path


def test_a_table_becomes_three_splits(tmp_path: Path) -> None:
    data = load(write(tmp_path / "my.csv", ["b", "a"] * 20), target="kind")
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 10)
    assert data.class_names == ("a", "b")
    assert data.name == f"{tmp_path}/my.csv#kind"
    assert data.columns is not None
    assert data.columns.target == "kind"
    for split in (data.train, data.val, data.test):
        numbers = (split.inputs[:, 0] * data.columns.inputs[0].std + data.columns.inputs[0].mean).round()  # type: ignore[union-attr]
        assert torch.equal((numbers % 2 == 0).long(), split.labels)  # row 0 is of class b
        assert torch.equal(split.inputs[:, 1].long(), split.labels)  # 1 for even


def test_nothing_is_learned_from_rows_that_are_held_out(tmp_path: Path) -> None:
    data = load(write(tmp_path / "my.csv", ["b", "a"] * 20), target="kind")
    inputs = data.train.inputs[:, 0]
    assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert abs(data.test.inputs[:, 0].mean().item()) > 1e-3


def test_columns_of_a_model_are_kept_on_another_table(tmp_path: Path) -> None:
    columns = load(write(tmp_path / "my.csv", ["b", "a"] * 20), target="kind").columns
    other = load(write(tmp_path / "other.csv", ["b", "a"] * 8), columns=columns)
    assert other.columns == columns
    assert other.test.inputs[:, 0].max() < 0  # 15 at most, where the mean was about 20


def test_rows_without_a_class_are_left_out(tmp_path: Path) -> None:
    data = load(write(tmp_path / "my.csv", ["b", "a", "", "a"] * 10), target="kind")
    assert sum(map(len, (data.train, data.val, data.test))) == 30
    assert data.notes[0] == "10 rows have no 'kind'; left out."


def test_a_class_that_says_that_there_is_none_is_left_out_too(tmp_path: Path) -> None:
    data = load(write(tmp_path / "my.csv", ["b", "a", "NA", "?", "", "null"] * 10), target="kind")
    assert data.class_names == ("a", "b")
    [note] = data.notes
    assert note == "40 rows have no 'kind' (read as gaps: '?', 'NA', 'null'; rename what is a class); left out."


def test_none_is_a_class_among_words_and_a_gap_among_numbers(tmp_path: Path) -> None:
    words = load(write(tmp_path / "my.csv", ["scratch", "none", "dent"] * 10), target="kind")
    assert (words.class_names, words.notes) == (("dent", "none", "scratch"), ())
    numbers = load(write(tmp_path / "my.csv", ["0", "None", "1"] * 10), target="kind")
    assert numbers.class_names == ("0", "1")
    assert numbers.notes[0].startswith("10 rows have no 'kind' (read as gaps: 'None';")


@pytest.mark.parametrize(
    ("known", "labels", "found"),
    [
        (("major", "minor", "none"), ["none"] * 4, ("none",)),
        (("1", "2", "3+", "none"), ["none", "1", "2", "1"], ("1", "2", "none")),
        (("NA", "EU"), ["NA", "EU", ""], ("EU", "NA")),  # of a model that has learned it as a class
        (("0", "1"), ["0", "None", "one"], ("0", "one")),
        (("dent", "scratch"), ["none", "dent"], ("dent", "none")),
    ],
)
def test_what_is_a_class_to_a_model_is_one_whatever_else_the_table_holds(
    tmp_path: Path, known: tuple[str, ...], labels: list[str], found: tuple[str, ...]
) -> None:
    columns = load(write(tmp_path / "my.csv", ["b", "a"] * 20), target="kind").columns
    other = write(tmp_path / "other.csv", labels)
    assert load(other, columns=columns, class_names=known, undivided=True).class_names == found


def test_a_row_in_the_place_of_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("14.25,fine,malignant\n" + "15.73,coarse,benign\n9.1,fine,malignant\n" * 10)
    with pytest.raises(RicnetError, match=r"my\.csv: its first line looks like a row.* '14\.25'.* 'malignant'"):
        load(tmp_path / "my.csv", target="malignant")
    (tmp_path / "my.csv").write_text("400,410,ripe\n" + "0.1,0.2,ripe\n0.3,0.1,unripe\n" * 10)  # wavelengths
    with pytest.raises(RicnetError, match="if these are names, call the column of classes something else"):
        load(tmp_path / "my.csv", target="ripe")


@pytest.mark.parametrize(
    ("names", "said"),
    [("2020,more", ["'2020'"]), ("0.45,0.5", ["'0.45', '0.5'"]), ("0,1", []), ("1,2", []), ("a,b", [])],
)
def test_numbers_for_names_are_noted_unless_they_count(tmp_path: Path, names: str, said: list[str]) -> None:
    rows = [f"{row},{row % 5},{'yn'[row % 2]}" for row in range(40)]
    (tmp_path / "my.csv").write_text("\n".join([f"{names},kind", *rows]))
    assert list(load(tmp_path / "my.csv", target="kind").notes) == [
        f"There are columns called {found}; if that is a row of data, put a line of names above it." for found in said
    ]


def test_classes_that_are_numbers_come_in_their_order(tmp_path: Path) -> None:
    assert load(write(tmp_path / "my.csv", ["10", "9", "-1"] * 10), target="kind").class_names == ("-1", "9", "10")
    assert load(write(tmp_path / "my.csv", ["10", "9", "+-1"] * 10), target="kind").class_names == ("+-1", "10", "9")


def test_the_target_is_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_target("my.csv", "label") == with_target("my.csv#other", "label") == "my.csv#label"
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "my.csv", ["b", "a"] * 20)
    assert whole_path("my.csv#kind") == f"{tmp_path}/my.csv#kind"
    assert load("my.csv#kind").name == "my.csv#kind"
    assert len(load("my.csv#number", target="kind").class_names) == 2


@pytest.mark.parametrize(
    ("labels", "target", "message"),
    [
        (["a", "b"] * 5, None, "which column is the class.*'number', 'parity', 'kind'"),
        (["a", "b"] * 5, "Kind", r"no column 'Kind' \(did you mean 'kind'\?\)"),
        (["a"] * 10, "kind", "#kind has one class only, 'a'"),
        ([""] * 10, "kind", "no row has a class in 'kind'; fill"),
        (["NA", ""] * 5, "kind", r"no row has a class in 'kind' \(read as gaps: 'NA'; rename what is a class\)"),
        (["a", "b"] * 5, "number", "every class needs at least 3 examples"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, labels: list[str], target: str | None, message: str) -> None:
    with pytest.raises(RicnetError, match=message) as caught:
        load(write(tmp_path / "my.csv", labels), target=target)
    assert "my.csv" in str(caught.value)


def test_a_measurement_is_no_class(tmp_path: Path) -> None:
    measured = [f"{row / 7:.3f}" for row in range(51)]
    with pytest.raises(RicnetError, match=r"'kind' looks like a measurement \(51 different numbers\), not a class"):
        load(write(tmp_path / "my.csv", measured), target="kind")
    with pytest.raises(RicnetError, match="every class needs at least"):
        load(write(tmp_path / "my.csv", [f"name {cell}" for cell in measured]), target="kind")
    assert len(load(write(tmp_path / "my.csv", measured * 3), target="kind").class_names) == 51


def test_a_target_is_for_tables() -> None:
    with pytest.raises(RicnetError, match="--target label is for tables"):
        load("digits", target="label")


@pytest.mark.parametrize("name", ["my.xlsx", "my.dat"])
def test_a_table_of_another_kind_is_to_be_saved_as_csv(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RicnetError, match=f"{name} cannot be read; save the table as CSV"):
        load(tmp_path / name, target="label")


def test_folders_and_titles_say_the_target_whatever_is_in_it() -> None:
    assert short_name("/data/my.csv#kind/type") == "my-kind-type"
    assert shown_name("/data/my.csv#kind/type") == "my.csv#kind/type"
    assert (short_name("/data/photos.v2"), shown_name("/data/photos.v2")) == ("photos.v2", "photos.v2")


def test_classes_of_many_digits(tmp_path: Path) -> None:
    many = "9" * 5000  # more than Python counts to
    (tmp_path / "my.csv").write_text("size,kind\n" + f"1,{many}\n2,1\n" * 8)
    assert set(load(tmp_path / "my.csv", target="kind").class_names) == {many, "1"}
