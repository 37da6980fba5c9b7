"""The reduction operators, as torch functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Operator:
    """What a reduction does with two elements.

    Attributes:
        name: as torch spells it.
        code: in descriptors.
        combine: (a, b, out=…), elementwise.
        average: whether the sum is divided by the number of ranks.
    """

    name: str
    code: int
    combine: Callable[..., Tensor]
    average: bool = False

    def reduce(self, operands: Sequence[Tensor], out: Tensor) -> None:
        """((operands[0] ∘ operands[1]) ∘ operands[2]) …: the order of the ranks, always.

        Args:
            operands: of one shape and dtype, one per rank.
            out: the result; it may be the first operand, and if there are two, the second.
        """
        if len(operands) == 1:
            out.copy_(operands[0])
        else:
            self.combine(operands[0], operands[1], out=out)
            for operand in operands[2:]:
                self.combine(out, operand, out=out)
        if self.average:
            out.mul_(1 / len(operands))


_KIND: Any = dist.ReduceOp.RedOpType
_OPERATORS = {
    int(kind): Operator(str(kind.name), int(kind) + 1, combine, average=kind is _KIND.AVG)
    for kind, combine in (
        (_KIND.SUM, torch.add),
        (_KIND.AVG, torch.add),
        (_KIND.PRODUCT, torch.mul),
        (_KIND.MIN, torch.minimum),
        (_KIND.MAX, torch.maximum),
        (_KIND.BAND, torch.bitwise_and),
        (_KIND.BOR, torch.bitwise_or),
        (_KIND.BXOR, torch.bitwise_xor),
    )
}
NAMES = {operator.code: operator.name for operator in _OPERATORS.values()}
_BITWISE = {"BAND", "BOR", "BXOR"}
_ORDERED = {"MIN", "MAX"}


def operator_for(op: Any, dtype: torch.dtype) -> Operator:
    """
    Args:
        op: a torch.distributed.ReduceOp.
        dtype: of the operands.

    Raises:
        ValueError: for an operator or a combination that the backend does not have.
    """
    # By number: hashing torch's enumeration takes longer than all the rest here.
    operator = _OPERATORS.get(int(getattr(op, "op", op)))
    if operator is None:
        known = ", ".join(NAMES.values())
        raise ValueError(f"backend 'shm' has no reduction {op}; it has {known}")
    if operator.combine is torch.add and not operator.average:
        return operator  # takes all
    fractional = dtype.is_floating_point or dtype.is_complex
    if (
        (operator.average and not fractional)
        or (operator.name in _BITWISE and fractional)
        or (operator.name in _ORDERED and dtype.is_complex)
    ):
        remedy = "divide a SUM yourself" if operator.average else "convert the tensor first"
        raise ValueError(
            f"backend 'shm' cannot reduce {dtype} with {operator.name}, which is not defined for "
            f"it; {remedy}"
        )
    return operator
