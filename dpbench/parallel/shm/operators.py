"""The reduction operators, as torch functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Combine = Callable[..., Tensor]
"""Elementwise function (a, b, out=…)."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A reduction of elements of one dtype.

    Attributes:
        name: torch's name of the operator.
        code: number in descriptors.
        combine: reduces two operands.
        average: whether the sum is divided by the number of ranks.
    """

    name: str
    code: int
    combine: Combine
    average: bool = False

    def reduce(self, operands: Sequence[Tensor], out: Tensor, *, ranks: int | None = None) -> None:
        """Compute ((operands[0] ∘ operands[1]) ∘ operands[2]) …, always in the order of the ranks.

        Args:
            operands: at least one, all of the same shape and dtype; in the order of the ranks.
            out: the result; it may be the first operand, and if there are two, the second.
            ranks: number of ranks to average over, where an operand is the sum of several; None if
                each is of one rank.
        """
        if len(operands) == 1:
            out.copy_(operands[0])
        else:
            self.combine(operands[0], operands[1], out=out)
            for operand in operands[2:]:
                self.combine(out, operand, out=out)
        if self.average:
            out.mul_(1 / (len(operands) if ranks is None else ranks))


_KIND: Any = dist.ReduceOp.RedOpType
_COMBINE: dict[str, Combine] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_NAMES = {int(getattr(_KIND, name)): name for name in _COMBINE}
NAMES = {number + 1: name for number, name in _NAMES.items()}
"""Names of the operators by code."""
_operators: dict[tuple[int, torch.dtype], Operator] = {}


def operator_for(op: Any, dtype: torch.dtype) -> Operator:
    """
    Args:
        op: a torch.distributed.ReduceOp.
        dtype: the operands' dtype.

    Raises:
        ValueError: the backend does not have this operator, or not for this dtype.
    """
    # Looked up by number: hashing torch's enumeration would take most of the time here.
    key = (int(getattr(op, "op", op)), dtype)
    operator = _operators.get(key)
    if operator is None:
        operator = _operators[key] = _new_operator(op, *key)
    return operator


def _new_operator(op: Any, number: int, dtype: torch.dtype) -> Operator:
    name = _NAMES.get(number)
    if name is None:
        known = ", ".join(_NAMES.values())
        raise ValueError(f"shm and shm+gloo have no reduction {op}; they have {known}")
    average = name == "AVG"
    operator = Operator(name, number + 1, _COMBINE[name], average)
    fractional = dtype.is_floating_point or dtype.is_complex
    if (average and not fractional) or not _works(operator, dtype):
        remedy = "divide a SUM yourself" if average else "convert the tensor first"
        raise ValueError(
            f"shm and shm+gloo cannot reduce {dtype} with {name}, which is not defined for it; "
            f"{remedy}"
        )
    return operator


def _works(operator: Operator, dtype: torch.dtype) -> bool:
    """Whether torch supports the operator; found out before other ranks wait for this one."""
    try:
        # 16 bytes hold an element of the widest dtype.
        operands = [torch.zeros(16, dtype=torch.uint8, device="cpu").view(dtype) for _ in range(3)]
        operator.reduce(operands, out=operands[0])
    except RuntimeError:
        return False
    return True
