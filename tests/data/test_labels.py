from pathlib import Path

import pytest
import torch

from refusals import refusal
from ricnet.data import Dataset, load, whole_path
from ricnet.io import short_name, shown_name, with_target

AB = ["b", "a"] * 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.csv"


def write(path: Path, labels: list[str]) -> Path:
    """The number is the row's own; the text says whether it is even."""
    rows = [f"{row},{'even' if row % 2 == 0 else 'odd'},{label}" for row, label in enumerate(labels)]
    path.write_text("\n".join(["number,parity,kind", *rows]))
    return path


def labelled(path: Path, labels: list[str]) -> Dataset:
    return load(write(path, labels), target="kind")


def test_a_table_becomes_three_splits_and_nothing_is_learned_from_rows_held_out(path: Path) -> None:
    data = labelled(path, AB)
    assert (len(data.train), len(data.val), len(data.test)) == (27, 3, 10)
    assert (data.class_names, data.name, data.columns.target) == (("a", "b"), f"{path}#kind", "kind")
    number = data.columns.inputs[0]
    for split in (data.train, data.val, data.test):
        numbers = (split.inputs[:, 0] * number.std + number.mean).round()
        assert torch.equal((numbers % 2 == 0).long(), split.labels)  # row 0 is of class b
        assert torch.equal(split.inputs[:, 1].long(), split.labels)  # 1 for even
    inputs = data.train.inputs[:, 0]
    assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert abs(data.test.inputs[:, 0].mean().item()) > 1e-3


def test_columns_of_a_model_are_kept_on_another_table(path: Path, tmp_path: Path) -> None:
    columns = labelled(path, AB).columns
    other = load(write(tmp_path / "other.csv", ["b", "a"] * 8), columns=columns)
    assert other.columns == columns
    assert other.test.inputs[:, 0].max() < 0  # 15 at most, where the mean was about 20


def test_a_test_table_is_the_test_split_and_nothing_is_learned_from_it(path: Path, tmp_path: Path) -> None:
    rows = [f"{number},rare,{label}" for number, label in enumerate(["a", "b", "b"] * 4, start=1000)]
    (tmp_path / "test.csv").write_text("\n".join(["number,parity,kind", *rows]))
    data = load(write(path, AB), target="kind", test=tmp_path / "test.csv")
    number, parity = data.columns.inputs
    assert (data.test.inputs[:, 0] * number.std + number.mean).round().tolist() == list(range(1000, 1012))
    assert data.test.labels.tolist() == [0, 1, 1] * 4
    assert (number.mean < 40, parity.values) == (True, ("even", "odd"))


@pytest.mark.parametrize(
    ("labels", "classes", "facts"),
    [
        (["b", "a", "", "a"] * 10, ("a", "b"), ("10 rows",)),
        (["b", "a", "NA", "?", "", "null"] * 10, ("a", "b"), ("40 rows", "'?', 'NA', 'null'")),
        (["0", "None", "1"] * 10, ("0", "1"), ("10 rows", "'None'")),
        (["scratch", "none", "dent"] * 10, ("dent", "none", "scratch"), None),  # among words it is a class
        (["10", "9", "-1"] * 10, ("-1", "9", "10"), None),
        (["10", "9", "+-1"] * 10, ("+-1", "10", "9"), None),
        (["9" * 5000, "1"] * 10, ("1", "9" * 5000), None),  # more than Python counts to
    ],
)
def test_rows_without_a_class_are_left_out_and_whole_numbers_come_in_their_order(
    path: Path, labels: list[str], classes: tuple[str, ...], facts: tuple[str, ...] | None
) -> None:
    data = labelled(path, labels)
    assert data.class_names == classes
    assert sum(map(len, (data.train, data.val, data.test))) == sum(label in classes for label in labels)
    assert all(fact in data.notes[0] for fact in facts) if facts else data.notes == ()


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
def test_classes_of_a_model_do_not_depend_on_other_rows(
    path: Path, tmp_path: Path, known: tuple[str, ...], labels: list[str], found: tuple[str, ...]
) -> None:
    columns, other = labelled(path, AB).columns, write(tmp_path / "other.csv", labels)
    assert load(other, columns=columns, class_names=known, undivided=True).class_names == found


@pytest.mark.parametrize("names", ["2020,more", "0.45,0.5", "0,1", "1,2", "a,b"])
def test_columns_may_be_called_by_numbers(path: Path, names: str) -> None:
    rows = [f"{row},{row % 5},{'yn'[row % 2]}" for row in range(40)]
    path.write_text("\n".join([f"{names},kind", *rows]))
    data = load(path, target="kind")
    assert [column.name for column in data.columns.inputs] == names.split(",")
    assert data.notes == ()


def test_the_target_is_part_of_the_name(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_target("my.csv", "label") == with_target("my.csv#other", "label") == "my.csv#label"
    assert short_name("/data/my.csv#kind/type") == "my-kind-type"
    assert shown_name("/data/my.csv#kind/type") == "my.csv#kind/type"
    assert (short_name("/data/photos.v2"), shown_name("/data/photos.v2")) == ("photos.v2", "photos.v2")
    monkeypatch.chdir(tmp_path)
    write(path, AB)
    assert whole_path("my.csv#kind") == f"{tmp_path}/my.csv#kind"
    assert load("my.csv#kind").name == "my.csv#kind"
    assert len(load("my.csv#number", target="kind").class_names) == 2


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        (["A", "a", "b"], ("'A' and 'a'",)),
        (["1", "1.0", "0", "01"], ("'01' and '1' and '1.0'",)),
        (["1", "10", "None"], ()),
        (["a", "b", "none"], ()),
        (["1" + "0" * 30, "1" * 31], ()),
    ],
)
def test_classes_that_differ_in_case_or_number_format_are_noted(
    path: Path, labels: list[str], facts: tuple[str, ...]
) -> None:
    notes = [note for note in labelled(path, labels * 10).notes if "differ only in case" in note]
    assert len(notes) == bool(facts)
    assert all(fact in notes[0] for fact in facts)


def test_notes_of_the_file_are_notes_of_the_data(path: Path) -> None:
    rows = [f"{row},{'größer' if row % 2 else 'klein'}" for row in range(40)]
    path.write_bytes("\n".join(["a,kind", *rows]).encode("cp1252"))
    data = load(path, target="kind")
    assert data.class_names == ("größer", "klein")
    assert "Windows-1252" in data.notes[0]


MEASURED = [f"{row / 7:.3f}" for row in range(51)]


@pytest.mark.parametrize(
    ("labels", "target", "named"),
    [
        (["a", "b"] * 5, None, ("target", "'number', 'parity', 'kind'")),
        (["a", "b"] * 5, "Kind", ("'Kind'", "mean 'kind'")),
        (["a"] * 10, "kind", ("#kind", "one class only", "'a'")),
        ([""] * 10, "kind", ("'kind'",)),
        (["NA", ""] * 5, "kind", ("'kind'", "'NA'")),
        (["a", "b"] * 5, "number", ("at least 3",)),
        (MEASURED, "kind", ("'kind'", "51 different numbers", "target")),
        ([f"name {cell}" for cell in MEASURED], "kind", ("at least 3",)),
    ],
)
def test_errors_name_the_cause(path: Path, labels: list[str], target: str | None, named: tuple[str, ...]) -> None:
    with refusal("my.csv", *named):
        load(write(path, labels), target=target)


@pytest.mark.parametrize(("delimiter", "quote"), [(";", ""), (",", '"')])
def test_a_measurement_with_decimal_commas_is_refused(path: Path, delimiter: str, quote: str) -> None:
    rows = [f"{row}{delimiter}{quote}{cell.replace('.', ',')}{quote}" for row, cell in enumerate(MEASURED)]
    path.write_text("\n".join([f"a{delimiter}kind", *rows]))
    with refusal("my.csv", "'kind'", "51 different numbers"):
        load(path, target="kind")


def test_numbers_that_repeat_are_no_measurement(path: Path) -> None:
    assert len(labelled(path, MEASURED * 3).class_names) == 51


@pytest.mark.parametrize(
    ("first", "rows", "target"),
    [
        ("14.25,fine,malignant", "15.73,coarse,benign\n9.1,fine,malignant\n", "malignant"),
        ("400,410,ripe", "0.1,0.2,ripe\n0.3,0.1,unripe\n", "ripe"),  # wavelengths
    ],
)
def test_a_row_in_the_place_of_names_is_refused(path: Path, first: str, rows: str, target: str) -> None:
    path.write_text(f"{first}\n{rows * 10}")
    with refusal("my.csv", repr(first.split(",")[0]), repr(target)):
        load(path, target=target)


def test_a_target_is_for_tables_that_can_be_read(tmp_path: Path) -> None:
    with refusal("target", "label"):
        load("digits", target="label")
    for name in ("my.xlsx", "my.dat"):
        (tmp_path / name).touch()
        with refusal(name, "CSV"):
            load(tmp_path / name, target="label")
