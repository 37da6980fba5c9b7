"""A sweep that torchrun or `dpbench launch` has started: it joins their world, and nests no other.

They start a process for every replica, a sweep starts fresh ones for every trial. So the first
process of each node takes part with as many replicas as its node has processes, and the others wait
for its end.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dpbench.errors import UsageError
from dpbench.launch.nodes.handshake import OPTION, VARIABLE
from dpbench.rendezvous.launch_variables import LaunchVariables, endpoint_text, integer

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

OF_NODES = ("nnodes", "node_rank", "rdzv_endpoint", "rdzv_id")
"""Options that the world answers."""
NEEDED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
OTHERS = ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
PREFIX = "TORCHELASTIC_"
STORE_TIMEOUT = timedelta(minutes=5)
LONGEST_SWEEP = timedelta(days=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This process and the others, according to torchrun."""

    local_rank: int
    local_size: int
    """Processes on this node."""
    node: int
    nodes: int
    variables: LaunchVariables
    """With the address and port of the store that the launcher keeps."""
    run_id: str
    environ: Mapping[str, str]
    """All that was told."""

    def options(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the sweep with what the world says, and the command that would be typed
        without a launcher; raises UsageError for options that say otherwise."""
        for name in OF_NODES:
            if typed[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option}: the launcher says which nodes there are; leave {option} out, or "
                    "run dpbench without torchrun"
                )
        if typed["gpus"] not in (None, str(self.local_size)):
            raise UsageError(
                f"--gpus {typed['gpus']}: the launcher has started {self.local_size} on this node; "
                "leave --gpus out"
            )
        if self.nodes > 1 and typed["token_file"] is None and VARIABLE not in os.environ:
            raise UsageError(
                f"{self.nodes} nodes need a token that they share, and the launcher cannot pass a "
                f"secret on; set {VARIABLE} to the same one on all nodes, or give {OPTION}"
            )
        answers = {"gpus": str(self.local_size), **self._meeting()}
        added = [
            word
            for name, value in answers.items()
            if typed[name] is None
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        return {**typed, **answers, "command": [*typed.get("command", sys.argv[1:]), *added]}

    def _meeting(self) -> dict[str, str]:
        if self.nodes == 1:
            return {}
        return {
            "nnodes": str(self.nodes),
            "node_rank": str(self.node),
            "rdzv_endpoint": self._endpoint(),
            "rdzv_id": self.run_id,
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
        """Until the first process of this node has ended; of one that dies the launcher knows."""
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
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise UsageError(
            f"this process is rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, but "
            f"{_listed(missing)}; dpbench starts the ranks itself: run it once on every node, with "
            "--nnodes and --node-rank, or unset RANK and WORLD_SIZE"
        )
    world = _read({**os.environ})
    for name in [*NEEDED, *OTHERS, *(n for n in os.environ if n.startswith(PREFIX))]:
        os.environ.pop(name, None)
    return world


def _read(environ: Mapping[str, str]) -> World:
    try:
        return World(
            variables=LaunchVariables.read(environ),
            local_rank=integer(environ, "LOCAL_RANK", 0),
            local_size=integer(environ, "LOCAL_WORLD_SIZE", 1),
            node=integer(environ, "GROUP_RANK", 0),
            nodes=integer(environ, "GROUP_WORLD_SIZE", 1),
            run_id=environ["TORCHELASTIC_RUN_ID"],
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
