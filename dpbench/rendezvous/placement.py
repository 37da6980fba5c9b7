"""The place of a process among those of a launch, and the way from it to other nodes.

The environment variables that give it are read strictly, and made for ranks that dpbench starts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from dpbench.errors import UsageError

LOOPBACK = "127.0.0.1"
USUAL_PORT = 29500  # torch's own
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable with the network interface that gloo takes."""
STORE_FILE = "DPBENCH_STORE_FILE"
STORE_PREFIX = "DPBENCH_STORE_PREFIX"
LAUNCH_REMEDY = "start it with torchrun or dpbench launch"
AGENT_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that is "True" if the launcher serves the store."""
MAX_PORT = 65_535
PLACE_VARIABLES = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"
"""Variables of torchrun for the first six fields of Placement. Those after the first two are
computed if a launcher does not set them, as if each node had the same number of processes."""
LAUNCHERS = (
    PLACE_VARIABLES,
    "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID - SLURM_NODEID SLURM_STEP_NUM_NODES",
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
    "OMPI_COMM_WORLD_LOCAL_SIZE - -",
    "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS - -",
)
"""The variables of torchrun, srun, mpirun and other launchers with PMI, as in PLACE_VARIABLES."""
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The place of a process among those of a launch, and where they meet."""

    rank: int
    world_size: int
    """Number of processes on all nodes."""
    local_rank: int = 0
    local_size: int = 1
    """Number of processes on this node."""
    node: int = 0
    node_count: int = 1
    address: str = ""
    """Name or address of the host of the first process; empty if the launcher does not say it."""
    port: int = USUAL_PORT
    has_store: bool = False
    """True if the launcher serves a store at that address and port; otherwise rank 0 does."""
    store_file: str = ""
    """File in which processes of one node meet instead: a store that listens on a port would accept
    anyone who connects as a rank, and only its owner can read the folder of the file."""
    store_prefix: str = ""
    """Prefix of their keys, as trials may share a store."""

    @classmethod
    def first_of(cls, count: int, port: int = USUAL_PORT, store_file: str = "") -> Placement:
        """The place of the first of `count` processes on this host, which this one starts and
        serves a store for, or else gives a file."""
        return cls(
            rank=0,
            world_size=count,
            local_size=count,
            address=LOOPBACK,
            port=port,
            has_store=True,
            store_file=store_file,
        )

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        variables: str = PLACE_VARIABLES,
        address: str = LOOPBACK,
        local_size: int | None = None,
    ) -> Placement:
        """Read the place of this process from its launcher's variables, of which the first two have
        to be set, and where the launch meets from MASTER_ADDR (default `address`) and MASTER_PORT.
        Each node has `local_size` processes, by default all, where the launcher does not say it.

        Raises:
            ValueError: a variable is missing or invalid; the message has its name and value.
        """
        names = variables.split()
        size = integer(environ, names[1], 1)
        rank = integer(environ, names[0], 0, size - 1)
        nodes = integer(environ, names[5], 1, default=0)
        usual_size = -(-size // nodes) if nodes else local_size or size
        local_size = integer(environ, names[3], 1, size, default=usual_size)
        most_local = local_size if names[3] in environ else size
        return cls(
            rank=rank,
            world_size=size,
            local_rank=integer(environ, names[2], 0, most_local - 1, rank % local_size),
            local_size=local_size,
            node=integer(environ, names[4], 0, default=rank // local_size),
            node_count=nodes or -(-size // local_size),
            address=environ.get("MASTER_ADDR", address),
            port=integer(environ, "MASTER_PORT", 1, MAX_PORT, USUAL_PORT),
            has_store=environ.get(AGENT_STORE_VARIABLE) == "True",
            store_file=environ.get(STORE_FILE, ""),
            store_prefix=environ.get(STORE_PREFIX, ""),
        )

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which torchrun gives a process its place, and its own of all workers."""
        here = (self.rank, self.world_size, self.local_rank, self.local_size)
        place = map(str, (*here, self.node, self.node_count))
        return {
            **dict(zip(PLACE_VARIABLES.split(), place, strict=True)),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            AGENT_STORE_VARIABLE: str(self.has_store),
            STORE_FILE: self.store_file,
            STORE_PREFIX: self.store_prefix,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_RUN_ID": "dpbench",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }

    @property
    def interface_variables(self) -> dict[str, str]:
        """The variables by which gloo, and NCCL between nodes, take the network interface towards
        where the processes meet, or the one that the user has chosen for gloo."""
        interface = os.environ.get(GLOO_INTERFACE) or interface_towards(self.address)
        if interface is None:
            return {}
        nccl = {"NCCL_SOCKET_IFNAME": f"={interface}"} if self.node_count > 1 else {}
        return {GLOO_INTERFACE: interface, **nccl}


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


def local_gpu_index(rank: int, world_size: int, environ: Mapping[str, str]) -> int:
    """The index of the GPU for this process, among those that it sees.

    It is the local rank of `Placement.read`: LOCAL_RANK, else rank % LOCAL_WORLD_SIZE, else rank. A
    process that sees only one GPU through CUDA_VISIBLE_DEVICES, as when each process was started by
    hand for its own GPU, takes that one: index 0. Raises ValueError as `Placement.read`.
    """
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    local_rank = Placement.read({**environ, **place}).local_rank
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return 0 if visible and "," not in visible else local_rank


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


def endpoint_text(host: str, port: int) -> str:
    """The endpoint as people write it: "host0:29503", "[::1]:29503"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(text: str) -> tuple[str, int] | None:
    """Host and port of "host0:29503" or "[::1]:29503"; None for anything else."""
    with suppress(ValueError):  # of the port
        url = urlsplit(f"//{text.strip()}")
        if url.hostname and url.port:
            return url.hostname, url.port
    return None


def integer(
    environ: Mapping[str, str],
    name: str,
    smallest: int,
    largest: int | None = None,
    default: int | None = None,
) -> int:
    """The variable `name` as an integer within the limits; ValueError with its value otherwise, or
    if it is not set and has no default."""
    if name not in environ and default is not None:
        return default
    between = f"from {smallest} to {largest}" if largest is not None else f"of {smallest} or more"
    expected = f"expected an integer {between}; {LAUNCH_REMEDY}"
    if name not in environ:
        raise ValueError(f"the environment variable {name} is not set, {expected}")
    text = environ[name]
    value = int(text) if text.isascii() and text.isdecimal() else -1
    if value < smallest or (largest is not None and value > largest):
        raise ValueError(f"got {name}={text!r}, {expected}")
    return value
