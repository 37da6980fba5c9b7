"""Plain values as bytes and back, without pickle: the messages that ranks exchange.

Plain values are None, booleans, numbers, strings, tensors, and lists, tuples and dicts of them.
Reading bytes creates only these types, no matter who wrote them; nothing is called or imported.
Reading takes time in proportion to the number of bytes, and memory of at most some 20 times that:
each announced size is checked against the bytes present before anything is allocated.

Each value is a letter and the data for that letter; all numbers are little-endian.

    N, T, F      None, True and False
    i            an integer of 64 bits
    I            the number of bytes (1 byte) and an integer of so many bytes
    f            a float of 64 bits
    s            the number of bytes (4) and a text in UTF-8
    l, t, d      the number of members (4) and the members of a list, a tuple or a dict; those of
                 a dict are a key and a value each
    x            a dtype (1), the number of dimensions (1) and the sizes (8 each), filled up to
                 64 bytes at least, and the elements of a tensor
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

DEEPEST = 64
"""Deepest nesting of containers."""
MOST_DIMENSIONS = 64
"""Most dimensions of a tensor: as many as torch computes with."""
LARGEST_INT_BYTES = 128
_INT64 = range(-(2**63), 2**63)
_TENSOR_HEAD_BYTES = 64
"""Smallest size of a tensor's head; else a message of many empty tensors would grow 100-fold when
read."""
_DTYPE_NAMES = (
    *("float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    *("complex128", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
"""Names of the dtypes, indexed by code. Quantised ones are left out, since torch crashes on those
without a scale."""
DTYPES: tuple[torch.dtype | None, ...] = tuple(getattr(torch, name, None) for name in _DTYPE_NAMES)
"""The dtypes, indexed by code; None for one that this release of torch does not have."""
_CODES = {dtype: code for code, dtype in enumerate(DTYPES) if dtype is not None}


class NotPlain(ValueError):
    """The bytes are no plain value, or the value is not plain."""


def to_bytes(value: Any) -> bytes:
    """The message that holds `value`.

    Raises:
        NotPlain: a part of `value` has another type, or is too large or too deep to be read again.
    """
    return b"".join(_written(value, DEEPEST))


def from_bytes(data: bytes) -> Any:
    """The value that was given to `to_bytes`, with its tensors on the CPU.

    Raises:
        NotPlain: the bytes are anything else.
    """
    reader = _Reader(data)
    try:
        value = reader.read(DEEPEST)
    except NotPlain as error:
        raise NotPlain(f"got a message that is no plain value: {error}") from None
    # Errors of struct, of text that is not UTF-8, and of torch for a tensor.
    except (struct.error, ValueError, RuntimeError) as error:
        kind = type(error).__name__
        raise NotPlain(f"got a message that is no plain value ({kind})") from None
    if reader.rest:
        raise NotPlain(f"got a message with {reader.rest} bytes too many")
    return value


def _written(value: Any, depth: int) -> Iterator[bytes]:
    if value is None:
        yield b"N"
    elif isinstance(value, bool):
        yield b"T" if value else b"F"
    elif isinstance(value, int):
        yield _integer(value)
    elif isinstance(value, float):
        yield b"f" + struct.pack("<d", value)
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        yield b"s" + _count(len(text)) + text
    elif isinstance(value, Tensor):
        yield from _tensor(value)
    elif isinstance(value, (list, tuple, dict)):
        if not depth:
            raise NotPlain(f"got a value for a message that is nested more than {DEEPEST} deep")
        yield from _container(value, depth - 1)
    else:
        raise NotPlain(f"got a {type(value).__name__} for a message, expected plain values")


def _container(value: list[Any] | tuple[Any, ...] | dict[Any, Any], depth: int) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield b"d" + _count(len(value))
        for key, part in value.items():
            if not _is_key(key):
                raise NotPlain(
                    f"got a {type(key).__name__} as a key for a message, expected a text, a bool, "
                    "None or an integer of 64 bits"
                )
            yield from _written(key, depth)
            yield from _written(part, depth)
        return
    yield (b"l" if isinstance(value, list) else b"t") + _count(len(value))
    for part in value:
        yield from _written(part, depth)


def _integer(value: int) -> bytes:
    if value in _INT64:
        return b"i" + struct.pack("<q", value)
    length = value.bit_length() // 8 + 1
    if length > LARGEST_INT_BYTES:
        raise NotPlain(
            f"got an integer of {length} bytes for a message, expected {LARGEST_INT_BYTES} at most"
        )
    return b"I" + bytes([length]) + value.to_bytes(length, "little", signed=True)


def _count(number: int) -> bytes:
    if number >= 2**32:
        raise NotPlain(f"got {number} bytes or members for a message, expected less than 2^32")
    return struct.pack("<I", number)


def _is_key(key: Any) -> bool:
    """Whether this is a safe dict key. Strings are hashed with a secret, and at most eight 64-bit
    integers share a hash, so no sender can choose keys that all collide."""
    return key is None or isinstance(key, (str, bool)) or (isinstance(key, int) and key in _INT64)


def _tensor(tensor: Tensor) -> Iterator[bytes]:
    if tensor.layout is not torch.strided:
        raise NotPlain(f"got a tensor of {tensor.layout} for a message, expected a dense one")
    if tensor.dtype not in _CODES:
        raise NotPlain(f"got a tensor of {tensor.dtype} for a message, expected plain numbers")
    if tensor.dim() > MOST_DIMENSIONS:
        raise NotPlain(
            f"got a tensor of {tensor.dim()} dimensions for a message, expected "
            f"{MOST_DIMENSIONS} at most"
        )
    head = bytes([_CODES[tensor.dtype], tensor.dim()])
    sizes = struct.pack(f"<{tensor.dim()}Q", *tensor.shape)
    yield b"x" + (head + sizes).ljust(_TENSOR_HEAD_BYTES, b"\0")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    yield flat.view(torch.uint8).numpy().tobytes()


class _Reader:
    """Takes values off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)  # slices are not copies: the tensors can take gigabytes
        self._position = 0

    @property
    def rest(self) -> int:
        """Number of bytes not read yet."""
        return len(self._data) - self._position

    def read(self, depth: int) -> Any:
        """Read the next value, with containers nested at most `depth` deep."""
        letter = bytes(self._take(1))
        if letter in _SINGLE:
            return _SINGLE[letter]
        if read := _SCALARS.get(letter):
            return read(self)
        if letter not in (b"l", b"t", b"d"):
            raise NotPlain("a letter that means nothing")
        if not depth:
            raise NotPlain(f"nested more than {DEEPEST} deep")
        count = self._count()
        if count > self.rest:
            raise NotPlain(f"{count} members announced in {self.rest} bytes")
        if letter == b"d":
            return self._dict(count, depth - 1)
        members = [self.read(depth - 1) for _ in range(count)]
        return members if letter == b"l" else tuple(members)

    def _dict(self, count: int, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(count):
            key = self.read(0)
            if not _is_key(key):
                raise NotPlain("a key that may not be one")
            found[key] = self.read(depth)
        if len(found) < count:
            raise NotPlain("a key that is there twice")
        return found

    def integer(self) -> int:
        return int(struct.unpack("<q", self._take(8))[0])

    def long_integer(self) -> int:
        [length] = self._take(1)
        if length > LARGEST_INT_BYTES:
            raise NotPlain(f"an integer of {length} bytes")
        return int.from_bytes(self._take(length), "little", signed=True)

    def number(self) -> float:
        return float(struct.unpack("<d", self._take(8))[0])

    def text(self) -> str:
        return str(self._take(self._count()), "utf-8", "surrogatepass")

    def tensor(self) -> Tensor:
        code, dimensions = self._take(2)
        dtype = DTYPES[code] if code < len(DTYPES) else None
        if dtype is None or dimensions > MOST_DIMENSIONS:
            raise NotPlain(f"a tensor of dtype {code} and {dimensions} dimensions")
        sizes = self._take(max(8 * dimensions, _TENSOR_HEAD_BYTES - 2))
        shape = struct.unpack_from(f"<{dimensions}Q", sizes)
        if math.prod(filter(None, shape)) >= 2**63:  # torch counts in 64 bits
            raise NotPlain("a tensor that no memory holds")
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        # Copied, since the message is read-only and the tensor outlives it.
        own = bytearray(self._take(math.prod(shape) * dtype.itemsize))
        flat = torch.frombuffer(own, dtype=dtype)
        if dtype is torch.bool and bool((flat.view(torch.uint8) > 1).any()):
            raise NotPlain("a boolean that is neither true nor false")
        return flat.view(shape)

    def _count(self) -> int:
        return int(struct.unpack("<I", self._take(4))[0])

    def _take(self, length: int) -> memoryview:
        if length > self.rest:
            raise NotPlain(f"{length} bytes announced where {self.rest} are left")
        start, self._position = self._position, self._position + length
        return self._data[start : self._position]


_SINGLE = {b"N": None, b"T": True, b"F": False}
_SCALARS: dict[bytes, Callable[[_Reader], Any]] = {
    b"i": _Reader.integer,
    b"I": _Reader.long_integer,
    b"f": _Reader.number,
    b"s": _Reader.text,
    b"x": _Reader.tensor,
}
