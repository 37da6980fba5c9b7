"""Writes small folders of MNIST files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpbench.data.digits import PUBLISHED

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = PUBLISHED


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """The array as an IDX file of unsigned bytes."""
    dimensions = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + dimensions + array.tobytes()


def images(n: int) -> NDArray[np.uint8]:
    """`n` images: the first is black, the second white, the others gray."""
    gray = np.full((n, 28, 28), 128, dtype=np.uint8)
    gray[0], gray[1] = 0, 255
    return gray


def put(folder: Path, name: str, content: bytes) -> Path:
    """Writes `content`, compressed."""
    path = folder / name
    path.write_bytes(gzip.compress(content))
    return path


def put_mnist(folder: Path, train: int, test: int) -> None:
    """All four files, with so many samples of the digits 0, 1, … 9, 0, …"""
    for n, images_name, labels_name in (
        (train, TRAIN_IMAGES, TRAIN_LABELS),
        (test, TEST_IMAGES, TEST_LABELS),
    ):
        put(folder, images_name, idx_bytes(images(n)))
        put(folder, labels_name, idx_bytes((np.arange(n) % 10).astype(np.uint8)))
