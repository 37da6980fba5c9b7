"""The everyday operations of a process group, with one kind of error where there is no group.

They add to torch.distributed: operations by name, averages on every backend, and the tensor as
result.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.groups import member_group

OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""Operations of `all_reduce`."""


def is_initialized() -> bool:
    """Whether this process has a default process group."""
    return dist.is_available() and dist.is_initialized()


def get_rank(group: dist.ProcessGroup | None = None) -> int:
    """Number of this process in the group, from 0; RuntimeError if there is no group."""
    return dist.get_rank(member_group(group, "get_rank"))


def get_world_size(group: dist.ProcessGroup | None = None) -> int:
    """Number of processes in the group; RuntimeError if there is no group."""
    return dist.get_world_size(member_group(group, "get_world_size"))


def all_reduce(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> Tensor:
    """Reduce the tensors of all ranks, in place; a collective.

    Args:
        tensor: this rank's tensor, of the same shape and dtype on all ranks.
        op: "sum", "avg", "product", "min", "max", "band", "bor" or "bxor". "avg" is the sum divided
            by the number of ranks, so it works on every backend.
        group: the ranks; None means the default group.

    Returns:
        The same tensor.

    Raises:
        ValueError: the operation is not known, or is an average of whole numbers.
        RuntimeError: there is no group.
    """
    if op not in OPERATIONS:
        raise ValueError(f"all_reduce: got op={op!r}, expected one of {', '.join(OPERATIONS)}")
    chosen = member_group(group, "all_reduce")
    if op != "avg":
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op.upper()), chosen)
        return tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"all_reduce: got an average of {tensor.dtype}, expected real numbers")
    dist.all_reduce(tensor, dist.ReduceOp.SUM, chosen)
    return tensor.div_(dist.get_world_size(chosen))


def broadcast(tensor: Tensor, src: int = 0, group: dist.ProcessGroup | None = None) -> Tensor:
    """Give all ranks the tensor of rank `src` of the group, in place; a collective.

    Returns:
        The same tensor.

    Raises:
        RuntimeError: there is no group.
    """
    dist.broadcast(tensor, group=member_group(group, "broadcast"), group_src=src)
    return tensor


def destroy_process_group() -> None:
    """Leave the default process group and all others; does nothing if there is none."""
    if is_initialized():
        dist.destroy_process_group()
