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
from dpbench.rendezvous.placement import PLACE_VARIABLES, Placement

LAUNCHERS = (
    PLACE_VARIABLES,
    "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID - SLURM_NODEID SLURM_STEP_NUM_NODES",
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
    "OMPI_COMM_WORLD_LOCAL_SIZE - -",
    "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS - -",
)
"""The variables of torchrun, srun, mpirun and other launchers with PMI, as in PLACE_VARIABLES."""
TORCHRUN = (
    *PLACE_VARIABLES.split(),
    *("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""


def find_placement(environ: Mapping[str, str]) -> Placement | None:
    """This process's place, or None for a process that no launcher started, or that is alone.

    Raises UsageError for a variable with an unusable value.
    """
    for variables in LAUNCHERS:
        rank, world_size, *_ = variables.split()
        if rank in environ and environ.get(world_size, "1") != "1":
            try:
                return Placement.read(environ, variables, address="", local_size=1)
            except ValueError as error:
                raise UsageError(str(error)) from None
    return None


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
            if any(entry.address.partition("%")[0] == source for entry in addresses):
                return str(name)
    return None
