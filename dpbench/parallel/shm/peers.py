"""The processes of the other ranks: whether they share memory, and whether they are still alive."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from pathlib import Path


def host_key() -> str:
    """Equal for processes of one host and one container, which can open each other's memory.

    The kernel's boot id is the same for all containers of a machine, the PID namespace is not.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


class Peers:
    """Shows which ranks have ended, without waiting for them."""

    def __init__(self, pids: Sequence[int], rank: int) -> None:
        """
        Args:
            pids: process ids of all ranks.
            rank: this process's rank, which is not watched.

        Raises:
            OSError: a process is gone already, or no more descriptors are available.
        """
        self.pids = list(pids)
        self._rank_of: dict[int, int] = {}
        # Reentrant, since the garbage collector may call `close` in a thread that holds the lock.
        self._lock = threading.RLock()
        try:
            for peer, pid in enumerate(pids):
                if peer != rank:
                    self._rank_of[os.pidfd_open(pid)] = peer
        except OSError:
            self.close()
            raise

    def ended(self) -> set[int]:
        """The ranks whose processes have ended."""
        # Not during `close`: the number of a closed descriptor is soon used for another file.
        with self._lock:
            poll = select.poll()
            for descriptor in self._rank_of:
                # A pidfd is readable as soon as the process ends, before its parent notices.
                poll.register(descriptor, select.POLLIN)
            return {self._rank_of[number] for number, what in poll.poll(0) if what & select.POLLIN}

    def close(self) -> None:
        """Stop watching the processes."""
        with self._lock:
            descriptors, self._rank_of = self._rank_of, {}
            for descriptor in descriptors:
                os.close(descriptor)
