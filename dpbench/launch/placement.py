"""The place of this process in a job of several nodes, as its launcher describes it.

torchrun, Slurm, Open MPI, other launchers that speak PMI, and Kubernetes' indexed jobs each set
environment variables of their own. What they leave out is typed, or set as MASTER_ADDR.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from dpbench.errors import UsageError
from dpbench.rendezvous.launch_variables import (
    LARGEST_PORT,
    USUAL_PORT,
    endpoint_text,
    integer,
)

LAUNCHERS = {
    "torchrun": "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE",
    "srun": "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID - SLURM_NODEID SLURM_STEP_NUM_NODES",
    "mpirun": "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
    "OMPI_COMM_WORLD_LOCAL_SIZE - -",
    "the PMI launcher": "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS - -",
    "Kubernetes": "JOB_COMPLETION_INDEX WORLD_SIZE - - - -",
}
"""The variables of each launcher for the fields rank, size, local_rank, local_size, node and
node_count of Placement. What one does not set is computed, as if each node had the same number of
processes."""
TORCHRUN = (
    *LAUNCHERS["torchrun"].split(),
    *("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One process of a job; None stands for what the launcher does not say."""

    rank: int
    size: int | None
    """Number of processes on all nodes."""
    local_rank: int = 0
    local_size: int = 1
    """Number of processes on this node."""
    node: int = 0
    node_count: int | None = None
    address: str | None = None
    """Host of the first process."""
    port: int = USUAL_PORT
    has_store: bool = False
    """True if the launcher serves a store at that address and port."""

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which torchrun says the same; without what is not known."""
        values = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.node,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """The meeting place of the nodes of a sweep, and this node's number."""

    node_count: int
    node_rank: int
    host: str
    """Name or address of node 0."""
    port: int
    token: str = field(repr=False)
    """The secret that signs what the nodes say."""
    has_store: bool = False
    """True if the launcher serves the store; otherwise node 0 does."""

    @property
    def endpoint(self) -> str:
        return endpoint_text(self.host, self.port)


def find_placement(environ: Mapping[str, str]) -> Placement | None:
    """This process's place, or None for a process that no launcher started, or that is alone.

    Raises UsageError for a variable with an unusable value.
    """
    for launcher, variables in LAUNCHERS.items():
        names = variables.split()
        alone = environ.get(names[1], "" if launcher == "Kubernetes" else "1") == "1"
        if names[0] in environ and not alone:
            break
    else:
        return None

    def read(name: str, otherwise: Any, smallest: int, largest: int | None = None) -> Any:
        return integer(environ, name, smallest, largest) if name in environ else otherwise

    try:
        size = read(names[1], None, 1)
        rank = integer(environ, names[0], 0, None if size is None else size - 1)
        nodes = read(names[5], None, 1)
        local_size = read(names[3], -(-size // nodes) if size and nodes else 1, 1)
        return Placement(
            rank=rank,
            size=size,
            local_rank=read(names[2], rank % local_size, 0),
            local_size=local_size,
            node=read(names[4], rank // local_size, 0),
            node_count=nodes or (size and -(-size // local_size)),
            address=environ.get("MASTER_ADDR"),
            port=read("MASTER_PORT", USUAL_PORT, 1, LARGEST_PORT),
            has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def remove_torchrun_variables(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of torchrun, since ranks that are started from here get their own."""
    for name in [*environ]:
        if name in TORCHRUN or name.startswith("TORCHELASTIC_"):
            del environ[name]


def interface_towards(host: str) -> str | None:
    """The network interface by which packets to `host` leave; None if that cannot be found out.

    gloo and NCCL would otherwise take the one that has the address of this host's own name, which
    may be the loopback. No packet is sent.
    """
    with suppress(OSError, UnicodeError):
        family, _, _, _, (address, _, *rest) = socket.getaddrinfo(host, 0)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as packets:
            packets.connect((address, DISCARD_PORT, *rest))
            own = packets.getsockname()[0]
        if own.startswith("127.") and host != "localhost" and not host.startswith("127."):
            return None  # this host knows its own name as a loopback address
        for name, addresses in psutil.net_if_addrs().items():
            if any(one.address.partition("%")[0] == own for one in addresses):
                return str(name)
    return None
