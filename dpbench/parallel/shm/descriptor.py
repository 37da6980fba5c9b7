"""What each rank is about to do, in 64 bytes, so that a mismatch is an error and not a hang."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from dpbench.parallel.shm import operators
from dpbench.parallel.shm.layout import DESCRIPTOR_BYTES

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
    "sparse_all_reduce",
)
_CODES = {kind: code for code, kind in enumerate(KINDS)}
_DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
# By name: the same number on all ranks, whatever the order of torch's attributes.
_DTYPE_NAMES = sorted({str(dtype) for dtype in _DTYPES})
_DTYPE_CODES = {dtype: _DTYPE_NAMES.index(str(dtype)) for dtype in _DTYPES}


def dtype_code(dtype: torch.dtype) -> int:
    """The same number in all processes with the same torch."""
    return _DTYPE_CODES[dtype]


def dtype_name(code: int) -> str:
    """As `str` of the dtype."""
    return _DTYPE_NAMES[code]


_AGREED = struct.Struct("<BBhiq")
_FORMAT = struct.Struct("<BBhiqqq32x")
assert _FORMAT.size == DESCRIPTOR_BYTES


class Mismatch(dist.DistBackendError):
    """The ranks called different operations. No data has moved; the group can still be used."""


class Place(NamedTuple):
    """Where in the group's arena an operand lies."""

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
        dtype, numel: of the operand of each rank.
        operator: its code, 0 for none.
        root: the rank that the operation is about, -1 for none.
        place: the only part in which ranks may differ.
    """
    return _FORMAT.pack(_CODES[kind], operator, _DTYPE_CODES[dtype], root, numel, *place)


def places(descriptors: Sequence[bytes]) -> list[Place]:
    """Where the operands of all ranks lie."""
    return [Place(*_FORMAT.unpack(descriptor)[5:]) for descriptor in descriptors]


def require_agreement(descriptors: Sequence[bytes], names: Sequence[str]) -> None:
    """
    Raises:
        Mismatch: two ranks do different things.
    """
    first = descriptors[0][: _AGREED.size]
    for name, descriptor in zip(names, descriptors, strict=True):
        if descriptor[: _AGREED.size] != first:
            raise Mismatch(
                f"ranks disagree: {names[0]} called {describe(descriptors[0])}, but {name} called "
                f"{describe(descriptor)}"
            )


def describe(descriptor: bytes) -> str:
    """As in `all_reduce(SUM, 12 × torch.float32)`."""
    kind, operator, dtype, root, numel = _AGREED.unpack_from(descriptor)
    details = [operators.NAMES[operator]] if operator else []
    if KINDS[kind] != "barrier":
        details.append(f"{numel} × {_DTYPE_NAMES[dtype]}")
    if root >= 0:
        details.append(f"root {root}")
    return f"{KINDS[kind]}({', '.join(details)})"
