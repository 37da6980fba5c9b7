"""Descriptors: each rank's operation in 64 bytes, so that a mismatch is an error, not a hang."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from dpbench.parallel.shm import operators
from dpbench.parallel.shm.memory import DESCRIPTOR_BYTES

KINDS = (
    "barrier",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "allocate",
    "all_gather_v",
    "reduce_scatter_v",
)
_CODES = {kind: code for code, kind in enumerate(KINDS)}
# All of them, where `plain_values` has a list: no other torch ever reads these codes.
_DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
# Sorted by name: the same number on all ranks, whatever the order in torch.
_DTYPE_NAMES = sorted({str(dtype) for dtype in _DTYPES})
_DTYPE_CODES = {dtype: _DTYPE_NAMES.index(str(dtype)) for dtype in _DTYPES}


def dtype_code(dtype: torch.dtype) -> int:
    """Code of the dtype: the same number in all processes with the same torch."""
    return _DTYPE_CODES[dtype]


def dtype_name(code: int) -> str:
    """Name of the dtype with this code, as `str` gives it."""
    return _DTYPE_NAMES[code]


_AGREED = struct.Struct("<BBhiq")
_FORMAT = struct.Struct("<BBhiqqq32x")
assert _FORMAT.size == DESCRIPTOR_BYTES


class Mismatch(dist.DistBackendError):
    """The ranks called different operations. No data has moved; the group can still be used."""


class Place(NamedTuple):
    """An operand's place in the group's arena."""

    segment: int
    offset: int


NOWHERE = Place(-1, -1)


def pack(
    kind: str,
    dtype: torch.dtype = torch.uint8,
    numel: int = 0,
    *,
    operator: int = 0,
    root: int = -1,
    place: Place = NOWHERE,
) -> bytes:
    """
    Args:
        kind: one of KINDS.
        dtype, numel: type and number of elements of each rank's operand.
        operator: the operator's code, 0 for none.
        root: root rank of the operation, -1 for none.
        place: the operand's place; only this may differ between ranks.
    """
    return _FORMAT.pack(_CODES[kind], operator, _DTYPE_CODES[dtype], root, numel, *place)


def places(descriptors: Sequence[bytes]) -> list[Place]:
    """The places of all ranks' operands."""
    return [Place(*_FORMAT.unpack(descriptor)[5:]) for descriptor in descriptors]


def require_agreement(descriptors: Sequence[bytes], names: Sequence[str]) -> None:
    """
    Raises:
        Mismatch: two ranks called different operations.
    """
    first = descriptors[0][: _AGREED.size]
    for name, descriptor in zip(names, descriptors, strict=True):
        if descriptor[: _AGREED.size] != first:
            raise Mismatch(
                f"ranks disagree: {names[0]} called {describe(descriptors[0])}, but {name} called "
                f"{describe(descriptor)}"
            )


def describe(descriptor: bytes) -> str:
    """The operation as text, as in `all_reduce(SUM, 12 × torch.float32)`."""
    kind, operator, dtype, root, numel = _AGREED.unpack_from(descriptor)
    details = [operators.NAMES[operator]] if operator else []
    if KINDS[kind] != "barrier":
        details.append(f"{numel} × {_DTYPE_NAMES[dtype]}")
    if root >= 0:
        details.append(f"root {root}")
    return f"{KINDS[kind]}({', '.join(details)})"
