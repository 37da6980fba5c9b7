"""The IDX file format of MNIST: unsigned bytes with their shape in front.

Two zero bytes, the type of the elements (8 is unsigned byte), the number of dimensions, the
dimensions as big-endian 32-bit integers, then the elements, the last dimension fastest.
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

from dpbench.errors import DataError

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
