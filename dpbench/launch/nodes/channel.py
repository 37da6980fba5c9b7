"""Messages to and from one other node, over one TCP connection.

Both sides send a beat every now and then, so that silence means that the other one is gone, or
the way to it: across a cut link a connection would stay open for ever. Nothing here waits longer
than `lost_seconds` for a sign of life.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

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
        return self._receive(longest_bytes, lambda: self._reader.readline(longest_bytes))

    def receive_greeting(self) -> Message:
        """The first message, all of it within `lost_seconds`: who sends a byte now and then is no
        node. Raises Closed or NotAMessage."""
        deadline = monotonic() + self._lost_seconds
        try:
            return self._receive(LONGEST_GREETING_BYTES, lambda: self._line_until(deadline))
        except Closed:
            if monotonic() < deadline:
                raise
            raise Closed(f"no greeting within {units.seconds(self._lost_seconds)}") from None

    def _receive(self, longest_bytes: int, next_line: Callable[[], bytes]) -> Message:
        while True:
            try:
                line = next_line()
            except (OSError, ValueError) as error:  # ValueError: closed by another thread
                raise Closed(self._words(error)) from None
            if not line.endswith(b"\n"):
                if len(line) < longest_bytes:
                    raise Closed(CLOSED)
                raise NotAMessage(f"no end of line within {units.bytes_binary(len(line))}")
            message = from_line(line)
            if not isinstance(message, Beat):
                return message

    def _line_until(self, deadline: float) -> bytes:
        """As readline(LONGEST_GREETING_BYTES) would read it; raises TimeoutError then."""
        line = bytearray()
        try:
            while len(line) < LONGEST_GREETING_BYTES and not line.endswith(b"\n"):
                left_seconds = deadline - monotonic()
                if left_seconds <= 0:
                    raise TimeoutError
                self._connection.settimeout(left_seconds)
                there = self._reader.peek()  # waits for the network at most once
                if not there:
                    break
                size = min(there.find(b"\n") + 1 or len(there), LONGEST_GREETING_BYTES - len(line))
                line += self._reader.read(size)
        finally:
            self._connection.settimeout(self._lost_seconds)
        return bytes(line)

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
