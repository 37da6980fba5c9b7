"""The reduction operators, as torch functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Operator:
    """A reduction.

    Attributes:
        name: as in torch.distributed.ReduceOp.
        combine: the elementwise function (a, b, out=…).
    """

    name: str
    combine: Callable[..., Tensor]

    def reduce(self, operands: Sequence[Tensor], out: Tensor) -> None:
        """Compute ((operands[0] ∘ operands[1]) ∘ operands[2]) …, always in the order of the ranks.

        Args:
            operands: one per rank, all of the same shape and dtype.
            out: the result; it may be one of the first two operands.
        """
        if len(operands) == 1:
            out.copy_(operands[0])
            return
        self.combine(operands[0], operands[1], out=out)
        for operand in operands[2:]:
            self.combine(out, operand, out=out)
        if self.name == "AVG":
            out.mul_(1 / len(operands))


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_KIND: Any = dist.ReduceOp.RedOpType
# Looked up by number: hashing torch's enumeration would take most of the time.
_OPERATORS = {int(getattr(_KIND, n)): Operator(n, combine) for n, combine in _FUNCTIONS.items()}


def operator_for(op: Any, dtype: torch.dtype) -> Operator:
    """
    Args:
        op: a torch.distributed.ReduceOp.
        dtype: of the tensors to reduce.

    Raises:
        ValueError: the backend does not have this operator, or not for this dtype.
    """
    return _operator_for(int(getattr(op, "op", op)), dtype)


@cache
def _operator_for(number: int, dtype: torch.dtype) -> Operator:
    """Like `operator_for`, by torch's number of the operator."""
    operator = _OPERATORS.get(number)
    if operator is None:
        raise ValueError(
            f"shm has no reduction {_KIND(number)}, expected one of {', '.join(_FUNCTIONS)}"
        )
    # torch does not list the dtypes of a function, but it refuses the others.
    operands = torch.zeros(3, 1, dtype=dtype, device="cpu")
    try:
        operator.reduce(operands[:2].unbind(), out=operands[2])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"shm cannot reduce {dtype} with {operator.name}: {error}") from None
    return operator
