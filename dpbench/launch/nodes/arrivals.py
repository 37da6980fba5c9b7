"""The door of node 0: connections to the endpoint, and the first line of each."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Self

from dpbench.errors import UsageError
from dpbench.launch.nodes.channel import LONGEST_GREETING_BYTES, Channel, Closed
from dpbench.launch.nodes.messages import Hello, NotAMessage, Refused
from dpbench.launch.nodes.node import Node, NodeRequest, Say

Serve = Callable[[Hello, Channel], None]
"""Deals with whoever has said hello until it leaves."""


class Arrivals:
    """Listens on the address of node 0 and no other; each connection has a thread of its own."""

    def __init__(self, request: NodeRequest, me: Node, serve: Serve, say: Say) -> None:
        """Raises UsageError if it cannot listen there."""
        self._lost_seconds = request.lost_seconds
        self._serve = serve
        self._say = say
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
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(
                target=self._greet, args=(connection,), name="node-listener", daemon=True
            ).start()

    def _greet(self, connection: socket.socket) -> None:
        channel = Channel(connection, self._lost_seconds)
        try:
            greeting = channel.receive(LONGEST_GREETING_BYTES)
            if not isinstance(greeting, Hello):
                raise NotAMessage(f"{type(greeting).__name__} before any greeting")
            self._serve(greeting, channel)
        except (Closed, NotAMessage) as error:
            self._say(f"turned away who came from {channel.address}: {error}")
            with suppress(Closed):
                channel.send(Refused(reason=f"node 0 did not understand: {error}"))
        finally:
            channel.close()


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
