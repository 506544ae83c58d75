import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ricnet.data import Augmentation, load, read_npz_inputs
from ricnet.errors import RicnetError

Y = np.arange(40) % 4
TABLE = np.arange(120.0).reshape(40, 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "my.npz", **arrays)
    return folder / "my.npz"


def everything(path: Path) -> torch.Tensor:
    data = load(path)
    return torch.cat([data.train.inputs, data.val.inputs, data.test.inputs])


def test_a_table_becomes_features(tmp_path: Path) -> None:
    data = load(save(tmp_path, x=TABLE, y=Y))
    assert (len(data.train), len(data.val), len(data.test)) == (26, 4, 10)
    assert data.train.inputs.dtype == torch.float32
    assert (data.input_shape, data.is_image) == ((3,), False)
    assert data.augmentation == Augmentation()
    for split in (data.train, data.val, data.test):
        assert torch.equal(split.inputs[:, 0] / 3 % 4, split.labels.float())  # rows keep their labels


def test_given_parts_are_kept(tmp_path: Path) -> None:
    parts = {f"{name}_{part}": array for part in ("train", "test", "val") for name, array in (("x", TABLE), ("y", Y))}
    data = load(save(tmp_path, **parts))
    assert (len(data.train), len(data.val), len(data.test)) == (40, 40, 40)
    del parts["x_val"], parts["y_val"]
    data = load(save(tmp_path, **parts))
    assert (len(data.train), len(data.val), len(data.test)) == (36, 4, 40)


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (Y, ("0", "1", "2", "3")),
        (Y * 10 - 5, ("-5", "5", "15", "25")),
        (Y.astype(float), ("0", "1", "2", "3")),
        (Y.astype(np.uint8), ("0", "1", "2", "3")),
        (Y > 1, ("False", "True")),
        (np.array(["d", "c", "b", "a"])[Y], ("a", "b", "c", "d")),
        (np.array([b"x", b"y"])[Y % 2], ("x", "y")),
    ],
)
def test_labels_of_every_kind(tmp_path: Path, y: np.ndarray, names: tuple[str, ...]) -> None:
    data = load(save(tmp_path, x=TABLE, y=y))
    assert data.class_names == names
    assert set(data.train.labels.tolist()) == set(range(len(names)))


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (PIXELS, (3, 6, 5)),
        (PIXELS.transpose(0, 3, 1, 2), (3, 6, 5)),
        (PIXELS[..., :1], (1, 6, 5)),
        (PIXELS[..., 0], (1, 6, 5)),
        (PIXELS / 255, (3, 6, 5)),
        (PIXELS.astype(np.float32), (3, 6, 5)),
        (PIXELS.astype(np.int64), (3, 6, 5)),
    ],
)
def test_images_of_every_kind(tmp_path: Path, x: np.ndarray, shape: tuple[int, ...]) -> None:
    read = everything(save(tmp_path, x=x, y=Y))
    assert read.dtype == torch.uint8
    assert tuple(read.shape[1:]) == shape
    expected = np.sort(PIXELS[..., : shape[0]].reshape(40, -1).astype(int).sum(1))
    assert np.array_equal(np.sort(read.flatten(1).int().numpy().sum(1)), expected)


def test_what_else_is_in_the_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"x_names": np.array([{}], dtype=object), "large": np.zeros(10**5)}
    path = save(tmp_path, x=TABLE, y=Y, **extra)
    monkeypatch.setattr("ricnet.data.memory.free_bytes", lambda _: 10**5)
    data = load(path)
    assert not data.notes  # with `large` it would not fit into memory
    assert len(data.train) == 26
    assert len(read_npz_inputs(path, (3,), "features")) == 40


def test_all_parts_share_one_scale(tmp_path: Path) -> None:
    bright, dark = PIXELS.astype(float), np.zeros_like(PIXELS, dtype=float)
    dark[:] = 1.0
    data = load(save(tmp_path, x_train=bright, y_train=Y, x_test=dark, y_test=Y))
    assert data.test.inputs.max() == 1


def bad(row: int, column: int, value: float) -> np.ndarray:
    table = TABLE.copy()
    table[row, column] = value
    return table


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": TABLE, "b": Y}, "the arrays a, b; needed are x and y"),
        ({}, "no arrays"),
        ({"x": TABLE, "label": Y}, "the arrays label, x"),
        ({"x_train": TABLE, "y_train": Y}, "missing: x_test, y_test"),
        ({"x": TABLE}, r"the arrays x; needed are x and y, or .* \(missing: y\)"),
        ({"y": Y}, r"\(missing: x\)"),
        ({"a": TABLE}, "missing: x_train, y_train, x_test, y_test"),
        ({"x_train": TABLE, "y_train": Y, "x_test": TABLE, "y_test": Y, "x_val": TABLE}, "x_val but not its other"),
        ({"x": TABLE, "y": Y[:-1]}, "x has 40 rows but y has 39"),
        ({"x": bad(7, 2, np.nan), "y": Y}, "x has nan in row 7, column 2"),
        ({"x": bad(3, 1, -np.inf), "y": Y}, "x has -inf in row 3, column 1"),
        ({"x": bad(3, 1, 1e300), "y": Y}, "single precision, has inf in row 3, column 1"),
        ({"x": TABLE, "y": np.zeros(40, int)}, "one class only, '0'"),
        ({"x": TABLE, "y": np.eye(4)[Y]}, r"y is of shape \(40, 4\).*argmax"),
        ({"x": TABLE, "y": Y + 0.5}, "y has 0.5 in row 0"),
        ({"x": TABLE, "y": np.where(Y == 2, np.nan, Y)}, "y has nan in row 2"),
        ({"x": TABLE, "y": Y.astype(complex)}, "complex128"),
        ({"x": TABLE.astype(str), "y": Y}, "must hold numbers"),
        ({"x": TABLE[:0], "y": Y[:0]}, r"x is of shape \(0, 3\)"),
        ({"x": TABLE[:, 0], "y": Y}, r"x is of shape \(40,\)"),
        ({"x": TABLE, "y": Y[:0]}, r"y is of shape \(0,\)"),
        ({"x": TABLE.astype(object), "y": Y}, "the array x: it holds Python objects.*dtype=object"),
        ({"x": TABLE, "y": np.array(["a", 1, None, 2] * 10, dtype=object)}, "the array y: it holds Python objects"),
        ({"x": PIXELS - 300.0, "y": Y}, r"not in 0\.\.1 or 0\.\.255"),
        ({"x": np.zeros((40, 6, 5, 4), np.uint8), "y": Y}, r"\(40, 6, 5, 4\); images must be"),
        ({"x_train": TABLE, "y_train": Y, "x_test": TABLE[:, :2], "y_test": Y}, "rows differ in shape"),
        ({"x_train": TABLE, "y_train": Y, "x_test": PIXELS, "y_test": Y}, "x_train is of shape|x_train .*images"),
        ({"x_train": TABLE, "y_train": Y, "x_test": TABLE, "y_test": Y + 3}, "y_test has classes .* lacks: 4, 5, 6"),
        ({"x_train": TABLE, "y_train": Y, "x_test": TABLE, "y_test": Y.astype(str)}, "some labels are texts"),
        ({"x": TABLE, "y": np.array([b"\xff", b"a"])[Y % 2]}, "no text in UTF-8"),
        ({"x": TABLE, "y": np.array([0x7FFFFFFF, 97], "<u4").view("<U1")[Y % 2]}, "a label that is no text"),
        ({"x": TABLE, "y": np.array(["\ud800", "a"])[Y % 2]}, r"the class '\\ud800' is no text"),
        ({"x": TABLE, "y": Y * 1e300}, "y has 1e\\+300 in row 1"),
        ({"x": TABLE, "y": np.array([9, 9, *Y[2:] % 2])}, r"at least 3 examples .* '9' \(2\)"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(RicnetError, match=message) as caught:
        load(save(tmp_path, **arrays))
    assert "my.npz" in str(caught.value)


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    whole = save(tmp_path, x=TABLE, y=Y).read_bytes()
    corrupt = whole[:200] + bytes(64) + whole[264:]
    np.save(tmp_path / "plain.npy", TABLE)
    plain = (tmp_path / "plain.npy").read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], corrupt, plain, pickle.dumps(TABLE)):
        (tmp_path / "my.npz").write_bytes(content)
        with pytest.raises(RicnetError, match=r"my\.npz"):
            load(tmp_path / "my.npz")
    with pytest.raises(RicnetError, match=r"absent\.npz does not exist"):
        load(tmp_path / "absent.npz")


@pytest.mark.parametrize("arrays", [{"x": TABLE}, {"x_test": TABLE, "x_train": Y}, {"anything": TABLE}])
def test_inputs_to_predict(tmp_path: Path, arrays: dict[str, Any]) -> None:
    read = read_npz_inputs(save(tmp_path, **arrays), (3,), "features")
    assert np.array_equal(read.numpy(), TABLE)


def test_images_to_predict(tmp_path: Path) -> None:
    read = read_npz_inputs(save(tmp_path, x=PIXELS), (3, 6, 5), "image")
    assert np.array_equal(read.numpy(), PIXELS.transpose(0, 3, 1, 2))


def test_inputs_that_do_not_suit_the_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match=r"x are of shape \(3,\), but .* features of shape \(4,\)"):
        read_npz_inputs(save(tmp_path, x=TABLE), (4,), "features")
    with pytest.raises(RicnetError, match=r"but .* trained on images of shape \(1, 6, 5\)"):
        read_npz_inputs(save(tmp_path, x=PIXELS), (1, 6, 5), "image")
    with pytest.raises(RicnetError, match="the arrays a, b; name the array to predict `x`"):
        read_npz_inputs(save(tmp_path, a=TABLE, b=TABLE), (3,), "features")


def test_arrays_that_would_not_fit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "my.npz", x=np.zeros((40, 2500)), y=Y)
    assert (tmp_path / "my.npz").stat().st_size < 3000
    monkeypatch.setattr("ricnet.data.arrays.free_bytes", lambda _: 1_000_000)
    with pytest.raises(RicnetError, match=r"my\.npz cannot be read \(its arrays would take more than 0\.0 GB"):
        load(tmp_path / "my.npz")
