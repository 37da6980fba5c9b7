"""Which ranks of a group one host runs, and where the ranks of the group meet."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dpbench.rendezvous.store import STORE_FILE

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, kw_only=True, slots=True)
class OneHost:
    """A group whose ranks are all on this host: they meet in a file, and talk over loopback.

    A store that listens on a port would take the place of a rank from whoever connects; the folder
    of the file is its owner's alone.
    """

    store_file: Path
    gloo_interface: str = field(
        default_factory=lambda: os.environ.get(GLOO_INTERFACE, LOOPBACK_INTERFACE)
    )

    def variables(self) -> dict[str, str]:
        """The environment variables of each rank."""
        return {STORE_FILE: str(self.store_file), GLOO_INTERFACE: self.gloo_interface}


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """What ranks must know that are not all on one host."""

    address: str
    port: int
    """The port of the store through which the ranks of all hosts find each other."""
    size: int
    """Ranks on all hosts."""
    host: int
    """The place of this host among those that take part, from 0."""
    hosts: int
    variables: tuple[tuple[str, str], ...] = ()
    """More environment variables, with their values: the network interface."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A run of consecutive ranks that are on this host."""

    count: int
    first: int = 0
    meeting: Meeting | OneHost | None = None
    """None where the ranks meet as torch's agent tells them, in a store on loopback."""

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)

    def variables(self, local_rank: int) -> dict[str, str]:
        """What torch's agent, which knows this host only, has set otherwise."""
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
