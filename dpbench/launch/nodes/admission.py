"""Admission of nodes: node 0 listens, asks for the proof of the token, and compares settings that
must be equal on all nodes."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from ipaddress import ip_address
from typing import Self

from dpbench import units
from dpbench.errors import UsageError
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.handshake import Stranger, prove_as_lead
from dpbench.launch.nodes.messages import (
    PROTOCOL,
    Hello,
    NotAMessage,
    Refused,
)
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.messages import Say, printable

MOST_UNPROVED = 64
"""Most connections that have not proved the token yet; this many nodes may come at the same
moment."""
AGAIN_SECONDS = 0.1
"""Seconds before the next attempt if a connection could not be accepted."""
Serve = Callable[[Hello, Channel], None]
"""Serves a node that has said hello, until it leaves."""


class Admission:
    """Listens on the address of node 0 and no other; each connection has a thread of its own."""

    def __init__(self, request: NodeRequest, me: Node, serve: Serve, say: Say) -> None:
        """Raises UsageError if it cannot listen there."""
        self._request = request
        self._serve = serve
        self._refusals = Refusals(say)
        self._unproved: dict[socket.socket, str] = {}
        """Unproved connections with their addresses, the oldest first."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = _listen(request, me)
        self.port: int = self._listener.getsockname()[1]
        if ip_address(me.address.partition("%")[0]).is_loopback:
            say(
                f"node 0 listens on {me.address}, which is the loopback: no other host can reach "
                "it; if there are any, give --local-addr with an address that they can reach"
            )

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="node-admission", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._listener.close()
        self._refusals.sum_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, (address, *_) = self._listener.accept()
            except OSError:  # closed; or too many open files, or gone before it was accepted
                if self._over.wait(AGAIN_SECONDS):
                    return
                continue
            self._make_room()
            with self._lock:
                self._unproved[connection] = address
            threading.Thread(
                target=self._attend, args=(connection, address), name="node-listener", daemon=True
            ).start()

    def _make_room(self) -> None:
        """If there are too many connections, end the oldest one of the address that has the
        most."""
        with self._lock:
            if len(self._unproved) < MOST_UNPROVED:
                return
            (crowd, _), *_ = Counter(self._unproved.values()).most_common(1)
            oldest = next(one for one, address in self._unproved.items() if address == crowd)
            del self._unproved[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it

    def _attend(self, connection: socket.socket, address: str) -> None:
        with closing(connection):
            if (channel := self._prove(connection, address)) is None:
                return
            try:
                if greeting := self._greet(channel, address):
                    self._serve(greeting, channel)
            finally:
                channel.close()

    def _prove(self, connection: socket.socket, address: str) -> Channel | None:
        """The channel; None for a connection that does not prove the token, which is told
        nothing."""
        try:
            keys = prove_as_lead(connection, self._request.token)
            return Channel(connection, keys, self._request.lost_seconds)
        except (Stranger, OSError) as error:
            self._refusals.add(address, str(error))
            return None
        finally:
            with self._lock:
                self._unproved.pop(connection, None)

    def _greet(self, channel: Channel, address: str) -> Hello | None:
        """The node's hello; None if it is no node of this version, which is then told so."""
        try:
            greeting = channel.receive()
            if not isinstance(greeting, Hello):
                raise NotAMessage(f"{type(greeting).__name__} before any greeting")
        except (Closed, NotAMessage) as error:
            self._refusals.add(address, str(error))
            with suppress(Closed):
                channel.send(Refused(reason=f"node 0 did not understand: {error}"))
            return None
        return greeting


def _listen(request: NodeRequest, me: Node) -> socket.socket:
    family = socket.AF_INET6 if ":" in me.address else socket.AF_INET
    try:
        return socket.create_server((me.address, request.port), family=family)
    except OSError as error:
        remedy = "expected a port above 1023, or the right to use it"
        if error.errno == errno.EADDRINUSE:
            remedy = "something listens there already; expected a free port, the same on all nodes"
        raise UsageError(
            f"--rdzv-endpoint {request.endpoint}: cannot listen on {me.address}: "
            f"{os.strerror(error.errno or 0)}; {remedy}"
        ) from None


MOST_ADDRESSES = 64
"""Most addresses that are named, since the owner of an IPv6 network could use up any number."""
OTHERS = "other addresses"


class Refusals:
    """Reports the first refusal of each address at once, and at the end how many followed."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()
        self._over = False
        self._lock = threading.Lock()

    def add(self, address: str, reason: str) -> None:
        with self._lock:
            if self._over:  # connections that were silent until the end are not reported
                return
            if address not in self._counts and len(self._counts) >= MOST_ADDRESSES:
                address = OTHERS
            self._counts[address] += 1
            if self._counts[address] == 1:
                self._say(
                    f"refused a connection from {address}: {reason}; further ones are counted"
                )

    def sum_up(self) -> None:
        """Report the counts of repeated refusals; nothing is reported after that."""
        with self._lock:
            self._over = True
            for address, count in self._counts.items():
                if count > 1:
                    times = units.counted(count, "connection")
                    self._say(f"refused {times} from {address}")


EQUAL_VERSIONS = ("dpbench", "torch")
"""Packages whose versions must be equal: other versions may have another protocol, or measure
otherwise."""
DIFFERENCES_SHOWN = 8
LONGEST_SHOWN = 300
"""Most characters shown of another node's value."""


def hello(request: NodeRequest, node: Node) -> Hello:
    """This node's description of itself."""
    return Hello(protocol=PROTOCOL, node_count=request.node_count, node=node)


def refusal(comer: Hello, lead: Hello, taken: Mapping[int, str]) -> str | None:
    """Why node 0, which is `lead`, refuses the comer, in words that make sense on both sides; None
    if it admits it.

    `taken` has the holder of each number in use, including node 0's.
    """
    who, leader = comer.node.name, lead.node.name
    if comer.node_count != lead.node_count:
        return (
            f"{who} has --nnodes {comer.node_count}, {leader} --nnodes {lead.node_count}; "
            "expected the same on all nodes"
        )
    if comer.node.number in taken:
        return f"{who} at {comer.node.address} cannot join: {taken[comer.node.number]}"
    if not 0 < comer.node.number < lead.node_count:
        return f"{who}: no such --node-rank; expected 1 to {lead.node_count - 1}"
    if differences := _differences(comer.node, lead.node):
        shown = ", ".join(differences[:DIFFERENCES_SHOWN])
        more = len(differences) - DIFFERENCES_SHOWN
        return (
            f"{who} differs from {leader}: {shown}{f' and {more} more' if more > 0 else ''}; "
            "expected the same on all nodes"
        )
    return None


def _differences(comer: Node, lead: Node) -> list[str]:
    """Differences in what must be equal, such as "torch 2.6.0 instead of 2.13.0"."""
    theirs, ours = _by_name(comer.environment.versions), _by_name(lead.environment.versions)
    pairs = [(name, theirs.get(name), ours.get(name)) for name in EQUAL_VERSIONS]
    options, own = _by_name(comer.options), _by_name(lead.options)
    pairs += [(name, options.get(name), own.get(name)) for name in {**own, **options}]
    return [
        f"{_cut(name)} {_cut(there or 'left out')} instead of {_cut(here or 'left out')}"
        for name, there, here in pairs
        if there != here
    ]


def _by_name(pairs: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """The pairs as a dict. They come from the network: a wrong number of words must not end node
    0."""
    return {pair[0]: " ".join(pair[1:]) for pair in pairs if pair}


def _cut(text: str) -> str:
    return printable(text, LONGEST_SHOWN)
