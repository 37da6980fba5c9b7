"""A queue of operations that run one after the other."""

from __future__ import annotations

import threading
import time
from collections import deque

import torch
import torch.distributed as dist

from dpbench.parallel.shm.arena import AllocationFailed
from dpbench.parallel.shm.cuda_copies import HostCopy
from dpbench.parallel.shm.descriptor import Mismatch
from dpbench.parallel.shm.member import AnyOf, Member, Waiting
from dpbench.parallel.shm.missing_ranks import RanksMissing
from dpbench.parallel.shm.semaphores import wait_for_token
from dpbench.parallel.shm.work import Work

# After these errors all ranks are where they were before the operation.
HARMLESS = (Mismatch, AllocationFailed)
# A wait for what is not one flag, such as a copy on another device.
_NAP = 100e-6

Ended = tuple[Work, BaseException | None]


class Lane:
    """Runs operations in the order in which they were issued.

    Any thread may step it; one at a time does.

    Attributes:
        queue: what has been issued and has not ended; the first may have begun.
    """

    def __init__(self, member: Member, lock: threading.Lock | None = None) -> None:
        """
        Args:
            member: this rank.
            lock: shared by lanes of which only one may be stepped at a time.
        """
        self.queue: deque[Work] = deque()
        self._member = member
        self._lock = lock or threading.Lock()
        self._waiting: Waiting = ()

    def claim(self) -> bool:
        """Whether the caller may drive an operation itself; if so it must `release`."""
        return not self.queue and self._lock.acquire(blocking=False)

    def release(self) -> None:
        self._lock.release()

    def step(self, ended: list[Ended]) -> bool:
        """Get on with the first operations as far as possible without waiting.

        Args:
            ended: gets the operations that have ended. Their works are to be finished without
                any lock, as a callback may issue the next operation.

        Returns:
            Whether anything has moved.
        """
        if not self.queue or not self._lock.acquire(blocking=False):
            return False
        try:
            return self._advance(ended)
        finally:
            self._lock.release()

    def watch(self, ended: list[Ended]) -> None:
        """Fail what waits in vain: for a rank that is gone, or beyond its deadline."""
        if not self.queue or not self._lock.acquire(blocking=False):
            return
        try:
            if self.queue:
                work = self.queue[0]
                try:
                    require_hope(
                        self._member, work.name, self._waiting, work.deadline, work.timeout
                    )
                except dist.DistBackendError as error:
                    break_group(self._member, work.name, error)
                    self._fail(ended, error)
        finally:
            self._lock.release()

    def block(self, seconds: float) -> None:
        """Return when the first operation may get on, or after a time.

        While another thread steps it, when that one is done. The flag may have a token by then, and
        who looks at it without end keeps the interpreter from the one that has work: woken by each
        look, and late each time, that one never waits long enough to demand its turn.
        """
        if not self._lock.locked():
            block(self._waiting, seconds)
        elif self._lock.acquire(timeout=seconds):
            self._lock.release()

    def _advance(self, ended: list[Ended]) -> bool:
        if torch.is_inference_mode_enabled():
            # Views made here may outlive the mode, and another thread may go on without it.
            with torch.inference_mode(False):
                return self._advance(ended)
        moved = False
        while self.queue:
            if self._member.broken:
                self._fail(ended, broken_error(self._member))
                return True
            work = self.queue[0]
            taken = self._member.taken
            if work.told_before < 0:
                work.told_before = self._member.told
            try:
                self._waiting = next(work.steps)
            except StopIteration as stop:
                work.value = stop.value
                ended.append((self.queue.popleft(), None))
            except BaseException as error:
                if is_local(self._member, error, work.told_before):
                    ended.append((self.queue.popleft(), error))
                else:
                    break_group(self._member, work.name, error)
                    self._fail(ended, error)
                    return True
            else:
                if self._member.taken == taken:
                    return moved
            moved = True
        return moved

    def _fail(self, ended: list[Ended], error: BaseException) -> None:
        ended.extend((work, error) for work in self.queue)
        self.queue.clear()


def is_local(member: Member, error: BaseException, told_before: int) -> bool:
    """Whether the group is as good as before an operation that failed.

    Args:
        member: this rank.
        error: of the operation.
        told_before: what `member.told` was when the operation began.
    """
    return isinstance(error, HARMLESS) or member.told == told_before


def block(waiting: Waiting, seconds: float) -> None:
    """Return when the first of the flags has a token, or after a time."""
    if isinstance(waiting, HostCopy):
        waiting.wait()
    elif len(waiting) == 1 or (waiting and not isinstance(waiting, AnyOf)):
        wait_for_token(waiting[0], seconds)
    else:
        time.sleep(_NAP)


def require_hope(
    member: Member, name: str, waiting: Waiting, deadline: float, timeout: float
) -> None:
    """
    Args:
        member: this rank.
        name: of the operation.
        waiting: what it waits for.
        deadline: on the clock of time.monotonic.
        timeout: in seconds, that led to the deadline.

    Raises:
        RanksMissing: it is too late.
        torch.distributed.DistBackendError: one of those awaited is gone.
    """
    if time.monotonic() > deadline and (late := member.late(waiting)):
        # In the words of torch's backends, which scripts look for.
        raise RanksMissing(
            f"{name}: Timed out waiting {timeout * 1000:.0f}ms for {member.describe(late)}",
            late,
            timeout,
        )
    if absence := member.absence(waiting):
        raise dist.DistBackendError(f"{name} cannot complete: {absence}")


def break_group(member: Member, name: str, error: BaseException) -> None:
    """Nothing more can be done with this group; the other ranks are told."""
    if not member.broken:
        member.broken = str(error) or f"{name} was interrupted by {type(error).__name__}"
        member.leave(member.broken)


def broken_error(member: Member) -> dist.DistBackendError:
    return dist.DistBackendError(f"this 'shm' group can no longer be used: {member.broken}")
