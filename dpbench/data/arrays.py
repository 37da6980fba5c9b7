"""Prepared samples on disk: inputs.npy and targets.npy in a folder."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbench.errors import DataError

INPUTS = "inputs.npy"
TARGETS = "targets.npy"


def write(folder: Path, inputs: NDArray[np.float32], targets: NDArray[np.int64]) -> None:
    """Writes both arrays; raises DataError where `folder` cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_one(folder / INPUTS, inputs)
        _write_one(folder / TARGETS, targets)
    except OSError as error:
        raise DataError(
            f"cannot write the prepared dataset into {folder}: {error.strerror}; "
            f"expected a folder that can be written, with {inputs.nbytes + targets.nbytes} B free"
        ) from error


def read(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The inputs, float32 (n, …), and targets, int64 (n,); raises DataError if damaged.

    They are memory-mapped: the ranks of a host share one copy, and a write changes only the
    writer's.
    """
    inputs = _read_one(folder / INPUTS, np.dtype(np.float32))
    targets = _read_one(folder / TARGETS, np.dtype(np.int64))
    if len(inputs) != len(targets):
        raise DataError(
            f"prepared dataset {folder}: got {len(inputs)} inputs and {len(targets)} targets; "
            "expected as many of both; prepare it again"
        )
    return inputs, targets


def _write_one(path: Path, array: NDArray[Any]) -> None:
    # Replaced as a whole, so that another sweep with the same folder never reads half an array.
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _read_one(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"cannot read prepared samples {path}: {error}; prepare the dataset again"
        ) from error
    if array.dtype != dtype:
        raise DataError(
            f"prepared samples {path}: got {array.dtype}, expected {dtype}; "
            "prepare the dataset again"
        )
    _touch(array)
    return array


def _touch(array: NDArray[Any]) -> None:
    # Maps every page now, or the page faults would fall into the timed window.
    array.reshape(-1)[:: mmap.PAGESIZE // array.itemsize].sum()
