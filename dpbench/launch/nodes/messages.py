"""The messages between nodes, as JSON, and the connection that carries them.

Nothing else is ever read from the network: no pickles, no code. Anything that is not one of these
messages is an error, never ignored. Texts for people are cut and escaped when read, so that no node
can fill another's screen or control its terminal.

A message travels as its length, its signature and JSON, over one TCP connection that both ends have
proved. Both sides send a heartbeat regularly, so silence means that the other side or the link is
gone: a connection across a cut link would stay open forever. Nothing here waits longer than
`lost_seconds` for a sign of life.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

from dpbench import units
from dpbench.codec import decode, encode
from dpbench.errors import StoreError
from dpbench.launch.causes import RankTrace
from dpbench.launch.nodes.handshake import PROOF_BYTES, Keys, signature
from dpbench.launch.nodes.node import Node
from dpbench.measure.trial import RankReport
from dpbench.messages import printable
from dpbench.specs import TrialSpec

PROTOCOL = 3
"""Version of the protocol, increased when a message changes its meaning; `Hello.protocol` and
`Refused` never change."""


FOR_PEOPLE = {
    "hostname": 64,
    "address": 64,
    "place": 300,
    "reason": 1000,
    "error": 1000,
    "kind": 100,
    "text": 1000,
}
"""Keys of texts that are printed, and the most characters of each."""
LONGEST_SHOWN = 40


class NotAMessage(Exception):
    """The received bytes are not a message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A node's first message to node 0."""

    protocol: int
    job_id: str
    node_count: int
    node: Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """Node 0 admits a node."""

    hostname: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Node 0 refuses a node."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """A heartbeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Order of node 0: prepare this dataset."""

    number: int
    """The order's number, unique in the sweep."""
    dataset: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Answer to Prepare, with the reason if it failed."""

    number: int
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Order of node 0: start this host's ranks of a trial."""

    number: int
    trial: TrialSpec
    limit_seconds: float
    address: str
    port: int
    """Port of the store where the ranks of all hosts meet."""
    store_prefix: str = field(repr=False)
    """Prefix of their keys in the store, which only the nodes of the sweep know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abort:
    """Order of node 0: the trial has failed elsewhere, end its ranks."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Result of one host's ranks: all with a report, or with their traces."""

    number: int
    reports: tuple[RankReport, ...] = ()
    traces: tuple[RankTrace, ...] = ()
    error: str | None = None
    """Reason why no rank could be started."""

    @property
    def failed(self) -> bool:
        return not self.reports


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """Message from a node to node 0 that it ends early."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Message of node 0 that there is no more to do."""

    error: str | None = None
    """The error, if the end is not a regular one."""
    signal: int | None = None
    """The signal that ended node 0."""


Message = Hello | Welcome | Refused | Beat | Prepare | Prepared | Run | Abort | Result | Leave | End
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def to_json(message: Message) -> bytes:
    return json.dumps([type(message).__name__, encode(message)]).encode()


def from_json(text: bytes) -> Message:
    """Parse a message; raises NotAMessage."""
    try:
        name, content = json.loads(text, object_hook=_with_printable_texts)
        if name == Hello.__name__ and content["protocol"] != PROTOCOL:
            other = printable(repr(content["protocol"]), LONGEST_SHOWN)
            raise NotAMessage(f"protocol {other} instead of {PROTOCOL}")
        message: Message = decode(KINDS[name], content)
    except (ValueError, KeyError, TypeError, RecursionError, StoreError):
        raise NotAMessage(f"not a message of dpbench: {text[:LONGEST_SHOWN]!r}") from None
    return message


def _with_printable_texts(content: dict[str, Any]) -> dict[str, Any]:
    for key, longest in FOR_PEOPLE.items():
        if isinstance(text := content.get(key), str):
            content[key] = printable(text, longest)
    return content


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
