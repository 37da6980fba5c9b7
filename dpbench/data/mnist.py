"""MNIST from the user's files: 28×28 images of handwritten digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpbench.data import idx, mnist_files
from dpbench.errors import DataError

MEAN = 0.1307
"""Mean of all pixels of the training images, scaled to [0, 1]."""
STANDARD_DEVIATION = 0.3081
"""Standard deviation of the same pixels."""

_SIDE = 28
_CLASSES = 10


def read(
    data_dir: Path | None, split: mnist_files.Split
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    """Images, float32 (n, 1, 28, 28), normalised; digits, int64 (n,); notes for the user.

    Raises DataError if a file is missing or damaged, or the two do not belong together.
    """
    published, paths = mnist_files.PUBLISHED[split], mnist_files.find(data_dir, split)
    labels, labels_note = _read_file(published.labels, paths.labels, dimensions=1)
    images, images_note = _read_file(published.images, paths.images, dimensions=3)
    _check_shapes(images, labels, paths)
    notes = tuple(note for note in (images_note, labels_note) if note is not None)
    return normalise(images), labels.astype(np.int64), notes


def normalise(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Grey levels (n, 28, 28) of 0–255 as (n, 1, 28, 28), standardised with MNIST's mean and
    deviation."""
    # In place: the training set is 188 MB as float32.
    inputs = images[:, np.newaxis].astype(np.float32)
    inputs /= 255
    inputs -= MEAN
    inputs /= STANDARD_DEVIATION
    return inputs


def _read_file(
    published: mnist_files.PublishedFile, path: Path, dimensions: int
) -> tuple[NDArray[np.uint8], str | None]:
    content = idx.read_content(path, dimensions)
    array = idx.decode(content, dimensions, path)
    return array, mnist_files.verify(published, path, content, len(array))


def _check_shapes(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], paths: mnist_files.SplitFiles[Path]
) -> None:
    if len(images) != len(labels):
        raise DataError(
            f"{paths.images} has {len(images)} images but {paths.labels} has {len(labels)} "
            "labels; expected as many of both; copy both files again"
        )
    if len(images) == 0:
        raise DataError(f"{paths.images} has 0 images; expected at least 1")
    if images.shape[1:] != (_SIDE, _SIDE):
        rows, columns = images.shape[1:]
        raise DataError(
            f"{paths.images} has images of {rows}×{columns} pixels; expected {_SIDE}×{_SIDE}"
        )
    if labels.max() >= _CLASSES:
        raise DataError(f"{paths.labels} has a label {labels.max()}; expected digits 0–9")
