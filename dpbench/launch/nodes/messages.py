"""What nodes say to each other: one JSON object a line.

Nothing else is ever read from the network: no pickles, no code. A line that is not one of these
messages is an error, never ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, get_args

from dpbench.codec import decode, encode
from dpbench.errors import StoreError
from dpbench.launch.causes import RankTrace
from dpbench.launch.nodes.node import Node
from dpbench.measure.trial import RankReport
from dpbench.specs import TrialSpec

PROTOCOL = 1
"""Counts up when a message changes its meaning; `Hello.protocol` and `Refused` stay for ever."""


class NotAMessage(Exception):
    """A line that cannot be read."""


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

    dataset: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The answer, with the reason if it could not be."""

    dataset: str
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Node 0: start this host's ranks of a trial."""

    number: int
    """Of the trial, among those over several nodes."""
    trial: TrialSpec
    limit_seconds: float
    address: str
    port: int
    """Of the store where the ranks of all hosts meet."""


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


def to_line(message: Message) -> bytes:
    return json.dumps([type(message).__name__, encode(message)]).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """Raises NotAMessage."""
    try:
        name, content = json.loads(line)
        if name == Hello.__name__ and content["protocol"] != PROTOCOL:
            raise NotAMessage(f"protocol {content['protocol']!r} instead of {PROTOCOL}")
        message: Message = decode(KINDS[name], content)
    except (ValueError, KeyError, TypeError, RecursionError, StoreError):
        raise NotAMessage(f"not a line of dpbench: {line[:60]!r}") from None
    return message
