"""Identification of a process by its pid and start time, since pids are reused (Linux)."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self


def started_ticks(pid: int) -> int:
    """The start of the process, in clock ticks since the host started.

    Field 22 of proc_pid_stat(5), which everybody may read; 0 if the process has ended.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    _, _, fields = stat.rpartition(")")  # behind the name, which may hold anything
    return int(fields.split()[19])


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this host, whatever has its number later."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, started_ticks(pid))

    def kill(self) -> bool:
        """Ends it at once; tells whether it was there."""
        try:
            with self._handle() as descriptor:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def wait(self) -> None:
        """Returns when it has ended; sleeps in the kernel until then."""
        with suppress(ProcessLookupError), self._handle() as descriptor:
            ended = select.poll()  # unlike select, for descriptors beyond 1023 too
            ended.register(descriptor, select.POLLIN)
            ended.poll()

    @contextmanager
    def _handle(self) -> Iterator[int]:
        """A pidfd of exactly this process; raises ProcessLookupError if it has ended."""
        descriptor = os.pidfd_open(self.pid)
        try:
            # Read while the descriptor keeps the number from other processes.
            if started_ticks(self.pid) != self.started_ticks:
                raise ProcessLookupError
            yield descriptor
        finally:
            os.close(descriptor)
