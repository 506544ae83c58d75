import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusals import cases, refusal
from ricnet.data import Augmentation, load, read_npz_inputs
from ricnet.data.columns import encode_array, fit_array

Y = np.arange(40) % 4
TABLE = np.arange(120.0).reshape(40, 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "my.npz", **arrays)
    return folder / "my.npz"


def four(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """A training part that is fine, and this as the test part."""
    return {"x_train": TABLE, "y_train": Y, "x_test": x, "y_test": y}


def test_a_table_becomes_features_whose_rows_keep_their_labels(tmp_path: Path) -> None:
    data = load(save(tmp_path, x=TABLE, y=Y))
    assert (len(data.train), len(data.val), len(data.test)) == (26, 4, 10)
    assert (data.train.inputs.dtype, data.input_shape, data.is_image) == (torch.float32, (3,), False)
    assert data.augmentation == Augmentation()
    for split in (data.train, data.val, data.test):
        assert torch.equal(split.inputs[:, 0] / 3 % 4, split.labels.float())


def test_given_parts_are_kept_and_share_one_scale(tmp_path: Path) -> None:
    data = load(save(tmp_path, **four(TABLE, Y), x_val=TABLE, y_val=Y))
    assert (len(data.train), len(data.val), len(data.test)) == (40, 40, 40)
    dark = four(np.ones(PIXELS.shape), Y) | {"x_train": PIXELS.astype(float)}
    data = load(save(tmp_path, **dark))
    assert (len(data.train), len(data.val), len(data.test)) == (36, 4, 40)
    assert data.test.inputs.max() == 1


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (Y, "0 1 2 3"),
        (Y * 10 - 5, "-5 5 15 25"),
        (Y.astype(float), "0 1 2 3"),
        (Y.astype(np.uint8), "0 1 2 3"),
        (Y > 1, "False True"),
        (np.array(["d", "c", "b", "a"])[Y], "a b c d"),
        (np.array([b"x", b"y"])[Y % 2], "x y"),
    ],
)
def test_labels_of_every_kind(tmp_path: Path, y: np.ndarray, names: str) -> None:
    data = load(save(tmp_path, x=TABLE, y=y))
    assert " ".join(data.class_names) == names
    assert set(data.train.labels.tolist()) == set(range(len(data.class_names)))


@pytest.mark.parametrize(
    ("x", "channels"),
    [
        (PIXELS, 3),
        (PIXELS.transpose(0, 3, 1, 2), 3),
        (PIXELS[..., :1], 1),
        (PIXELS[..., 0], 1),
        (PIXELS / 255, 3),
        (PIXELS.astype(np.float32), 3),
        (PIXELS.astype(np.int64), 3),
    ],
)
def test_images_of_every_kind(tmp_path: Path, x: np.ndarray, channels: int) -> None:
    data = load(save(tmp_path, x=x, y=Y))
    read = torch.cat([data.train.inputs, data.val.inputs, data.test.inputs])
    assert (read.dtype, tuple(read.shape[1:])) == (torch.uint8, (channels, 6, 5))
    expected = np.sort(PIXELS[..., :channels].reshape(40, -1).astype(int).sum(1))
    assert np.array_equal(np.sort(read.flatten(1).int().numpy().sum(1)), expected)
    again = read_npz_inputs(tmp_path / "my.npz", (channels, 6, 5), "image")
    assert np.array_equal(again.numpy(), PIXELS[..., :channels].transpose(0, 3, 1, 2))


def test_other_arrays_of_the_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, x=TABLE, y=Y, x_names=np.array([{}], dtype=object), large=np.zeros(10**5))
    monkeypatch.setattr("ricnet.machine.free_bytes", lambda _: 10**5)
    data = load(path)
    assert (data.notes, len(data.train)) == ((), 26)  # with `large` it would not fit into memory
    assert len(read_npz_inputs(path, (3,), "features")) == 40


def bad(row: int, column: int, value: float) -> np.ndarray:
    table = TABLE.copy()
    table[row, column] = value
    return table


GAPS = np.where(np.arange(120).reshape(40, 3) % 7 == 5, np.nan, TABLE)


def test_nan_in_a_table_is_a_missing_value_as_for_estimators(tmp_path: Path) -> None:
    """It was refused."""
    data = load(save(tmp_path, x=GAPS, y=Y))
    assert data.notes == ("17 of 40 rows have missing values (NaN).",)
    numbered = load(save(tmp_path, x=TABLE, y=Y))
    training = (numbered.train.inputs[:, 0] / 3).long().numpy()
    columns = fit_array(GAPS[training], "x")
    assert data.columns == columns
    np.testing.assert_array_equal(data.train.inputs, encode_array(columns, GAPS[training]).astype(np.float32))
    path = save(tmp_path, x=GAPS, y=Y)
    np.testing.assert_array_equal(
        read_npz_inputs(path, (columns.width,), "features", columns), encode_array(columns, GAPS).astype(np.float32)
    )
    again = load(path, columns=columns, class_names=data.class_names, undivided=True)
    np.testing.assert_array_equal(again.test.inputs, encode_array(columns, GAPS).astype(np.float32))
    with refusal("my.npz", "nan in row 1, column 2"):  # a model of other data knows no gaps
        read_npz_inputs(path, (3,), "features")
    with refusal("my.npz", "nan in row 1, column 2"):
        load(path, undivided=True)


def test_gaps_that_only_other_parts_have_are_the_mean(tmp_path: Path) -> None:
    data = load(save(tmp_path, **four(GAPS, Y)))
    assert data.columns is not None
    assert (data.columns.width, data.test.inputs[1, 2].item()) == (3, 0)
    assert data.train.inputs.mean(0).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"a": TABLE, "b": Y}, "a, b; missing: x_train, y_train, x_test, y_test"),
        ({}, "no arrays"),
        ({"x": TABLE, "label": Y}, "label, x; missing: y"),
        ({"y": Y}, "missing: x"),
        ({"x_train": TABLE, "y_train": Y}, "missing: x_test, y_test"),
        (four(TABLE, Y) | {"x_val": TABLE}, "x_val; y_val"),
        ({"x": TABLE, "y": Y[:-1]}, "40 rows; 39"),
        ({"x": np.where(PIXELS > 9, PIXELS, np.nan), "y": Y}, "nan in row"),
        ({"x": bad(3, 1, -np.inf), "y": Y}, "-inf in row 3, column 1"),
        ({"x": bad(3, 1, 1e300), "y": Y}, "single precision; inf in row 3, column 1"),
        ({"x": TABLE, "y": np.zeros(40, int)}, "one class only; '0'"),
        ({"x": TABLE, "y": np.eye(4)[Y]}, "y is of shape (40, 4); argmax"),
        ({"x": TABLE, "y": Y + 0.5}, "y has 0.5 in row 0"),
        ({"x": TABLE, "y": np.where(Y == 2, np.nan, Y)}, "y has nan in row 2"),
        ({"x": TABLE, "y": Y * 1e300}, "y has 1e+300 in row 1"),
        ({"x": TABLE, "y": Y.astype(complex)}, "y; complex128"),
        ({"x": TABLE.astype(str), "y": Y}, "x is of type"),
        ({"x": TABLE[:0], "y": Y[:0]}, "x is of shape (0, 3)"),
        ({"x": TABLE[:, 0], "y": Y}, "x is of shape (40,)"),
        ({"x": TABLE, "y": Y[:0]}, "y is of shape (0,)"),
        ({"x": TABLE.astype(object), "y": Y}, "the array x; dtype=object"),
        ({"x": TABLE, "y": np.array(["a", 1, None, 2] * 10, dtype=object)}, "the array y; dtype=object"),
        ({"x": PIXELS - 300.0, "y": Y}, "0..1 or 0..255"),
        ({"x": np.zeros((40, 6, 5, 4), np.uint8), "y": Y}, "(40, 6, 5, 4); channels"),
        (four(TABLE[:, :2], Y), "x_train (40, 3); x_test (40, 2)"),
        (four(PIXELS, Y), "x_train; (40, 3)"),
        (four(TABLE, Y + 3), "y_test; y_train; 4, 5, 6"),
        (four(TABLE, Y.astype(str)), "y_train, y_test"),
        ({"x": TABLE, "y": np.array([b"\xff", b"a"])[Y % 2]}, "y; UTF-8"),
        ({"x": TABLE, "y": np.array([0x7FFFFFFF, 97], "<u4").view("<U1")[Y % 2]}, "y; not text"),
        ({"x": TABLE, "y": np.array(["\ud800", "a"])[Y % 2]}, r"'\ud800'"),
        ({"x": TABLE, "y": np.array([9, 9, *Y[2:] % 2])}, "at least 3; '9' (2)"),
    ],
)
def test_errors_name_the_cause(tmp_path: Path, arrays: dict[str, Any], named: str) -> None:
    with refusal("my.npz", *named.split("; ")):
        load(save(tmp_path, **arrays))


def plain_array(_: bytes) -> bytes:
    with io.BytesIO() as file:
        np.save(file, TABLE)
        return file.getvalue()


@pytest.mark.parametrize(
    "change",
    cases(
        {
            "missing": None,
            "empty": lambda whole: b"",
            "a text": lambda whole: b"text",
            "cut off": lambda whole: whole[: len(whole) // 2],
            "overwritten": lambda whole: whole[:200] + bytes(64) + whole[264:],
            "a plain array": plain_array,
            "a pickle": lambda whole: pickle.dumps(TABLE),
        }
    ),
)
def test_damaged_and_foreign_files_are_named(tmp_path: Path, change: Callable[[bytes], bytes] | None) -> None:
    path = save(tmp_path, x=TABLE, y=Y)
    whole = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(whole))
    with refusal("my.npz"):
        load(path)


@pytest.mark.parametrize("arrays", [{"x": TABLE}, {"x_test": TABLE, "x_train": Y}, {"anything": TABLE}])
def test_inputs_to_predict(tmp_path: Path, arrays: dict[str, Any]) -> None:
    assert np.array_equal(read_npz_inputs(save(tmp_path, **arrays), (3,), "features").numpy(), TABLE)


@pytest.mark.parametrize(
    ("arrays", "shape", "kind", "named"),
    [
        ({"x": TABLE}, (4,), "features", ("x", "(3,)", "(4,)")),
        ({"x": PIXELS}, (1, 6, 5), "image", ("x", "(3, 6, 5)", "(1, 6, 5)")),
        ({"a": TABLE, "b": TABLE}, (3,), "features", ("a, b", "`x`")),
    ],
)
def test_inputs_that_do_not_suit_the_model_are_refused(
    tmp_path: Path, arrays: dict[str, Any], shape: tuple[int, ...], kind: Any, named: tuple[str, ...]
) -> None:
    with refusal("my.npz", *named):
        read_npz_inputs(save(tmp_path, **arrays), shape, kind)


def test_arrays_that_would_not_fit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "my.npz", x=np.zeros((40, 2500)), y=Y)
    assert (tmp_path / "my.npz").stat().st_size < 3000
    monkeypatch.setattr("ricnet.data.arrays.free_bytes", lambda _: 1_000_000)
    with refusal("my.npz", "0.0 GB"):
        load(tmp_path / "my.npz")
