"""The connection between two nodes, which carries their messages.

A message travels as its length, its signature and JSON, over one TCP connection that both ends have
proved. Both sides send a heartbeat regularly, so silence means that the other side or the link is
gone: a connection across a cut link would stay open forever. Nothing here waits longer than
`lost_seconds` for a sign of life.
"""

from __future__ import annotations

import hmac
import socket
import threading
from contextlib import suppress

from dpbench import units
from dpbench.launch.nodes.handshake import PROOF_BYTES, Keys, signature
from dpbench.launch.nodes.messages import Beat, Message, NotAMessage, from_json, to_json

BEATS_UNTIL_LOST = 10
LENGTH_BYTES = 4
LONGEST_BYTES = 2**28
"""Largest message; the results of a trial with a million steps are a tenth of it."""
CLOSED = "its connection was closed"
"""Reason if the other side, or its kernel after the process ended, closed the connection."""


class Closed(Exception):
    """The other node cannot be reached any more; the text says since when or why."""


class Channel:
    """`send` and `receive` may be called by different threads."""

    def __init__(self, connection: socket.socket, keys: Keys, lost_seconds: float) -> None:
        """Raises OSError if the connection is gone already."""
        connection.settimeout(lost_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._keys = keys
        self._sent = self._received = 0
        self._lost_seconds = lost_seconds
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="node-beats", daemon=True)

    def start_beats(self) -> None:
        self._beats.start()

    def send(self, message: Message) -> None:
        """Raises Closed."""
        content = to_json(message)
        with self._sending:
            signed = signature(self._keys.sending, self._sent, content)
            self._sent += 1
            rest = memoryview(len(content).to_bytes(LENGTH_BYTES, "big") + signed + content)
            try:
                while rest:  # sendall would bound the whole of it, not the time without progress
                    rest = rest[self._connection.send(rest) :]
            except OSError as error:
                raise Closed(self._words(error)) from None

    def receive(self) -> Message:
        """The next message other than a beat; raises Closed or NotAMessage."""
        while True:
            message = from_json(self._next_content())
            if not isinstance(message, Beat):
                return message

    def finish(self) -> None:
        """Announce that no more will be sent; the other side still reads earlier messages."""
        self._over.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection; a waiting `receive` raises Closed."""
        self._over.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._connection.close()

    def _next_content(self) -> bytes:
        length = int.from_bytes(self._read(LENGTH_BYTES), "big")
        if length > LONGEST_BYTES:
            raise NotAMessage(
                f"a message of {units.bytes_binary(length)}, more than "
                f"{units.bytes_binary(LONGEST_BYTES)}"
            )
        signed, content = self._read(PROOF_BYTES), self._read(length)
        expected = signature(self._keys.receiving, self._received, content)
        if not hmac.compare_digest(signed, expected):
            raise NotAMessage("a message that was changed on its way")
        self._received += 1
        return content

    def _read(self, count: int) -> bytes:
        try:
            found = self._reader.read(count)
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise Closed(self._words(error)) from None
        if len(found) < count:
            raise Closed(CLOSED)
        return found

    def _beat(self) -> None:
        with suppress(Closed):  # the receiving thread finds out as well
            while not self._over.wait(self._lost_seconds / BEATS_UNTIL_LOST):
                self.send(Beat())

    def _words(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no sign of life for {units.seconds(self._lost_seconds)}"
        if isinstance(error, ConnectionError):  # reset, since it had not read everything
            return CLOSED
        return f"its connection broke ({getattr(error, 'strerror', None) or error})"
