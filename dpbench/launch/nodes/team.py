"""Node 0: directs the nodes that were admitted until the end, each with one order at a time."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any

from dpbench import units
from dpbench.errors import DataError, DpbenchError, Interrupted, LaunchError, UsageError
from dpbench.launch.nodes.admission import Admission, hello, refusal
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
from dpbench.launch.nodes.node import Node, NodeRequest
from dpbench.messages import Say
from dpbench.rendezvous.launch_variables import endpoint_text
from dpbench.specs import TrialSpec

FAREWELL_SECONDS = 2.0
"""Seconds that the others may take to receive the end."""


@contextmanager
def lead(request: NodeRequest, me: Node, *, say: Say) -> Iterator[Team]:
    """Listen at the endpoint until all nodes have joined; tells them to end when the context is
    left.

    Leaving with Interrupted or KeyboardInterrupt ends them as interrupted. Raises UsageError if
    this host cannot listen there. When the time to join is over, it raises UsageError with the
    reason if a node was refused, else LaunchError with the missing nodes.
    """
    team = Team(request, me, say)
    with Admission(request, me, team.serve, say) as admission:
        try:
            team.gather(endpoint_text(request.host, admission.port))
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
    """Results of the other nodes' parts, by node number."""

    @property
    def awaited(self) -> list[int]:
        """Nodes whose part has not ended."""
        return [number for number, answer in self.answers.items() if not answer.done()]


class Team:
    """The nodes of a sweep, and the orders to them."""

    def __init__(self, request: NodeRequest, me: Node, say: Say) -> None:
        self.request = request
        self._hello = hello(request, me)
        self._say = say
        self._orders = count(1)
        self._members: dict[int, TeamMember] = {}
        self._changed = threading.Condition()
        """Notified when a node joins or is lost."""
        self._complete = False
        self._over = False
        self._refused: str | None = None
        """Reason for the latest refusal of a node."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in the order of their numbers, including this one."""
        others = (self._members[number].node for number in sorted(self._members))
        return (self._hello.node, *others)

    def lost_reason(self, number: int) -> str | None:
        """Reason why that node is lost; None while it is not."""
        member = self._members.get(number)
        return member.lost if member else None

    def gather(self, where: str) -> None:
        """Wait until all nodes have joined at that endpoint; raises the same errors as `lead`.

        A refused node may try again, with the right options.
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
        """Admit a node or not, and listen to it until it is gone."""
        member = TeamMember(comer.node, channel)
        try:
            if refused := self._admit(comer, member, channel):
                channel.send(Refused(reason=refused))
                return
            member.listen()
        except (Closed, NotAMessage) as error:
            self._lose(member, f"{member.node.name} was lost: {error}")

    def prepare(self, dataset: str) -> None:
        """Have all other nodes prepare the dataset, and return when they have.

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
        """Have the other nodes run their ranks of the trial; leaving the context stops those still
        running.

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
        """Tell the nodes whose parts have not ended to end them."""
        for number in attempt.awaited:
            self._members[number].tell(Abort(number=attempt.order.number))

    def give_up(self, number: int, reason: str) -> None:
        """Count that node as lost from now on."""
        member = self._members[number]
        self._lose(member, reason)
        member.close()

    def end(self, farewell: End) -> None:
        """Tell all nodes that the sweep is over, and give them a moment to receive it."""
        self._over = True
        members = [member for member in self._members.values() if not member.lost]
        for member in members:
            member.dismiss(farewell)
        deadline = monotonic() + FAREWELL_SECONDS
        for member in members:
            member.close(max(0.0, deadline - monotonic()))

    def _admit(self, comer: Hello, member: TeamMember, channel: Channel) -> str | None:
        """Reason for refusing the node; None if it is admitted."""
        with self._changed:
            refused = refusal(comer, self._hello, self._taken())
            if refused is None:  # Welcome must be its first message
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
        return LaunchError(f"{missing}; start the same command there with its own --node-rank")

    def _missing(self) -> list[int]:
        return [n for n in range(1, self.request.node_count) if n not in self._members]

    def _taken(self) -> dict[int, str]:
        """The holder of each number in use."""
        taken = {0: f"{self._hello.node.name} leads; expected another --node-rank"}
        for number, member in self._members.items():
            taken[number] = (
                f"{member.lost}, and the sweep has gone on without it; --resume it when it is over"
                if member.lost
                else f"{member.node.name} at {member.node.address} has --node-rank {number} "
                "already; expected another number on every node"
            )
        return taken

    def _lose(self, member: TeamMember, reason: str) -> None:
        """Mark a node as lost; at the end all leave, which is no loss."""
        number = member.node.number
        if self._over or self._members.get(number) is not member:
            return
        member.lose(reason)
        with self._changed:
            if not self._complete:
                del self._members[number]
                self._say(f"{member.lost}; another may take its place")
            self._changed.notify_all()


Answer = Prepared | Result


class Lost(Exception):
    """The node is gone; the text says which one, and since when or why."""


class Failed(Exception):
    """The node could not carry out the order; `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


class TeamMember:
    """A node. `listen` runs in the thread that created it; any thread may call the other
    methods."""

    def __init__(self, node: Node, channel: Channel) -> None:
        self.node = node
        self.lost: str | None = None
        """Reason why the node is lost; None while it is not."""
        self._channel = channel
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._asked = 0
        self._answer: Future[Answer] = Future()
        """The answer to the last order."""

    def ask(self, order: Prepare | Run) -> Future[Any]:
        """Send an order; the future gives the answer, or raises Failed or Lost."""
        with self._lock:
            self._asked, self._answer = order.number, Future()
            answer, lost = self._answer, self.lost
        if lost:
            answer.set_exception(Lost(lost))
        else:
            self.tell(order)
        return answer

    def tell(self, message: Message) -> None:
        """Send a message; it may get lost if the node is lost."""
        try:
            self._channel.send(message)
        except Closed as error:
            self.lose(f"{self.node.name} was lost: {error}")

    def lose(self, reason: str) -> bool:
        """Mark the node as lost; returns False if it was already, since the first reason counts."""
        with self._lock:
            if self.lost:
                return False
            self.lost = reason
        self._settle(Lost(reason))
        with suppress(Closed):  # the node may have slept, and wake up
            self._channel.send(End(error=reason))
        return True

    def listen(self) -> None:
        """Receive its answers as long as it is there; raises Closed or NotAMessage."""
        self._channel.start_beats()
        while True:
            message = self._channel.receive()
            if isinstance(message, Leave):
                raise Closed(message.reason)
            if not isinstance(message, Answer):
                raise NotAMessage(f"{type(message).__name__} is for node 0 to say")
            if message.number == self._asked:  # otherwise from a trial that was over before
                self._settle(Failed(message) if message.failed else message)

    def dismiss(self, farewell: End) -> None:
        """Tell the node that there is no more to do."""
        with suppress(Closed):
            self._channel.send(farewell)
        self._channel.finish()

    def close(self, seconds: float = 0.0) -> None:
        """End the connection; the node gets `seconds` to end it first."""
        if seconds:
            self._thread.join(seconds)
        self._channel.close()

    def _settle(self, outcome: Answer | Exception) -> None:
        with self._lock:
            if self._answer.done():
                return
            if isinstance(outcome, Exception):
                self._answer.set_exception(outcome)
            else:
                self._answer.set_result(outcome)
