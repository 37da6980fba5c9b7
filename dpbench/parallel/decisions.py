"""Decisions that all ranks take together, so that none goes on alone.

A rank that skips a batch by itself, for lack of memory or because its loss is not finite, leaves
the others waiting in the next collective. Whether to skip has to be decided before it:

    try:
        loss = criterion(model(inputs), targets)
    except torch.OutOfMemoryError:
        loss = None
    if any_rank(loss is None):
        continue  # on every rank
    loss.backward()  # reduces gradients

A forward of DistributedDataParallel begins with collectives, so what may fail before it, such as
reading the batch, needs a decision of its own.
"""

from __future__ import annotations

import torch.distributed as dist

from dpbench.parallel.groups import largest, member_group


def any_rank(flag: bool, *, process_group: dist.ProcessGroup | None = None) -> bool:
    """Whether `flag` is true on at least one rank of the group; a collective of one number.

    Raises:
        TypeError: `flag` is not a bool; a tensor would hide that it has to be read back.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"got a flag of type {type(flag).__name__}, expected bool")
    group = member_group(process_group, "any_rank")
    return bool(largest(int(flag), group))


def all_ranks(flag: bool, *, process_group: dist.ProcessGroup | None = None) -> bool:
    """Whether `flag` is true on every rank of the group; a collective of one number.

    Raises:
        TypeError: `flag` is not a bool.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"got a flag of type {type(flag).__name__}, expected bool")
    return not any_rank(not flag, process_group=process_group)
