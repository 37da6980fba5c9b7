"""The door of node 0: connections to the endpoint, and the first line of each."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from ipaddress import ip_address
from typing import Self

from dpbench.errors import UsageError
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.messages import Hello, NotAMessage, Refused
from dpbench.launch.nodes.node import Node, NodeRequest, Say
from dpbench.launch.nodes.turned_away import TurnedAway

MOST_GREETING = 64
"""Connections that have not said hello yet; as many nodes may come at the same moment."""
AGAIN_SECONDS = 0.1
"""Before the next attempt after a connection could not be accepted."""
Serve = Callable[[Hello, Channel], None]
"""Deals with whoever has said hello until it leaves."""


class Arrivals:
    """Listens on the address of node 0 and no other; each connection has a thread of its own."""

    def __init__(self, request: NodeRequest, me: Node, serve: Serve, say: Say) -> None:
        """Raises UsageError if it cannot listen there."""
        self._lost_seconds = request.lost_seconds
        self._serve = serve
        self._turned_away = TurnedAway(say)
        self._greeting = threading.BoundedSemaphore(MOST_GREETING)
        self._over = threading.Event()
        self._listener = _listen(request, me)
        self.port: int = self._listener.getsockname()[1]
        if ip_address(me.address.partition("%")[0]).is_loopback:
            say(
                f"node 0 listens on {me.address}, which is the loopback: no other host can reach "
                "it; if there are any, give --local-addr with an address that they can reach"
            )

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="node-arrivals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._listener.close()
        self._turned_away.sum_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, (address, *_) = self._listener.accept()
            except OSError:  # closed; or too many open files, or gone before it was accepted
                if self._over.wait(AGAIN_SECONDS):
                    return
                continue
            if not self._greeting.acquire(blocking=False):
                connection.close()
                self._turned_away.add(address, f"{MOST_GREETING} others have yet to say hello")
                continue
            threading.Thread(
                target=self._attend, args=(connection, address), name="node-listener", daemon=True
            ).start()

    def _attend(self, connection: socket.socket, address: str) -> None:
        with closing(connection):
            try:
                channel = Channel(connection, self._lost_seconds)
            except OSError as error:  # reset already
                self._greeting.release()
                self._turned_away.add(address, error.strerror or str(error))
                return
            try:
                if greeting := self._greet(channel, address):
                    self._serve(greeting, channel)
            finally:
                channel.close()

    def _greet(self, channel: Channel, address: str) -> Hello | None:
        """None for who is no node, and has been told so."""
        try:
            greeting = channel.receive_greeting()
            if not isinstance(greeting, Hello):
                raise NotAMessage(f"{type(greeting).__name__} before any greeting")
        except (Closed, NotAMessage) as error:
            self._turned_away.add(address, str(error))
            with suppress(Closed):
                channel.send(Refused(reason=f"node 0 did not understand: {error}"))
            return None
        finally:
            self._greeting.release()
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
