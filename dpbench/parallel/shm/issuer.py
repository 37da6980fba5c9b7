"""Starts the operations of a group: at once, or in a queue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.engine import engine
from dpbench.parallel.shm.failures import broken_error
from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.operand import Operand, moved
from dpbench.parallel.shm.work import NO_TIMEOUT, Event, FinishedWork, Work, is_profiling

_FINISHED = FinishedWork()


class Issuer:
    """Starts operations of one group, in this process only and as long as the group works.

    Attributes:
        collectives: the queue that keeps collectives in order.
        timeout_seconds: for operations that name none.
        issued: number of collectives so far.
    """

    def __init__(self, member: Member, timeout: timedelta) -> None:
        """
        Args:
            member: this rank.
            timeout: for operations that name none.
        """
        self.collectives = Lane(member)
        self.timeout_seconds = timeout.total_seconds()
        self.issued = 0
        self._member = member
        self._pid = os.getpid()

    def start(
        self,
        name: str,
        steps: Steps[None],
        opts: Any,
        sources: Sequence[Operand],
        targets: Sequence[Operand],
        results: list[Tensor],
    ) -> dist.Work:
        """Run a collective if it is synchronous, otherwise issue it.

        Args:
            name: the collective's name, for messages.
            steps: the steps of the collective.
            opts: torch's options, with `timeout` and `asyncOp`.
            sources: operands that it reads.
            targets: operands that it writes.
            results: value of its future.

        Raises:
            RuntimeError: the group belongs to another process, or is broken.
        """
        self._require_usable()
        self.issued += 1
        event = self._event(name, sources or targets) if is_profiling() else None
        steps, driver, timeout = moved(steps, sources, targets), engine(), opts.timeout
        seconds = timeout.total_seconds() if timeout > NO_TIMEOUT else self.timeout_seconds
        # Older torch has no such option: it issues each collective, and waits for the work.
        if not getattr(opts, "asyncOp", True):
            has_run = True  # also if it fails
            try:
                has_run = driver.run(self.collectives, self._member, name, steps, seconds)
            finally:
                if event is not None and has_run:
                    event.end()
            if has_run:
                for target in targets:
                    target.synchronize()
                return _FINISHED
        work = Work(name, steps, seconds, results, targets, self.collectives, driver, event)
        driver.submit(self.collectives, work)
        return work

    def issue(self, name: str, steps: Steps[Any]) -> Work:
        """Put an operation without operands into the queue."""
        self._require_usable()
        event = self._event(name, ()) if is_profiling() else None
        lane, driver = self.collectives, engine()
        work = Work(name, steps, self.timeout_seconds, [], (), lane, driver, event)
        driver.submit(lane, work)
        return work

    def _event(self, name: str, operands: Sequence[Operand]) -> Event:
        return Event(self._member.backend, name, [operand.tensor for operand in operands])

    def _require_usable(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this {self._member.backend!r} group belongs to process {self._pid}; process "
                f"{os.getpid()}, forked from it, must make a group of its own"
            )
        if self._member.broken:
            raise broken_error(self._member)
