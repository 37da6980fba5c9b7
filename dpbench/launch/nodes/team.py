"""Node 0: all nodes come together, and do what it tells them, until it tells them to end."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import monotonic

from dpbench import units
from dpbench.errors import DataError, DpbenchError, Interrupted, LaunchError, UsageError
from dpbench.launch.nodes.admission import hello, refusal
from dpbench.launch.nodes.arrivals import Arrivals
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.member import Failed, Lost, Member
from dpbench.launch.nodes.messages import (
    Abort,
    End,
    Hello,
    NotAMessage,
    Prepare,
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
    it cannot listen there; when the time to join is over, UsageError with the reason if a node was
    refused, else LaunchError naming the missing nodes.
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


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trial while it runs on several nodes."""

    order: Run
    answers: dict[int, Future[Result]]
    """How the parts of the other nodes end, by their numbers."""

    @property
    def awaited(self) -> list[int]:
        """Nodes that may still end their part."""
        return [number for number, answer in self.answers.items() if not answer.done()]


class Team:
    """The nodes of a sweep, and what they are told to do."""

    def __init__(self, request: NodeRequest, me: Node, say: Say) -> None:
        self.request = request
        self._hello = hello(request, me)
        self._say = say
        self._orders = count(1)
        self._members: dict[int, Member] = {}
        self._changed = threading.Condition()
        """Notified when a node comes or is lost."""
        self._complete = False
        self._over = False
        self._refused: str | None = None
        """Why the latest one was that may not take part."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order of their numbers, this one included."""
        others = (self._members[number].node for number in sorted(self._members))
        return (self._hello.node, *others)

    def lost_reason(self, number: int) -> str | None:
        """Why that node is there no more; None while it is."""
        member = self._members.get(number)
        return member.lost if member else None

    def gather(self, where: str) -> None:
        """Waits until all nodes have come to that endpoint; raises as `lead` does.

        Whoever is refused meanwhile may come again, with the right options.
        """
        deadline = monotonic() + self.request.join_timeout_seconds
        with self._changed:
            while missing := self._missing():
                names = " and ".join(f"node {number}" for number in missing)
                if monotonic() >= deadline:
                    raise self._incomplete(names, where)
                self._say(f"waiting for {names} at {where}")
                while self._missing() == missing and monotonic() < deadline:
                    self._changed.wait(deadline - monotonic())
            self._complete = True

    def serve(self, comer: Hello, channel: Channel) -> None:
        """Lets a node in, or not, and listens to it until it is gone."""
        member = Member(comer.node, channel)
        try:
            if refused := self._admit(comer, member, channel):
                channel.send(Refused(reason=refused))
                return
            member.listen()
        except (Closed, NotAMessage) as error:
            self._lose(member, f"{member.node.name} was lost: {error}")

    def prepare(self, dataset: str) -> None:
        """Has the dataset prepared on all other nodes, and returns when it is.

        Raises DataError with the node and its reason, LaunchError if a node was lost.
        """
        order = Prepare(number=next(self._orders), dataset=dataset)
        answers = [(member.node, member.ask(order)) for member in self._members.values()]
        for node, answer in answers:
            try:
                answer.result()
            except Failed as failed:
                raise DataError(f"{node.name}: {failed}") from None
            except Lost as lost:
                raise LaunchError(
                    f"{lost}, before the first trial; start the same commands again on all nodes"
                ) from None

    @contextmanager
    def attempt(
        self, trial: TrialSpec, limit_seconds: float, address: str, port: int
    ) -> Iterator[Attempt]:
        """Has the other nodes run their ranks of the trial; leaving it stops those that still do.

        All ranks meet in the store at that address and port.
        """
        order = Run(
            number=next(self._orders),
            trial=trial,
            limit_seconds=limit_seconds,
            address=address,
            port=port,
            store_prefix=secrets.token_hex(16),
        )
        others = range(1, len(trial.nodes))
        attempt = Attempt(order, {number: self._members[number].ask(order) for number in others})
        try:
            yield attempt
        finally:
            self.abort(attempt)

    def abort(self, attempt: Attempt) -> None:
        """Tells the nodes whose parts have not ended to end them."""
        for number in attempt.awaited:
            self._members[number].tell(Abort(number=attempt.order.number))

    def give_up(self, number: int, reason: str) -> None:
        """From now on that node counts as lost."""
        member = self._members[number]
        self._lose(member, reason)
        member.close()

    def end(self, farewell: End) -> None:
        """Tells all nodes that it is over, and gives them a moment to hear it."""
        self._over = True
        members = [member for member in self._members.values() if not member.lost]
        for member in members:
            member.dismiss(farewell)
        deadline = monotonic() + FAREWELL_SECONDS
        for member in members:
            member.close(max(0.0, deadline - monotonic()))

    def _admit(self, comer: Hello, member: Member, channel: Channel) -> str | None:
        """Why it is refused; None if it is let in."""
        with self._changed:
            refused = refusal(comer, self._hello, self._taken())
            if refused is None:  # it must hear that before anything else
                channel.send(Welcome(hostname=self._hello.node.hostname))
                self._members[comer.node.number] = member
                devices = units.counted(len(comer.node.devices), "device")
                self._say(f"{comer.node.name} with {devices} came from {comer.node.address}")
                self._changed.notify_all()
            else:
                self._refused = refused
                self._say(f"refused: {refused}")
            return refused

    def _incomplete(self, names: str, where: str) -> DpbenchError:
        waited = units.seconds(self.request.join_timeout_seconds)
        missing = f"{names} did not come to {where} within {waited}"
        if self._refused:
            return UsageError(f"{missing}; refused: {self._refused}")
        return LaunchError(
            f"{missing}; start the same command there with its own --node-rank, or give more "
            "--join-timeout"
        )

    def _missing(self) -> list[int]:
        return [n for n in range(1, self.request.node_count) if n not in self._members]

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

    def _lose(self, member: Member, reason: str) -> None:
        """At the end all go."""
        number = member.node.number
        if self._over or self._members.get(number) is not member:
            return
        member.lose(reason)
        with self._changed:
            if not self._complete:
                del self._members[number]
                self._say(f"{member.lost}; another may take its place")
            self._changed.notify_all()
