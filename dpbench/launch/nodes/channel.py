"""Messages to and from one other node, over one TCP connection.

Both sides send a beat every now and then, so that silence means that the other one is gone, or
the way to it: across a cut link a connection would stay open for ever. Nothing here waits longer
than `lost_seconds` for a sign of life.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from dpbench import units
from dpbench.launch.nodes.messages import Beat, Message, NotAMessage, from_line, to_line

BEATS_UNTIL_LOST = 10
LONGEST_GREETING_BYTES = 2**20
LONGEST_BYTES = 2**30
CLOSED = "its connection was closed"
"""By the other side, or by its kernel when the process has ended."""


class Closed(Exception):
    """The other node cannot be reached any more; the text says since when or why."""


class Channel:
    """`send` and `receive` may be called by different threads."""

    def __init__(self, connection: socket.socket, lost_seconds: float) -> None:
        connection.settimeout(lost_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lost_seconds = lost_seconds
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="node-beats", daemon=True)

    @property
    def address(self) -> str:
        """Of the other node."""
        return str(self._connection.getpeername()[0])

    def start_beats(self) -> None:
        self._beats.start()

    def send(self, message: Message) -> None:
        """Raises Closed."""
        rest = memoryview(to_line(message))
        try:
            with self._sending:
                while rest:  # sendall would bound the whole of it, not the time without progress
                    rest = rest[self._connection.send(rest) :]
        except OSError as error:
            raise Closed(self._words(error)) from None

    def receive(self, longest_bytes: int = LONGEST_BYTES) -> Message:
        """The next message other than a beat; raises Closed or NotAMessage."""
        while True:
            try:
                line = self._reader.readline(longest_bytes)
            except (OSError, ValueError) as error:  # ValueError: closed by another thread
                raise Closed(self._words(error)) from None
            if not line.endswith(b"\n"):
                if len(line) < longest_bytes:
                    raise Closed(CLOSED)
                raise NotAMessage(f"no end of line within {units.bytes_binary(len(line))}")
            message = from_line(line)
            if not isinstance(message, Beat):
                return message

    def finish(self) -> None:
        """Says that no more will be sent; the other side still reads what was."""
        self._over.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Whoever waits in `receive` gets Closed."""
        self._over.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._connection.close()

    def _beat(self) -> None:
        with suppress(Closed):  # whoever receives finds out as well
            while not self._over.wait(self._lost_seconds / BEATS_UNTIL_LOST):
                self.send(Beat())

    def _words(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no sign of life for {units.seconds(self._lost_seconds)}"
        if isinstance(error, ConnectionError):  # reset, as there was something it had not read
            return CLOSED
        return f"its connection broke ({getattr(error, 'strerror', None) or error})"
