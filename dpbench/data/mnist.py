"""MNIST from the user's files: 28×28 images of handwritten digits, in the IDX file format.

The format is unsigned bytes with their shape in front: two zero bytes, the type of the elements (8
is unsigned byte), the number of dimensions, the dimensions as big-endian 32-bit integers, then the
elements, the last dimension fastest.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from dpbench.data import mnist_files
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
    content = read_content(path, dimensions)
    array = decode(content, dimensions, path)
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


_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
LARGEST_BYTES = 2**30
"""Largest content that is read: twenty times the images of MNIST."""


def read_content(path: Path, dimensions: int) -> bytes:
    """The bytes of the file, decompressed if they are gzip; raises DataError if unreadable.

    At most one byte more than the header announces is read, however large a compressed file
    unpacks. The content decides, not the suffix: some browsers decompress a .gz and keep its name,
    and IDX starts with zeros, so the two cannot be confused.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            if not compressed:
                return _announced(file, path, dimensions)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _announced(unpacked, path, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is damaged: {error}; expected a whole gzip file; copy it again"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _announced(file: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int) -> bytes:
    """The header, and the bytes that it announces; `decode` reports errors in either."""
    header = file.read(_header_bytes(dimensions))
    if header[:4] != _magic(dimensions) or len(header) < _header_bytes(dimensions):
        return header
    elements = math.prod(_shape(header, dimensions))
    if elements > LARGEST_BYTES:
        raise DataError(
            f"{path} announces {elements:,} elements; expected at most {LARGEST_BYTES:,}; "
            "copy the file again"
        )
    return header + file.read(elements + 1)


def decode(content: bytes, dimensions: int, where: Path) -> NDArray[np.uint8]:
    """The array with `dimensions` dimensions in `content`; raises DataError naming file `where`."""
    magic = _magic(dimensions)
    if content[:4] != magic:
        raise DataError(
            f"{where} is no IDX file of {dimensions} dimensions: got the first bytes "
            f"{content[:4].hex() or 'none'}, expected {magic.hex()}; copy the file again"
        )
    header_bytes = _header_bytes(dimensions)
    if len(content) < header_bytes:
        raise DataError(
            f"{where} is cut off: got {len(content)} B, expected a header of {header_bytes} B; "
            "copy the file again"
        )
    shape = _shape(content, dimensions)
    expected_bytes = header_bytes + math.prod(shape)
    if len(content) != expected_bytes:
        got = f"{len(content)}" if len(content) < expected_bytes else f"more than {expected_bytes}"
        raise DataError(
            f"{where} has the wrong length: got {got} B, expected {expected_bytes} B "
            f"for {' × '.join(map(str, shape))} elements; copy the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)


def _magic(dimensions: int) -> bytes:
    return bytes((0, 0, _UNSIGNED_BYTE, dimensions))


def _header_bytes(dimensions: int) -> int:
    return 4 + 4 * dimensions


def _shape(content: bytes, dimensions: int) -> tuple[int, ...]:
    return struct.unpack(f">{dimensions}I", content[4 : _header_bytes(dimensions)])
