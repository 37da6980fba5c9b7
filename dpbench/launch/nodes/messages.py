"""What nodes say to each other, as JSON.

Nothing else is ever read from the network: no pickles, no code. What is not one of these messages
is an error, never ignored. Texts for people are cut and escaped as they are read, so that no node
can fill the screen of another, or tell its terminal what to do.
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
"""Counts up when a message changes its meaning; `Hello.protocol` and `Refused` stay for ever."""


FOR_PEOPLE = {
    "hostname": 64,
    "address": 64,
    "place": 300,
    "reason": 1000,
    "error": 1000,
    "kind": 100,
    "text": 1000,
}
"""Keys of texts that are printed, and how many characters of them."""
LONGEST_SHOWN = 40


class NotAMessage(Exception):
    """What cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A node to node 0, before anything else."""

    protocol: int
    job_id: str
    node_count: int
    node: Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """Node 0 to a node that may take part."""

    hostname: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Node 0 to one that may not."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """A sign of life."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Node 0: make this dataset ready."""

    number: int
    """Of the order, among all of the sweep."""
    dataset: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The answer, with the reason if it could not be."""

    number: int
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Node 0: start this host's ranks of a trial."""

    number: int
    trial: TrialSpec
    limit_seconds: float
    address: str
    port: int
    """Of the store where the ranks of all hosts meet."""
    store_prefix: str = field(repr=False)
    """Of their keys in it, which only the nodes of the sweep know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abort:
    """Node 0: the trial has failed elsewhere, end its ranks."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How the ranks of one host ended: all with a report, or with what they left."""

    number: int
    reports: tuple[RankReport, ...] = ()
    traces: tuple[RankTrace, ...] = ()
    error: str | None = None
    """Why no rank could be started."""

    @property
    def failed(self) -> bool:
        return not self.reports


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """A node to node 0: it ends before its time."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Node 0: there is no more to do."""

    error: str | None = None
    """Why, if it should not be so."""
    signal: int | None = None
    """The one that ended node 0."""


Message = Hello | Welcome | Refused | Beat | Prepare | Prepared | Run | Abort | Result | Leave | End
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def to_json(message: Message) -> bytes:
    return json.dumps([type(message).__name__, encode(message)]).encode()


def from_json(text: bytes) -> Message:
    """Raises NotAMessage."""
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
