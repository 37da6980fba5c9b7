"""Who is there: nodes come, are let in, say things, and may be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from dpbench import units
from dpbench.errors import DpbenchError, LaunchError, UsageError
from dpbench.launch.nodes.admission import hello, refusal
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.messages import End, Hello, Leave, Message, NotAMessage, Refused, Welcome
from dpbench.launch.nodes.node import Node, NodeRequest, Say

FAREWELL_SECONDS = 2.0
"""How long the others may take to hear that it is over."""


@dataclass(slots=True, eq=False)
class _Member:
    """Another node, and the thread that listens to it."""

    node: Node
    channel: Channel
    thread: threading.Thread
    lost: str | None = None


class Roster:
    """The nodes of a sweep as node 0 sees them; each is listened to by a thread of its own."""

    def __init__(
        self,
        request: NodeRequest,
        me: Node,
        say: Say,
        *,
        heed: Callable[[int, Message], None],
        mourn: Callable[[int], None],
    ) -> None:
        """`heed` gets what a node says, `mourn` the number of one that is lost; both are called
        by those threads. What `heed` raises as NotAMessage costs the node its place."""
        self.changed = threading.Condition()
        """Notified when a node comes or is lost."""
        self._request = request
        self._hello = hello(request, me)
        self._say = say
        self._heed = heed
        self._mourn = mourn
        self._members: dict[int, _Member] = {}
        self._complete = False
        self._over = False
        self._refused: str | None = None
        """Why the latest one was that may not take part."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order of their numbers, node 0 included."""
        others = (self._members[number].node for number in sorted(self._members))
        return (self._hello.node, *others)

    def lost_reason(self, number: int) -> str | None:
        """Why that node is there no more; None while it is."""
        member = self._members.get(number)
        return member.lost if member else None

    def send(self, number: int, message: Message) -> None:
        """To a node that may be lost already, or is then."""
        member = self._members[number]
        try:
            member.channel.send(message)
        except Closed as error:
            self._lose(member, f"{member.node.name} was lost: {error}")

    def give_up(self, number: int, reason: str) -> None:
        """From now on that node counts as lost."""
        member = self._members[number]
        self._lose(member, reason)
        member.channel.close()

    def gather(self, where: str) -> None:
        """Waits until all nodes have come to that endpoint.

        Whoever is refused meanwhile may come again, with the right options. When the time is over,
        raises UsageError if one was refused, else LaunchError.
        """
        deadline = monotonic() + self._request.join_timeout_seconds
        with self.changed:
            while missing := self._missing():
                names = " and ".join(f"node {number}" for number in missing)
                if monotonic() >= deadline:
                    raise self._incomplete(names, where)
                self._say(f"waiting for {names} at {where}")
                while self._missing() == missing and monotonic() < deadline:
                    self.changed.wait(deadline - monotonic())
            self._complete = True

    def serve(self, comer: Hello, channel: Channel) -> None:
        """Lets a node in, or not, and listens to it until it is gone."""
        member = _Member(comer.node, channel, threading.current_thread())
        try:
            if refused := self._admit(comer, member):
                channel.send(Refused(reason=refused))
                return
            channel.start_beats()
            while True:
                message = channel.receive()
                if isinstance(message, Leave):
                    raise Closed(message.reason)
                self._heed(comer.node.number, message)
        except (Closed, NotAMessage) as error:
            self._lose(member, f"{member.node.name} was lost: {error}")

    def end(self, farewell: End) -> None:
        """Tells all nodes that it is over, and gives them a moment to hear it."""
        self._over = True
        members = [member for member in self._members.values() if not member.lost]
        for member in members:
            with suppress(Closed):
                member.channel.send(farewell)
            member.channel.finish()
        deadline = monotonic() + FAREWELL_SECONDS
        for member in members:
            member.thread.join(max(0.0, deadline - monotonic()))
            member.channel.close()

    def _admit(self, comer: Hello, member: _Member) -> str | None:
        """Why it is refused; None if it is let in."""
        with self.changed:
            refused = refusal(comer, self._hello, self._taken())
            if refused is None:  # it must hear that before anything else
                member.channel.send(Welcome(hostname=self._hello.node.hostname))
                self._members[comer.node.number] = member
                devices = units.counted(len(comer.node.devices), "device")
                self._say(f"{comer.node.name} with {devices} came from {comer.node.address}")
                self.changed.notify_all()
            else:
                self._refused = refused
                self._say(f"refused: {refused}")
            return refused

    def _incomplete(self, names: str, where: str) -> DpbenchError:
        waited = units.seconds(self._request.join_timeout_seconds)
        missing = f"{names} did not come to {where} within {waited}"
        if self._refused:
            return UsageError(f"{missing}; refused: {self._refused}")
        return LaunchError(
            f"{missing}; start the same command there with its own --node-rank, or give more "
            "--join-timeout"
        )

    def _missing(self) -> list[int]:
        return [n for n in range(1, self._request.node_count) if n not in self._members]

    def _taken(self) -> dict[int, str]:
        """By whom each number is."""
        taken = {0: f"{self._hello.node.name} leads; expected another --node-rank"}
        for number, member in self._members.items():
            taken[number] = (
                f"{member.lost}, and the sweep has gone on without it; --resume it when it is over"
                if member.lost
                else f"{member.node.name} at {member.node.address} has --node-rank {number} "
                "already; expected another number on every node"
            )
        return taken

    def _lose(self, member: _Member, reason: str) -> None:
        """The first reason counts; at the end all go."""
        number = member.node.number
        with self.changed:
            if self._over or member.lost or self._members.get(number) is not member:
                return
            member.lost = reason
            if not self._complete:
                del self._members[number]
                self._say(f"{reason}; another may take its place")
            self.changed.notify_all()
        with suppress(Closed):  # it may have slept, and wake up
            member.channel.send(End(error=reason))
        self._mourn(number)
