"""The place of this process in a job of several nodes, as its launcher describes it.

torchrun, Slurm, Open MPI, other launchers that speak PMI, and Kubernetes' indexed jobs each set
environment variables of their own. What they leave out is typed, or set as MASTER_ADDR.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from dpbench.errors import UsageError
from dpbench.rendezvous.launch_variables import LARGEST_PORT, USUAL_PORT, endpoint_text, integer

FIRST_HOST = re.compile(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,]*))?")
"""The first host in a list of Slurm's: "gpu[03-05,07]-ib,login1" begins with "gpu03-ib"."""
SLURM_PORTS = range(29_600, 30_600)
TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
DISCARD_PORT = 9
"""Port of RFC 863: the kernel needs a port to connect to, though nothing is sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """One process of a job; None stands for what the launcher does not say."""

    launcher: str
    rank: int
    size: int | None
    """Number of processes on all nodes."""
    local_rank: int = 0
    local_size: int = 1
    """Number of processes on this node."""
    node: int
    nodes: int | None
    address: str | None
    """Host of the first process."""
    port: int = USUAL_PORT
    has_store: bool = False
    """True if the launcher serves a store at that address and port."""


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
    token_is_new: bool = False
    """True if this node made the token, so that the others have to be told."""
    launcher: str | None = None
    """The launcher that placed this node; None if the command line did."""
    has_store: bool = False
    """True if the launcher serves the store; otherwise node 0 does."""
    join_timeout_seconds: float = 300.0
    lost_seconds: float = 10.0
    """Seconds without a sign of life after which a node counts as lost."""

    @property
    def endpoint(self) -> str:
        return endpoint_text(self.host, self.port)


def find(environ: Mapping[str, str]) -> Where | None:
    """This process's place, or None for a process that no launcher started.

    Raises UsageError for a variable with an unusable value.
    """
    try:
        for read in (_torchrun, _slurm, _open_mpi, _pmi, _kubernetes):
            if (found := read(environ)) is not None:
                return found
    except ValueError as error:
        raise UsageError(str(error)) from None
    return None


def forget(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of torchrun, since ranks that are started from here get their own."""
    for name in [*environ]:
        if name in TORCHRUN or name.startswith("TORCHELASTIC_"):
            del environ[name]


def rank_variables(where: Where) -> dict[str, str]:
    """The variables of torchrun for a process that another launcher started."""
    return {
        "RANK": str(where.rank),
        "WORLD_SIZE": str(where.size),
        "LOCAL_RANK": str(where.local_rank),
        "LOCAL_WORLD_SIZE": str(where.local_size),
        "GROUP_RANK": str(where.node),
        "MASTER_PORT": str(where.port),
        **({"MASTER_ADDR": where.address} if where.address else {}),
    }


def _torchrun(environ: Mapping[str, str]) -> Where | None:
    """torchrun, dpbench launch, and all that set RANK, WORLD_SIZE and MASTER_ADDR."""
    if "RANK" not in environ or environ.get("WORLD_SIZE", "1") == "1":
        return None
    size = integer(environ, "WORLD_SIZE", 1)
    rank = integer(environ, "RANK", 0, size - 1)
    local_size = integer({"LOCAL_WORLD_SIZE": "1", **environ}, "LOCAL_WORLD_SIZE", 1)
    place = {
        "LOCAL_RANK": str(rank % local_size),
        "GROUP_RANK": str(rank // local_size),
        "GROUP_WORLD_SIZE": str(-(-size // local_size)),
        **environ,
    }
    is_torchrun = "TORCHELASTIC_RUN_ID" in environ
    return Where(
        launcher="torchrun" if is_torchrun else "the launcher that set RANK",
        rank=rank,
        size=size,
        local_rank=integer(place, "LOCAL_RANK", 0),
        local_size=local_size,
        node=integer(place, "GROUP_RANK", 0),
        nodes=integer(place, "GROUP_WORLD_SIZE", 1),
        address=environ.get("MASTER_ADDR"),
        port=_port(environ),
        has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _slurm(environ: Mapping[str, str]) -> Where | None:
    """A step of srun; a batch script is no step, and has no place."""
    if "SLURM_STEP_NUM_TASKS" not in environ or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return None
    hosts = FIRST_HOST.match(environ.get("SLURM_STEP_NODELIST", ""))
    job, step = (int(environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = SLURM_PORTS[(job + step) % len(SLURM_PORTS)]
    nodes = integer(environ, "SLURM_STEP_NUM_NODES", 1)
    size = integer(environ, "SLURM_STEP_NUM_TASKS", 1)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    return Where(
        launcher="srun",
        rank=integer(environ, "SLURM_PROCID", 0),
        size=size,
        local_rank=integer(environ, "SLURM_LOCALID", 0),
        # "4(x2),3" says 4 tasks on each of two nodes, and 3 on the next one.
        local_size=int(found[0]) if (found := re.match(r"\d+", tasks)) else -(-size // nodes),
        node=integer(environ, "SLURM_NODEID", 0),
        nodes=nodes,
        address=environ.get("MASTER_ADDR") or ("".join(filter(None, hosts.groups())) or None)
        if hosts
        else None,
        port=_port(environ, port),
    )


def _open_mpi(environ: Mapping[str, str]) -> Where | None:
    return _mpi(
        environ,
        "mpirun",
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )


def _pmi(environ: Mapping[str, str]) -> Where | None:
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return _mpi(environ, "the PMI launcher", *names)


def _mpi(
    environ: Mapping[str, str], launcher: str, rank: str, size: str, local_rank: str, local: str
) -> Where | None:
    """MPI names no host: MASTER_ADDR does. Each node must have the same number of processes."""
    if rank not in environ or environ.get(size, "1") == "1":
        return None
    found, of = integer(environ, rank, 0), integer(environ, size, 1)
    local_size = integer({local: "1", **environ}, local, 1)
    return Where(
        launcher=launcher,
        rank=found,
        size=of,
        local_rank=integer({local_rank: str(found % local_size), **environ}, local_rank, 0),
        local_size=local_size,
        node=found // local_size,
        nodes=-(-of // local_size),
        address=environ.get("MASTER_ADDR"),
        port=_port(environ),
    )


def _kubernetes(environ: Mapping[str, str]) -> Where | None:
    """A pod of an indexed job, which does not know how many there are: --nnodes says it."""
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    node = integer(environ, "JOB_COMPLETION_INDEX", 0)
    nodes = integer(environ, "WORLD_SIZE", 1) if "WORLD_SIZE" in environ else None
    return Where(
        launcher="Kubernetes",
        rank=node,
        size=nodes,
        node=node,
        nodes=nodes,
        address=environ.get("MASTER_ADDR"),
        port=_port(environ),
    )


def _port(environ: Mapping[str, str], otherwise: int = USUAL_PORT) -> int:
    if "MASTER_PORT" not in environ:
        return otherwise
    return integer(environ, "MASTER_PORT", 1, LARGEST_PORT)


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
