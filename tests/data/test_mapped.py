from pathlib import Path

import numpy as np
import pytest

from ricnet.data.memory import map_array
from ricnet.errors import RicnetError

ARRAYS = {
    "x": np.arange(24, dtype=np.float32).reshape(4, 6),
    "fortran": np.asfortranarray(np.arange(24).reshape(4, 6)),
    "a_longer_name": np.arange(7, dtype=np.uint8),
}


def test_arrays_are_found_where_they_lie(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", **ARRAYS)
    for name, array in ARRAYS.items():
        mapped = map_array(tmp_path / "some.npz", name)
        assert isinstance(mapped, np.memmap)
        assert mapped.dtype == array.dtype
        assert np.array_equal(mapped, array)


def test_what_cannot_be_mapped_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "small.npz", **ARRAYS)
    with pytest.raises(RicnetError, match="x does not fit into memory"):
        map_array(tmp_path / "small.npz", "x")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Python objects"):
        map_array(tmp_path / "objects.npz", "x")
