"""A barrier with a label and a time limit, which names the ranks that did not come."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from dpbench.parallel.groups import member_group
from dpbench.parallel.meeting import Meeting


def barrier(
    label: str, *, timeout: timedelta, process_group: dist.ProcessGroup | None = None
) -> None:
    """Return when every rank of the group has called it.

    It goes through the group's store and no tensor, so it works with any backend, costs about a
    millisecond, and does not wait for a device.

    Args:
        label: says where in the program this is; it must be the same on all ranks.
        timeout: how long to wait for the others. The first rank that runs out of it decides for
            all: one that comes later gets the same error, not a barrier of its own.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank that called or will call it, with the missing ranks of the
            group and the label, or with the labels if they differ.
        ValueError: the timeout is not above zero.
    """
    if not isinstance(timeout, timedelta):
        raise TypeError(f"barrier {label!r}: got timeout={timeout!r}, expected a timedelta")
    if not timeout > timedelta():
        raise ValueError(f"barrier {label!r}: got timeout={timeout}, expected more than zero")
    group = member_group(process_group, "barrier")
    # Not public, but the one way to the store of a group whoever made it.
    store = _get_process_group_store(group)
    meeting = Meeting(store, dist.get_rank(group), dist.get_world_size(group))
    failure = meeting.hold(label, timeout)
    if failure:
        there = failure.label or label
        elsewhere = "" if there == label else f"; this rank came to barrier {label!r} instead"
        raise RuntimeError(f"barrier {there!r}: {failure.reason}{elsewhere}")
