"""A node of a sweep: what was asked for on the command line, and what one host offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dpbench.environment import Environment
from dpbench.launch.machine import Machine

Say = Callable[[str], None]
"""Prints a line."""
DEFAULT_JOB_ID = "dpbench"
JOIN_TIMEOUT_SECONDS = 300.0
LOST_SECONDS = 10.0
"""Without a sign of life for so long, a node counts as lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """Where the nodes of a sweep meet, and which of them this one is."""

    node_count: int
    node_rank: int
    host: str
    """Of the endpoint: a name or an address of node 0."""
    port: int
    token: str = field(repr=False)
    """The secret of the sweep: who does not prove it is told nothing."""
    token_is_new: bool = False
    """Made by this node, so that the others have to be told."""
    job_id: str = DEFAULT_JOB_ID
    """Tells this sweep from another one that uses the same endpoint."""
    address: str | None = None
    """Of this host: node 0 listens on it. None: where the endpoint points to (node 0), or the
    address from which the endpoint is reached."""
    interface: str | None = None
    """The network interface of gloo and NCCL; None: the one that has the address."""
    join_timeout_seconds: float = JOIN_TIMEOUT_SECONDS
    lost_seconds: float = LOST_SECONDS

    @property
    def endpoint(self) -> str:
        """As people write it: "host0:29503", "[::1]:29503"."""
        return endpoint_text(self.host, self.port)


def endpoint_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a sweep."""

    number: int
    address: str
    interface: str | None
    """None where no interface of this host is known to have the address."""
    environment: Environment
    machine: Machine
    devices: tuple[str, ...]
    """Those that it lends to the sweep, in the order in which replicas take them."""
    options: tuple[tuple[str, ...], ...] = ()
    """Of the command, (name, value): those that must be the same on all nodes."""

    @property
    def hostname(self) -> str:
        return self.environment.hostname

    @property
    def cores(self) -> int:
        return self.machine.cores

    @property
    def name(self) -> str:
        """As reasons and lines call it: "node 1 (host1)"."""
        return f"node {self.number} ({self.hostname})"
