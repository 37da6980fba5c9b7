"""The place of this process as its launcher describes it, and the way from it to other nodes.

torchrun, Slurm, Open MPI, and other launchers that speak PMI each set environment variables of
their own. What they leave out is typed, or set as MASTER_ADDR.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

import psutil

from dpbench.errors import UsageError
from dpbench.rendezvous.placement import (
    AGENT_STORE_VARIABLE,
    MAX_PORT,
    USUAL_PORT,
    Placement,
    integer,
)

LAUNCHERS = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE",
    "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID - SLURM_NODEID SLURM_STEP_NUM_NODES",
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
    "OMPI_COMM_WORLD_LOCAL_SIZE - -",
    "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS - -",
)
"""The variables of torchrun, srun, mpirun and other launchers with PMI for the first six fields of
Placement. What one does not set is computed, as if each node had the same number of processes."""
TORCHRUN = (
    *LAUNCHERS[0].split(),
    *("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""


def find_placement(environ: Mapping[str, str]) -> Placement | None:
    """This process's place, or None for a process that no launcher started, or that is alone.

    Raises UsageError for a variable with an unusable value.
    """
    known = [variables.split() for variables in LAUNCHERS]
    names = next((n for n in known if n[0] in environ and environ.get(n[1], "1") != "1"), None)
    if names is None:
        return None
    try:
        size = integer(environ, names[1], 1)
        rank = integer(environ, names[0], 0, size - 1)
        nodes = integer(environ, names[5], 1, default=0)
        local_size = integer(environ, names[3], 1, default=-(-size // nodes) if nodes else 1)
        return Placement(
            rank=rank,
            world_size=size,
            local_rank=integer(environ, names[2], 0, default=rank % local_size),
            local_size=local_size,
            node=integer(environ, names[4], 0, default=rank // local_size),
            node_count=nodes or -(-size // local_size),
            address=environ.get("MASTER_ADDR", ""),
            port=integer(environ, "MASTER_PORT", 1, MAX_PORT, USUAL_PORT),
            has_store=environ.get(AGENT_STORE_VARIABLE) == "True",
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
            source = packets.getsockname()[0]
        if source.startswith("127.") and host != "localhost" and not host.startswith("127."):
            return None  # this host knows its own name as a loopback address
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address.partition("%")[0] == source for each in addresses):
                return str(name)
    return None
