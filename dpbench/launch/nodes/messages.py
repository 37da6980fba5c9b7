"""The messages between nodes, as JSON.

Nothing else is ever read from the network: no pickles, no code. Anything that is not one of these
messages is an error, never ignored. Texts for people are cut and escaped when read, so that no node
can fill another's screen or control its terminal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, get_args

from dpbench.codec import decode, encode
from dpbench.errors import StoreError
from dpbench.launch.causes import RankTrace
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
