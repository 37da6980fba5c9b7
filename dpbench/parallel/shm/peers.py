"""The processes of the other ranks: their identities, and whether they are still alive."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process and the machine it runs on; the ranks exchange these when they meet.

    Attributes:
        host: the name of the machine, for people.
        boot: the kernel's boot id; the same for all containers of a machine.
        namespace: the PID namespace.
        memory: the descriptor that holds the group's memory; only rank 0 has one, others have -1.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    memory: int

    @classmethod
    def of_this_process(cls, memory: int = -1) -> Identity:
        return cls(
            host=os.uname().nodename,
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            namespace=str(Path("/proc/self/ns/pid").readlink()),
            pid=os.getpid(),
            memory=memory,
        )

    def shares_memory_with(self, other: Identity) -> bool:
        """Whether both are on one host and in one container, so that one can open the other's
        memory."""
        return (self.boot, self.namespace) == (other.boot, other.namespace)


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

    def is_stopped(self, rank: int) -> bool:
        """Whether the process is stopped, by SIGSTOP or a debugger."""
        try:
            status = Path(f"/proc/{self.pids[rank]}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] in "Tt"

    def close(self) -> None:
        """Stop watching the processes."""
        with self._lock:
            descriptors, self._rank_of = self._rank_of, {}
            for descriptor in descriptors:
                os.close(descriptor)
