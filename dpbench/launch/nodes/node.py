"""A node of a sweep: its options from the command line, and the resources of one host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dpbench.environment import Environment
from dpbench.launch.machine import Machine
from dpbench.rendezvous.launch_variables import endpoint_text

Say = Callable[[str], None]
"""Prints a line."""
DEFAULT_JOB_ID = "dpbench"
JOIN_TIMEOUT_SECONDS = 300.0
LOST_SECONDS = 10.0
"""Seconds without a sign of life after which a node counts as lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """Where the nodes of a sweep meet, and which of them this one is."""

    node_count: int
    node_rank: int
    host: str
    """Host of the endpoint: a name or an address of node 0."""
    port: int
    token: str = field(repr=False)
    """The secret of the sweep: anyone who does not prove it is told nothing."""
    token_is_new: bool = False
    """True if this node made the token, so that the others have to be told."""
    job_id: str = DEFAULT_JOB_ID
    """Distinguishes this sweep from another one at the same endpoint."""
    address: str | None = None
    """Address of this host: node 0 listens on it. None means the endpoint's address (node 0), or
    the address from which the endpoint is reached."""
    interface: str | None = None
    """The network interface for gloo and NCCL; None means the one that has the address."""
    join_timeout_seconds: float = JOIN_TIMEOUT_SECONDS
    lost_seconds: float = LOST_SECONDS

    @property
    def endpoint(self) -> str:
        return endpoint_text(self.host, self.port)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a sweep."""

    number: int
    address: str
    interface: str | None
    """The network interface; None if no interface of this host is known to have the address."""
    environment: Environment
    machine: Machine
    devices: tuple[str, ...]
    """Devices for the sweep, in the order in which replicas take them."""
    options: tuple[tuple[str, ...], ...] = ()
    """The command's options, as (name, value), that must be equal on all nodes."""

    @property
    def hostname(self) -> str:
        return self.environment.hostname

    @property
    def cores(self) -> int:
        return self.machine.cores

    @property
    def name(self) -> str:
        """Name for messages: "node 1 (host1)"."""
        return f"node {self.number} ({self.hostname})"
