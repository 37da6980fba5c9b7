"""All-reduce with averages on every backend; `dpbench` has torch's other operations as they are."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.groups import member_group

OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""Operations of `all_reduce`."""


def all_reduce(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> Tensor:
    """Reduce the tensors of all ranks, in place, and return the tensor; a collective.

    Args:
        tensor: this rank's tensor, of the same shape and dtype on all ranks.
        op: "sum", "avg", "product", "min", "max", "band", "bor" or "bxor". "avg" is the sum divided
            by the number of ranks, so it works on every backend.
        group: the ranks; None means the default group.

    Raises:
        ValueError: the operation is not known, or is an average of whole numbers.
        RuntimeError: there is no group.
    """
    if op not in OPERATIONS:
        raise ValueError(f"all_reduce: got op={op!r}, expected one of {', '.join(OPERATIONS)}")
    if op == "avg" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"all_reduce: got an average of {tensor.dtype}, expected real numbers")
    chosen = member_group(group, "all_reduce")
    dist.all_reduce(tensor, getattr(dist.ReduceOp, "SUM" if op == "avg" else op.upper()), chosen)
    return tensor.div_(dist.get_world_size(chosen)) if op == "avg" else tensor
