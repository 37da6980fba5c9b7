"""Failures of an operation, for this rank or the group."""

from __future__ import annotations

import time

import torch.distributed as dist

from dpbench.parallel.shm.descriptor import Mismatch
from dpbench.parallel.shm.member import Member, Waiting


class AllocationFailed(OSError):
    """A rank got no memory. All ranks get this error, and the group can still be used."""


# After these errors all ranks are in the same state as before the operation.
HARMLESS = (Mismatch, AllocationFailed)

_A_MOMENT_SECONDS = 0.05


def require_hope(
    member: Member, name: str, waiting: Waiting, deadline: float, timeout: float
) -> None:
    """
    Args:
        member: this rank.
        name: the operation's name.
        waiting: the flags or copy that it waits for.
        deadline: on the clock of time.monotonic.
        timeout: seconds that led to the deadline.

    Raises:
        torch.distributed.DistBackendError: the deadline has passed, or an awaited rank is gone.
    """
    left, absence = deadline - time.monotonic(), member.absence(waiting)
    if absence and 0 < left < _A_MOMENT_SECONDS:
        # A peer may leave just before a short limit or just after it: both are reported
        # as the limit, together with the peer's state.
        time.sleep(left)
        left = 0
    if left <= 0 and (late := member.late(waiting)):
        who = member.describe(late, waiting)
        # In the words of torch's backends, which scripts look for.
        raise dist.DistBackendError(f"{name}: Timed out waiting {timeout * 1000:.0f}ms for {who}")
    if absence:
        raise dist.DistBackendError(f"{name} cannot complete: {absence}")


def is_local(member: Member, error: BaseException, told_before: int) -> bool:
    """Whether the group is still usable after an operation that failed: no other rank has heard of
    it.

    Args:
        member: this rank.
        error: the operation's error.
        told_before: value of `member.told` when the operation began.
    """
    return isinstance(error, HARMLESS) or member.told == told_before


def break_group(member: Member, name: str, error: BaseException) -> None:
    """Mark the group as broken, and tell the other ranks."""
    if not member.broken:
        member.broken = str(error) or f"{name} was interrupted by {type(error).__name__}"
        member.leave(member.broken)


def broken_error(member: Member) -> dist.DistBackendError:
    return dist.DistBackendError(
        f"this {member.backend!r} group can no longer be used: {member.broken}"
    )
