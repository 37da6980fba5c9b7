"""Nodes of a sweep that are threads or processes of this host, on the loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.launch.machine import Machine
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.follower import join
from dpbench.launch.nodes.messages import Message
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.launch.nodes.team import Team, lead
from dpbench.records.environment import Environment

ENVIRONMENT = Environment(
    hostname="host0",
    system="Linux",
    kernel="6",
    python="3.11",
    cpu="CPU",
    cores=2,
    memory_bytes=2**30,
    versions=(("dpbench", "0.1"), ("torch", "2.13")),
)
Pairs = tuple[tuple[str, ...], ...]
TOKEN = "a token of the tests"
MACHINE = Machine(cores=2, gpus=(), cuda=None, missing_backends=(("nccl", "no CUDA device"),))


def node(number: int, *, versions: Pairs = ENVIRONMENT.versions, **changes: Any) -> Node:
    environment = replace(ENVIRONMENT, hostname=f"host{number}", versions=versions)
    values: dict[str, Any] = {
        "number": number,
        "address": "127.0.0.1",
        "interface": "lo",
        "environment": environment,
        "machine": MACHINE,
        "devices": ("cpu", "cpu"),
    }
    return Node(**{**values, **changes})


def request(node_rank: int, port: int = 0, **changes: Any) -> NodeRequest:
    """Of one of two nodes; port 0 lets node 0 choose."""
    values: dict[str, Any] = {
        "node_count": 2,
        "node_rank": node_rank,
        "host": "127.0.0.1",
        "port": port,
        "token": TOKEN,
        "join_timeout_seconds": 10.0,
        "lost_seconds": 5.0,
    }
    return NodeRequest(**{**values, **changes})


class Comer:
    """A node that joins when it is called with node 0's port, and then just listens."""

    def __init__(self, number: int = 1, me: Node | None = None, **asked: Any) -> None:
        self._me = me or node(number)
        self._asked = request(number, **asked)
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self.channel: Channel
        self.error: DpbenchError | None = None
        """Why it could not join."""
        self.ended = Event()
        """Node 0 has closed the connection."""

    def __call__(self, port: int) -> None:
        try:
            self.channel, _ = join(replace(self._asked, port=port), self._me, lambda _: None)
        except DpbenchError as error:
            self.error = error
        else:
            Thread(target=self._listen, daemon=True).start()

    def hears(self) -> Message:
        """The next message from node 0."""
        return self._messages.get(timeout=10)

    def _listen(self) -> None:
        with suppress(Closed):
            while True:
                self._messages.put(self.channel.receive())
        self.channel.close()
        self.ended.set()


@contextmanager
def meeting(
    *comers: Callable[[int], None], said: list[str] | None = None, **asked: Any
) -> Iterator[Team]:
    """Node 0 in this thread; as soon as it listens, the comers come, one after the other."""
    lines = [] if said is None else said
    coming: list[Thread] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting for") and not coming:
            port = int(line.rpartition(":")[2])
            coming.append(Thread(target=lambda: [comer(port) for comer in comers]))
            coming[0].start()

    try:
        with lead(request(0, **asked), node(0), say=say) as team:
            for thread in coming:
                thread.join()
            yield team
    finally:
        for thread in coming:
            thread.join()
