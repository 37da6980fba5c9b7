"""Writes small folders of MNIST files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """The array as an IDX file of unsigned bytes."""
    dimensions = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + dimensions + array.tobytes()


def images(n: int) -> NDArray[np.uint8]:
    """`n` images: the first is black, the second white, the others grey."""
    grey = np.full((n, 28, 28), 128, dtype=np.uint8)
    grey[0], grey[1] = 0, 255
    return grey


def labels(n: int) -> NDArray[np.uint8]:
    """The digits 0, 1, … 9, 0, …"""
    return (np.arange(n) % 10).astype(np.uint8)


def put(folder: Path, name: str, content: bytes) -> Path:
    """Writes `content`, compressed if the name ends in .gz."""
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def put_training_set(folder: Path, n: int) -> None:
    """Both training files with `n` samples."""
    put(folder, TRAIN_IMAGES, idx_bytes(images(n)))
    put(folder, TRAIN_LABELS, idx_bytes(labels(n)))


def put_test_set(folder: Path, n: int) -> None:
    """Both test files with `n` samples."""
    put(folder, TEST_IMAGES, idx_bytes(images(n)))
    put(folder, TEST_LABELS, idx_bytes(labels(n)))
