"""Prepared samples on disk: inputs.npy and targets.npy in a folder."""

from __future__ import annotations

import mmap
from pathlib import Path

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
    """The inputs and targets, each (n, …) of float32 or int64.

    The arrays are memory-mapped: the ranks of a host share one copy, and a write changes only the
    writer's.
    """
    inputs, targets = (
        np.load(folder / name, mmap_mode="c", allow_pickle=False) for name in (INPUTS, TARGETS)
    )
    for array in (inputs, targets):
        # Touches every page now; otherwise the page faults would fall into the timed window.
        array.reshape(-1)[:: mmap.PAGESIZE // array.itemsize].sum()
    return inputs, targets
