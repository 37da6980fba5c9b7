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
    arrays: list[NDArray[Any]] = []
    for path in (folder / INPUTS, folder / TARGETS):
        try:
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"cannot read prepared samples {path}: {error}; prepare the dataset again"
            ) from error
        # Touches every page now; otherwise the page faults would fall into the timed window.
        arrays[-1].reshape(-1)[:: mmap.PAGESIZE // arrays[-1].itemsize].sum()
    inputs, targets = arrays
    return inputs, targets
