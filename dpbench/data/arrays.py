"""Prepared samples on disk: inputs.npy and targets.npy in a folder."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbench.errors import DataError

INPUTS = "inputs.npy"
TARGETS = "targets.npy"
DTYPES = (np.dtype(np.float32), np.dtype(np.int64))
"""dtypes of the stored arrays: numbers, and tokens or classes."""
Arrays = NDArray[np.float32] | NDArray[np.int64]


def write_arrays(folder: Path, inputs: Arrays, targets: Arrays) -> None:
    """Write both arrays; raises DataError if `folder` cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / INPUTS, inputs, allow_pickle=False)
        np.save(folder / TARGETS, targets, allow_pickle=False)
    except OSError as error:
        raise DataError(
            f"cannot write the prepared dataset into {folder}: {error.strerror}; "
            f"expected a folder that can be written, with {inputs.nbytes + targets.nbytes} B free"
        ) from error


def read_arrays(folder: Path) -> tuple[Arrays, Arrays]:
    """The inputs and targets, each (n, …) of float32 or int64; raises DataError if damaged.

    The arrays are memory-mapped: the ranks of a host share one copy, and a write changes only the
    writer's.
    """
    inputs, targets = _read_one(folder / INPUTS), _read_one(folder / TARGETS)
    if len(inputs) != len(targets):
        raise DataError(
            f"prepared dataset {folder}: got {len(inputs)} inputs and {len(targets)} targets; "
            "expected as many of both; prepare it again"
        )
    return inputs, targets


def _read_one(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"cannot read prepared samples {path}: {error}; prepare the dataset again"
        ) from error
    if array.dtype not in DTYPES:
        raise DataError(
            f"prepared samples {path}: got {array.dtype}, expected float32 or int64; "
            "prepare the dataset again"
        )
    # Touches every page now; otherwise the page faults would fall into the timed window.
    array.reshape(-1)[:: mmap.PAGESIZE // array.itemsize].sum()
    return array
