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
    "scatter",
    "all_gather",
    "gather",
    "all_to_all",
    "allocate",
)
_CODES = {kind: code for code, kind in enumerate(KINDS)}
# Sorted by name, so that a dtype has the same number on all ranks.
_DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}

_AGREED = struct.Struct("<BBhiq")
_FORMAT = struct.Struct("<BBhiqqq32x")
assert _FORMAT.size == DESCRIPTOR_BYTES


class Mismatch(dist.DistBackendError):
    """The ranks called different operations. No data has moved; the group can still be used."""


class Place(NamedTuple):
    """An operand's place in the memory that the group has allocated."""

    block: int
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


def place_in(descriptor: bytes) -> Place:
    """The place of the operand."""
    return Place(*_FORMAT.unpack(descriptor)[5:])


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
        details.append(f"{numel} × {_DTYPES[dtype]}")
    if root >= 0:
        details.append(f"root {root}")
    return f"{KINDS[kind]}({', '.join(details)})"
