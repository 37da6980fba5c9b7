"""Node 0: who has joined, who is alive, and what each is told to do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from dpbench import units
from dpbench.errors import DataError, Interrupted, LaunchError, UsageError
from dpbench.launch.nodes.admission import hello, refusal
from dpbench.launch.nodes.arrivals import Arrivals
from dpbench.launch.nodes.attempt import Attempt
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.messages import (
    Abort,
    End,
    Hello,
    Leave,
    Message,
    NotAMessage,
    Prepare,
    Prepared,
    Refused,
    Result,
    Run,
    Welcome,
)
from dpbench.launch.nodes.node import Node, NodeRequest, Say, endpoint_text
from dpbench.specs import TrialSpec

FAREWELL_SECONDS = 2.0
"""How long the others may take to hear that it is over."""


@contextmanager
def lead(request: NodeRequest, me: Node, *, say: Say) -> Iterator[Team]:
    """Listens at the endpoint until all nodes have joined; tells them to end when it is left.

    Leaving with Interrupted or KeyboardInterrupt ends them as interrupted. Raises UsageError if
    it cannot listen there, or if a node comes that must not be among them, LaunchError naming the
    missing nodes when the time to join is over.
    """
    team = Team(request, me, say)
    with Arrivals(request, me, team.serve, say) as arrivals:
        try:
            team.gather(endpoint_text(request.host, arrivals.port))
            yield team
        except BaseException as error:
            team.end(_farewell(error))
            raise
        team.end(End())


def _farewell(error: BaseException) -> End:
    if isinstance(error, Interrupted):
        return End(signal=error.signal_number)
    if isinstance(error, KeyboardInterrupt):
        return End(signal=signal.SIGINT)
    return End(error=str(error) or type(error).__name__)


@dataclass(slots=True, eq=False)
class _Member:
    """Another node, and what is known of it."""

    node: Node
    channel: Channel
    thread: threading.Thread
    lost: str | None = None
    prepared: Prepared | None = None


def _words(node: Node) -> str:
    return f"{node.name} with {units.counted(len(node.devices), 'device')}"


class Team:
    """The nodes of a sweep as node 0 sees them, itself included."""

    def __init__(self, request: NodeRequest, me: Node, say: Say) -> None:
        self.request = request
        self._hello = hello(request, me)
        self._say = say
        self._members: dict[int, _Member] = {}
        self._changed = threading.Condition()  # of everything below and of the members
        self._complete = False
        self._refused: str | None = None
        self._attempts = 0
        self._attempt: Attempt | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order of their numbers."""
        others = (self._members[number].node for number in sorted(self._members))
        return (self._hello.node, *others)

    def lost_reason(self, number: int) -> str | None:
        """Why that node is there no more; None while it is."""
        member = self._members.get(number)
        return member.lost if member else None

    def prepare(self, dataset: str) -> None:
        """Has the dataset prepared on all other nodes, and returns when it is.

        Raises DataError with the node and its reason, LaunchError if a node was lost.
        """
        members = list(self._members.values())
        for member in members:
            member.prepared = None
            self._send(member, Prepare(dataset=dataset))
        with self._changed:
            self._changed.wait_for(lambda: all(m.prepared or m.lost for m in members))
        for member in members:
            if member.lost:
                raise LaunchError(member.lost)
            if member.prepared and member.prepared.error:
                raise DataError(f"{member.node.name}: {member.prepared.error}")

    @contextmanager
    def attempt(
        self, trial: TrialSpec, limit_seconds: float, address: str, port: int
    ) -> Iterator[Attempt]:
        """Has the other nodes run their ranks of the trial; leaving it stops those that still do.

        All ranks meet in the store at that address and port.
        """
        self._attempts += 1
        order = Run(
            number=self._attempts,
            trial=trial,
            limit_seconds=limit_seconds,
            address=address,
            port=port,
        )
        self._attempt = attempt = Attempt(order)
        try:
            for number in attempt.missing:
                self._send(self._members[number], order)
                if self._members[number].lost:
                    attempt.lose(number)
            yield attempt
        finally:
            self.abort(attempt)
            self._attempt = None

    def abort(self, attempt: Attempt) -> None:
        """Tells the nodes whose parts have not ended to end them."""
        for number in attempt.awaited:
            self._send(self._members[number], Abort(number=attempt.order.number))

    def give_up(self, number: int, reason: str) -> None:
        """From now on that node counts as lost."""
        member = self._members[number]
        self._lose(member, reason)
        with suppress(Closed):
            member.channel.send(End(error=reason))
        member.channel.close()

    def gather(self, where: str) -> None:
        """Waits at that endpoint until all nodes are there; raises as `lead` does."""
        deadline = monotonic() + self.request.join_timeout_seconds
        with self._changed:
            while (missing := self._missing()) and not self._refused:
                names = " and ".join(f"node {number}" for number in missing)
                if monotonic() >= deadline:
                    raise LaunchError(
                        f"{names} did not come to {where} within "
                        f"{units.seconds(self.request.join_timeout_seconds)}; start the same "
                        "command there with its own --node-rank, or give more --join-timeout"
                    )
                self._say(f"waiting for {names} at {where}")
                self._changed.wait_for(
                    lambda seen=missing: self._refused or self._missing() != seen,  # type: ignore[misc]
                    deadline - monotonic(),
                )
            if self._refused:
                raise UsageError(self._refused)
            self._complete = True

    def serve(self, comer: Hello, channel: Channel) -> None:
        """Lets a node in, or not, and listens to it until it leaves; in a thread of its own."""
        member = _Member(comer.node, channel, threading.current_thread())
        with self._changed:
            refused = refusal(comer, self._hello, self._taken())
            if refused is None:
                self._members[comer.node.number] = member
            elif refused.ends_all and not self._complete:
                self._refused = refused.reason
            self._changed.notify_all()
        if refused is not None:
            self._say(f"refused: {refused.reason}")
            with suppress(Closed):
                channel.send(Refused(reason=refused.reason))
            return
        try:
            channel.send(Welcome(hostname=self._hello.node.hostname))
            channel.start_beats()
            self._say(f"{_words(comer.node)} has joined from {comer.node.address}")
            while True:
                self._handle(member, channel.receive())
        except (Closed, NotAMessage) as error:
            self._lose(member, f"{member.node.name} was lost: {error}")
            with suppress(Closed):  # it may have slept, and wake up
                channel.send(End(error=member.lost))

    def end(self, farewell: End) -> None:
        """Tells all nodes that it is over, and gives them a moment to hear it."""
        members = [member for member in self._members.values() if not member.lost]
        for member in members:
            with suppress(Closed):
                member.channel.send(farewell)
            member.channel.finish()
        deadline = monotonic() + FAREWELL_SECONDS
        for member in members:
            member.thread.join(max(0.0, deadline - monotonic()))
            member.channel.close()

    def _missing(self) -> list[int]:
        return [n for n in range(1, self.request.node_count) if n not in self._members]

    def _taken(self) -> dict[int, str]:
        taken = {0: f"{self._hello.node.name} leads; expected another --node-rank"}
        for number, member in self._members.items():
            taken[number] = (
                f"{member.lost}, and the sweep has gone on without it; --resume it when it is over"
                if member.lost
                else f"{member.node.name} at {member.node.address} has --node-rank {number} "
                "already; expected another number on every node"
            )
        return taken

    def _send(self, member: _Member, message: Message) -> None:
        try:
            member.channel.send(message)
        except Closed as error:
            self._lose(member, f"{member.node.name} was lost: {error}")

    def _handle(self, member: _Member, message: Message) -> None:
        if isinstance(message, Result):
            attempt = self._attempt
            if attempt and attempt.order.number == message.number:
                attempt.add(member.node.number, message)
        elif isinstance(message, Prepared):
            with self._changed:
                member.prepared = message
                self._changed.notify_all()
        elif isinstance(message, Leave):
            raise Closed(message.reason)
        else:
            raise NotAMessage(f"{type(message).__name__} is for node 0 to say")

    def _lose(self, member: _Member, reason: str) -> None:
        number = member.node.number
        with self._changed:
            member.lost = member.lost or reason
            if not self._complete and self._members.get(number) is member:
                del self._members[number]
                self._say(f"{member.lost}; another may take its place")
            self._changed.notify_all()
        if attempt := self._attempt:
            attempt.lose(number)
