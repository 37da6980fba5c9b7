from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpbench.data.arrays import read_arrays, write_arrays
from dpbench.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_arrays(tmp_path, np.arange(6, dtype=np.float32).reshape(3, 2), np.array([7, 8, 9]))
    return tmp_path


@pytest.mark.parametrize("name", ["inputs.npy", "targets.npy"])
def test_a_missing_or_truncated_array_is_a_data_error(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for damaged in (content[:-4], content[:20], b""):
        (folder / name).write_bytes(damaged)
        with pytest.raises(DataError, match=f"cannot read prepared samples .*{name}"):
            read_arrays(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"cannot read prepared samples .*{name}"):
        read_arrays(folder)


def test_arrays_of_another_type_or_length_are_refused(folder: Path) -> None:
    np.save(folder / "targets.npy", np.zeros(2, np.int64))
    with pytest.raises(DataError, match="got 3 inputs and 2 targets"):
        read_arrays(folder)
    np.save(folder / "targets.npy", np.zeros(3, np.int32))
    with pytest.raises(DataError, match="got int32, expected float32 or int64"):
        read_arrays(folder)
