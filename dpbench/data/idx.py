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

import numpy as np
from numpy.typing import NDArray

from dpbench.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 8


def read_content(path: Path) -> bytes:
    """The bytes of the file, decompressed if they are gzip; raises DataError if unreadable.

    The bytes decide, not the suffix: some browsers decompress a .gz and keep its name, and IDX
    starts with zeros, so that the two cannot be confused.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is damaged: {error}; expected a whole gzip file; copy it again"
        ) from error


def decode(content: bytes, dimensions: int, where: Path) -> NDArray[np.uint8]:
    """The array in `content`, of so many dimensions; raises DataError naming file `where`."""
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{where} is no IDX file of {dimensions} dimensions: got the first bytes "
            f"{content[:4].hex() or 'none'}, expected {magic.hex()}; copy the file again"
        )
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes:
        raise DataError(
            f"{where} is cut off: got {len(content)} B, expected a header of {header_bytes} B; "
            "copy the file again"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    expected_bytes = header_bytes + math.prod(shape)
    if len(content) != expected_bytes:
        raise DataError(
            f"{where} has the wrong length: got {len(content)} B, expected {expected_bytes} B "
            f"for {' × '.join(map(str, shape))} elements; copy the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)
