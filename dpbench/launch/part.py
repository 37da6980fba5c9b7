"""Which ranks of a group one host runs, and where the ranks of all hosts meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """What ranks must know that are not all on one host."""

    address: str
    port: int
    """Of the store through which the ranks of all hosts find each other."""
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
    meeting: Meeting | None = None
    """None where they are the whole group: then torch's agent says all that they must know."""

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)

    def variables(self, local_rank: int) -> dict[str, str]:
        """What torch's agent, which knows this host only, has set otherwise."""
        if self.meeting is None:
            return {}
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
