"""The part of a group that is on this host, and where its ranks meet the others."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dpbench.rendezvous.launch_variables import GLOO_INTERFACE
from dpbench.rendezvous.store import STORE_FILE

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, kw_only=True, slots=True)
class OneHost:
    """A group whose ranks are all on this host: they meet in a file, and talk over loopback.

    A store that listens on a port would accept anyone who connects as a rank; only its owner can
    read the folder of the file.
    """

    store_file: Path
    gloo_interface: str = field(
        default_factory=lambda: os.environ.get(GLOO_INTERFACE, LOOPBACK_INTERFACE)
    )

    def variables(self) -> dict[str, str]:
        """The environment variables of each rank."""
        return {STORE_FILE: str(self.store_file), GLOO_INTERFACE: self.gloo_interface}


@dataclass(frozen=True, kw_only=True, slots=True)
class SeveralHosts:
    """A group whose ranks are on several hosts."""

    address: str
    port: int
    """The port of the store through which the ranks of all hosts find each other."""
    size: int
    """Number of ranks on all hosts."""
    host: int
    """Index of this host among those that take part, from 0."""
    hosts: int
    variables: tuple[tuple[str, str], ...] = ()
    """Further environment variables with their values: the network interface."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Consecutive ranks that are on this host."""

    count: int
    first: int = 0
    meeting: SeveralHosts | OneHost | None = None
    """The meeting place; None if the ranks meet as torch's agent tells them, in a store on
    loopback."""

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)

    def variables(self, local_rank: int) -> dict[str, str]:
        """Variables that torch's agent, which only knows this host, has set differently."""
        if self.meeting is None:
            return {}
        if isinstance(self.meeting, OneHost):
            return self.meeting.variables()
        rank, size = str(self.first + local_rank), str(self.meeting.size)
        return {
            "RANK": rank,
            "ROLE_RANK": rank,
            "WORLD_SIZE": size,
            "ROLE_WORLD_SIZE": size,
            "GROUP_RANK": str(self.meeting.host),
            "GROUP_WORLD_SIZE": str(self.meeting.hosts),
            "MASTER_ADDR": self.meeting.address,
            "MASTER_PORT": str(self.meeting.port),
            **dict(self.meeting.variables),
        }
