"""Writes small folders of MNIST files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpbench.data.digits import PUBLISHED
from dpbench.data.registry import Split

TRAIN_IMAGES, TRAIN_LABELS = PUBLISHED["train"]


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


def put_set(folder: Path, split: Split, n: int) -> None:
    """Both files of a split with `n` samples of the digits 0, 1, … 9, 0, …"""
    images_name, labels_name = PUBLISHED[split]
    put(folder, images_name, idx_bytes(images(n)))
    put(folder, labels_name, idx_bytes((np.arange(n) % 10).astype(np.uint8)))
