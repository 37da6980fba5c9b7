"""Identification of a process by its pid and start time, since pids are reused."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

POLL_SECONDS = 1.0


def started_ticks(pid: int) -> int | None:
    """The start of the process, in clock ticks since the host started.

    Field 22 of proc_pid_stat(5), which everybody may read; None if there is none to see.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    _, _, fields = stat.rpartition(")")  # behind the name, which may hold anything
    return int(fields.split()[19])


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this host, whatever has its number later."""

    pid: int
    started_ticks: int | None
    """None where the system does not tell; the number then has to do."""

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, started_ticks(pid))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` gives; raises ValueError."""
        pid, _, ticks = text.partition(" ")
        return cls(int(pid), int(ticks) if ticks else None)

    def __str__(self) -> str:
        return str(self.pid) if self.started_ticks is None else f"{self.pid} {self.started_ticks}"

    def kill(self) -> bool:
        """Ends it at once; tells whether it was there."""
        try:
            if not hasattr(os, "pidfd_open"):  # not Linux
                os.kill(self.pid, signal.SIGKILL)
                return True
            with closing(_Handle(self)) as handle:
                signal.pidfd_send_signal(handle.descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def wait(self) -> None:
        """Returns when it has ended; sleeps in the kernel until then."""
        with suppress(ProcessLookupError):
            if hasattr(os, "pidfd_open"):  # Linux
                with closing(_Handle(self)) as handle:
                    ended = select.poll()  # unlike select, for descriptors beyond 1023 too
                    ended.register(handle.descriptor, select.POLLIN)
                    ended.poll()
                return
            while True:
                os.kill(self.pid, 0)
                time.sleep(POLL_SECONDS)


class _Handle:
    """A pidfd of exactly that process; raises ProcessLookupError if it has ended."""

    def __init__(self, process: ProcessIdentity) -> None:
        self.descriptor = os.pidfd_open(process.pid)
        now = started_ticks(process.pid)  # the handle's own, as it keeps the number from others
        if now != process.started_ticks and None not in (now, process.started_ticks):
            self.close()
            raise ProcessLookupError

    def close(self) -> None:
        os.close(self.descriptor)
