"""The nodes that a sweep runs on: those of --nnodes and its options, or those of a launcher.

torchrun and `dpbench launch` start a process for every replica, a sweep starts fresh ones for every
trial. So the first process of each node takes part with as many replicas as its node has processes,
and the others wait for its end.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dpbench.errors import UsageError
from dpbench.launch.nodes.handshake import OPTION, VARIABLE, given_token, new_token
from dpbench.launch.nodes.node import NodeRequest
from dpbench.options.bridge import option_name
from dpbench.options.shared import NodeOptions
from dpbench.rendezvous.launch_variables import LARGEST_PORT, LaunchVariables, endpoint_text
from dpbench.rendezvous.launch_variables import integer as integer_variable
from dpbench.values import integer, shorten

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


MOST_NODES = 1024
LONGEST_INTERFACE = 15
"""The limit of Linux: IFNAMSIZ is 16 with the zero at the end."""
WORLD_OPTIONS = ("nnodes", "node_rank", "rdzv_endpoint")
"""Options that the world of a launcher answers."""
WORLD_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
ROLE_VARIABLES = ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
ELASTIC_PREFIX = "TORCHELASTIC_"
STORE_TIMEOUT = timedelta(minutes=5)
LONGEST_SWEEP = timedelta(days=30)


def parse_nodes(options: NodeOptions, notes: list[str]) -> NodeRequest | None:
    """None for a sweep on this host alone; raises UsageError for what cannot be."""
    if options.nnodes is None:
        _refuse_without_nnodes(options)
        return None
    count = _node_count(options.nnodes)
    rank = _node_rank(options.node_rank, count)
    if count == 1:
        notes.append("--nnodes 1: this node alone; nobody is waited for")
        return None
    if options.rdzv_endpoint is None:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint: where node 0 can be reached, as in "
            "host0:29503"
        )
    host, port = parse_endpoint("--rdzv-endpoint", options.rdzv_endpoint)
    token = given_token(options.token_file, os.environ)
    if token is None and rank > 0:
        raise UsageError(
            f"--node-rank {rank} needs the token of the sweep; expected {VARIABLE} as node 0 "
            f"prints it, or {OPTION} with the same token as there"
        )
    return NodeRequest(
        node_count=count,
        node_rank=rank,
        host=host,
        port=port,
        token=token or new_token(),
        token_is_new=token is None,
        address=_word("--local-addr", options.local_addr, "an address of this node"),
        interface=_interface(options.interface),
    )


def require_one_architecture(architectures: Sequence[str]) -> None:
    """Raises UsageError for several: other nodes prepare the data of one."""
    if len(architectures) > 1:
        raise UsageError(
            f"--nnodes with --arch {','.join(architectures)}: a sweep over several nodes measures "
            "one architecture; expected one name, or a sweep for each",
            about=("arch", "nnodes"),
        )


def parse_endpoint(option: str, text: str) -> tuple[str, int]:
    """Reads "host0:29503" or "[::1]:29503"; raises UsageError for anything else."""
    host, colon, port = text.strip().rpartition(":")
    expected = "expected HOST:PORT, as in host0:29503 or [fe80::1]:29503"
    if not colon or port.endswith("]"):
        raise UsageError(f"{option} {shorten(text)}: no port; {expected}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{option} {shorten(text)}: an IPv6 address needs brackets; {expected}")
    if not host or not host.isprintable() or {*host} & {*" []/"}:
        raise UsageError(f"{option} {shorten(text)}: {shorten(host)} is not a host; {expected}")
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(LARGEST_PORT))):
        raise UsageError(f"{option} {shorten(text)}: {shorten(port)} is not a port; {expected}")
    if not 1 <= int(port) <= LARGEST_PORT:
        raise UsageError(
            f"{option} {shorten(text)}: port {int(port)}; expected one from 1 to {LARGEST_PORT}"
        )
    return host, int(port)


def _node_count(text: str) -> int:
    smallest, colon, largest = text.partition(":")
    if colon and smallest.isdecimal() and largest.isdecimal():
        raise UsageError(
            f"--nnodes {shorten(text)}: a range is for jobs that may change their size; a sweep "
            f"measures given sizes: expected one number, as in --nnodes {largest}"
        )
    count = integer("--nnodes", text, least=1)
    if count > MOST_NODES:
        raise UsageError(f"--nnodes {count}: expected at most {MOST_NODES}")
    return count


def _node_rank(text: str | None, count: int) -> int:
    if text is None:
        raise UsageError(
            f"--nnodes {count} needs --node-rank: 0 on the node that records, another on every "
            "other node"
        )
    rank = integer("--node-rank", text, least=0)
    if rank >= count:
        last = f"from 0 to {count - 1}" if count > 1 else "0"
        raise UsageError(f"--node-rank {rank}: expected {last}, as --nnodes is {count}")
    return rank


def _refuse_without_nnodes(options: NodeOptions) -> None:
    for name in NodeOptions.model_fields:
        if getattr(options, name) is not None:
            option = option_name(NodeOptions, name)
            raise UsageError(
                f"{option} is for several nodes; add --nnodes, or leave {option} out",
                about=(name,),
            )


def _interface(text: str | None) -> str | None:
    found = _word("--interface", text, "a network interface")
    if found is not None and (len(found) > LONGEST_INTERFACE or "/" in found):
        raise UsageError(
            f"--interface {shorten(found)}: expected the name of a network interface, as in eth0"
        )
    return found


def _word(option: str, text: str | None, expected: str) -> str | None:
    if text is not None and (not text or not text.isprintable() or " " in text):
        raise UsageError(f"{option}: expected {expected}, got {shorten(text)}")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This process and the others, according to torchrun."""

    local_rank: int
    local_size: int
    """Processes on this node."""
    node: int
    nodes: int
    variables: LaunchVariables
    """The launcher's variables, with the address and port of its store."""
    environ: Mapping[str, str]
    """All that was told."""

    def options(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were typed, with what the world says; raises UsageError for options
        that say otherwise."""
        for name in WORLD_OPTIONS:
            if name in typed:
                option = option_name(NodeOptions, name)
                raise UsageError(
                    f"{option}: the launcher says which nodes there are; leave {option} out, or "
                    "run dpbench without torchrun"
                )
        if typed.get("gpus") not in (None, str(self.local_size)):
            raise UsageError(
                f"--gpus {typed['gpus']}: the launcher has started {self.local_size} on this node; "
                "leave --gpus out"
            )
        if self.nodes > 1 and "token_file" not in typed and VARIABLE not in os.environ:
            raise UsageError(
                f"{self.nodes} nodes need a token that they share, and the launcher cannot pass a "
                f"secret on; set {VARIABLE} to the same one on all nodes, or give {OPTION}"
            )
        return {**typed, "gpus": str(self.local_size), **self._meeting()}

    def _meeting(self) -> dict[str, str]:
        if self.nodes == 1:
            return {}
        return {
            "nnodes": str(self.nodes),
            "node_rank": str(self.node),
            "rdzv_endpoint": self._endpoint(),
        }

    def _endpoint(self) -> str:
        """Endpoint of the first node, which chooses a port and tells the others."""
        store, key = self._store(), "dpbench/port"
        if self.node == 0:
            store.set(key, str(free_port(self.variables.address)))
        return endpoint_text(self.variables.address, int(store.get(key).decode()))

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """At the end the other processes of this node may end too."""
        try:
            yield
        finally:
            self._store().set(self._over, "")

    def wait(self) -> None:
        """Waits for the end of this node's first process; the launcher notices one that dies."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._store().wait([self._over], LONGEST_SWEEP)

    @property
    def _over(self) -> str:
        return f"dpbench/over/{self.node}"

    def _store(self) -> Store:
        from dpbench.rendezvous.store import open_store

        return open_store(self.variables, self.environ, STORE_TIMEOUT)


def take_world() -> World | None:
    """The world that this process was started in, or None; the environment forgets it, as ranks
    that are started from here live in another one.

    Raises UsageError for one that is not torchrun's.
    """
    from dpbench.measure.allocator import forget_launch

    forget_launch(os.environ)  # --allocator says what trials do with freed memory
    if os.environ.get("RANK") is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return None
    missing = [name for name in WORLD_VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(
            f"this process is rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, but "
            f"{_listed(missing)}; dpbench starts the ranks itself: run it once on every node, with "
            "--nnodes and --node-rank, or unset RANK and WORLD_SIZE"
        )
    world = _read({**os.environ})
    for name in [
        *WORLD_VARIABLES,
        *ROLE_VARIABLES,
        *(n for n in os.environ if n.startswith(ELASTIC_PREFIX)),
    ]:
        os.environ.pop(name, None)
    return world


def _read(environ: Mapping[str, str]) -> World:
    try:
        return World(
            variables=LaunchVariables.read(environ),
            local_rank=integer_variable(environ, "LOCAL_RANK", 0),
            local_size=integer_variable(environ, "LOCAL_WORLD_SIZE", 1),
            node=integer_variable(environ, "GROUP_RANK", 0),
            nodes=integer_variable(environ, "GROUP_WORLD_SIZE", 1),
            environ=environ,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _listed(missing: Sequence[str]) -> str:
    if len(missing) == 1:
        return f"{missing[0]} is not set, as torchrun sets it"
    return f"{', '.join(missing)} are not set, as torchrun sets them"


def free_port(address: str) -> int:
    """One of this host's that was free a moment ago."""
    family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listener:
        listener.bind(where)
        return int(listener.getsockname()[1])
