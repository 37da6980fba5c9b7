"""What the tools for ranks ask of a process group: am I in it, on which device does it talk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def member_group(group: dist.ProcessGroup | None, caller: str) -> dist.ProcessGroup:
    """The group to use; None means the default one.

    Raises:
        RuntimeError: there is no process group, or this process is not in it.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            f"{caller} needs a process group; call torch.distributed.init_process_group first"
        )
    chosen: dist.ProcessGroup | None = dist.group.WORLD if group is None else group
    if chosen is None or dist.get_rank(chosen) < 0:
        raise RuntimeError(f"{caller}: this process is not a member of the given process group")
    return chosen


def carrier(group: dist.ProcessGroup) -> torch.device:
    """A device whose tensors the group's collectives take: the CPU unless it is nccl alone."""
    if "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def gather_objects(value: T, group: dist.ProcessGroup) -> list[T]:
    """`value` of every rank of the group, in order; a collective."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def name_ranks(ranks: Sequence[int]) -> str:
    """Writes "rank 3", or "ranks 0, 1 and 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
