"""Failures of an operation, for this rank or the group, and of the barrier that names ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch.distributed as dist

from dpbench.parallel.shm.descriptor import Mismatch
from dpbench.parallel.shm.member import Member, Waiting


class AllocationFailed(OSError):
    """A rank got no memory. All ranks get this error, and the group can still be used."""


# After these errors all ranks are in the same state as before the operation.
HARMLESS = (Mismatch, AllocationFailed)

_A_MOMENT_SECONDS = 0.05


class RanksMissing(dist.DistBackendError):
    """Some ranks did not come in time.

    Attributes:
        ranks: the missing ranks of the group.
        milliseconds: time that this rank waited for them.
    """

    def __init__(self, message: str, ranks: Sequence[int], seconds: float) -> None:
        super().__init__(message)
        self.ranks = list(ranks)
        self.milliseconds = round(seconds * 1000)


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
        RanksMissing: the deadline has passed. torch.distributed.DistBackendError: an awaited rank
            is gone.
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
        raise RanksMissing(
            f"{name}: Timed out waiting {timeout * 1000:.0f}ms for {who}",
            late,
            timeout,
        )
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


def late_barrier_error(rank: int, milliseconds: int) -> dist.DistBackendError:
    """The error of a rank that had no time left to wait."""
    return dist.DistBackendError(
        f"Rank {rank} timed out in monitoredBarrier after {milliseconds} ms"
    )


def barrier_error(error: RanksMissing, rank: int, wait_all_ranks: bool) -> dist.DistBackendError:
    """The error of a barrier in torch's own words, which scripts look for.

    Args:
        error: the barrier's error.
        rank: this process's rank in the group.
        wait_all_ranks: whether rank 0 names all missing ranks, or only the first.
    """
    missing = sorted(error.ranks)
    if rank == 0:
        names = ", ".join(map(str, missing)) if wait_all_ranks else str(missing[0])
        noun = "Ranks" if wait_all_ranks and len(missing) > 1 else "Rank"
        words = f"{noun} {names} failed to pass monitoredBarrier in {error.milliseconds} ms"
    else:
        words = (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
            "for send/recv from rank 0. Please check rank 0 logs for faulty rank"
        )
    return dist.DistBackendError(f"{words}. {error}")
