"""Plain values as bytes and back, without pickle: what ranks tell each other in messages.

Plain are None, booleans, numbers, strings, tensors, and lists, tuples and dicts of them. The bytes
are a JSON text that describes the value, and behind it the elements of its tensors. Reading them
creates these types only, whoever wrote them; nothing is called or imported.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

_LENGTH_BYTES = 8
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class NotPlain(ValueError):
    """The bytes are no plain value, or the value is not plain."""


def to_bytes(value: Any) -> bytes:
    """The message that holds `value`.

    Raises:
        NotPlain: a part of it is of another type.
    """
    tensors: list[Tensor] = []
    text = json.dumps(_described(value, tensors), separators=(",", ":")).encode()
    elements = [_elements(tensor) for tensor in tensors]
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *elements))


def from_bytes(data: bytes) -> Any:
    """The value that `to_bytes` was given, its tensors on the CPU.

    Raises:
        NotPlain: for any other bytes.
    """
    view = memoryview(data)  # slices of it are not copies: the tensors can take gigabytes
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    text, elements = view[_LENGTH_BYTES:][:length], view[_LENGTH_BYTES + length :]
    if len(data) < _LENGTH_BYTES or len(text) < length:
        raise NotPlain(f"got {len(data)} bytes, which are too few for the message they begin")
    try:
        reader = _Reader(elements)
        value = reader.read(json.loads(bytes(text)))
    except (ValueError, TypeError, KeyError, RecursionError, RuntimeError) as error:
        raise NotPlain(f"got a message that is no plain value ({type(error).__name__})") from None
    if reader.rest:
        raise NotPlain(f"got a message with {reader.rest} bytes too many")
    return value


def _described(value: Any, tensors: list[Tensor]) -> Any:
    """JSON for a value: lists and scalars as they are, the rest as an object with one key."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": [str(value.dtype), list(value.shape)]}
    if isinstance(value, list):
        return [_described(part, tensors) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [_described(part, tensors) for part in value]}
    if isinstance(value, dict):
        # As pairs: the keys of JSON's objects are strings, those of an optimizer's state numbers.
        pairs = [[_described(k, tensors), _described(v, tensors)] for k, v in value.items()]
        return {"dict": pairs}
    raise NotPlain(f"got a {type(value).__name__} for a message, expected plain values")


def _elements(tensor: Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        raise NotPlain(f"got a tensor of {tensor.layout} for a message, expected a dense one")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


class _Reader:
    """Builds a value from its description and the elements of its tensors."""

    def __init__(self, elements: memoryview) -> None:
        self._elements = elements
        self._position = 0

    @property
    def rest(self) -> int:
        """Bytes that no tensor has taken yet."""
        return len(self._elements) - self._position

    def read(self, described: Any) -> Any:
        if isinstance(described, list):
            return [self.read(part) for part in described]
        if not isinstance(described, dict):
            return described
        ((kind, parts),) = described.items()
        if kind == "tuple":
            return tuple(self.read(part) for part in parts)
        if kind == "dict":
            return {self.read(key): self.read(part) for key, part in parts}
        if kind == "tensor":
            return self._tensor(*parts)
        raise ValueError(kind)

    def _tensor(self, dtype_name: str, shape: list[int]) -> Tensor:
        dtype = _DTYPES[dtype_name]
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        if any(size < 0 for size in shape) or nbytes > self.rest:
            raise ValueError(shape)
        start, self._position = self._position, self._position + nbytes
        own = bytearray(self._elements[start : self._position])
        return torch.frombuffer(own, dtype=dtype).view(shape)
