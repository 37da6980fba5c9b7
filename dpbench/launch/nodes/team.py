"""Node 0: admits the nodes that prove the token, and directs them until the end."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count
from time import monotonic
from typing import Self

from dpbench import units
from dpbench.errors import DataError, DpbenchError, Interrupted, LaunchError, UsageError
from dpbench.launch.nodes.admission import hello, refusal
from dpbench.launch.nodes.handshake import Stranger, prove_as_lead
from dpbench.launch.nodes.member import Failed, Lost, Member
from dpbench.launch.nodes.messages import (
    Abort,
    Channel,
    Closed,
    End,
    Hello,
    NotAMessage,
    Prepare,
    Refused,
    Result,
    Run,
    Welcome,
)
from dpbench.launch.nodes.node import Node, NodeRequest, Say
from dpbench.rendezvous.launch_variables import endpoint_text
from dpbench.specs import TrialSpec

MOST_UNPROVED = 64
"""Most connections that have not proved the token yet; this many nodes may come at the same
moment."""
AGAIN_SECONDS = 0.1
"""Seconds before the next attempt if a connection could not be accepted."""
Serve = Callable[[Hello, Channel], None]
"""Serves a node that has said hello, until it leaves."""


class Arrivals:
    """Listens on the address of node 0 and no other; each connection has a thread of its own."""

    def __init__(self, request: NodeRequest, me: Node, serve: Serve, say: Say) -> None:
        """Raises UsageError if it cannot listen there."""
        self._request = request
        self._serve = serve
        self._turned_away = TurnedAway(say)
        self._unproved: dict[socket.socket, str] = {}
        """Unproved connections with their addresses, the oldest first."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = _listen(request, me)
        self.port: int = self._listener.getsockname()[1]
        if ip_address(me.address.partition("%")[0]).is_loopback:
            say(
                f"node 0 listens on {me.address}, which is the loopback: no other host can reach "
                "it; if there are any, give --local-addr with an address that they can reach"
            )

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="node-arrivals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._listener.close()
        self._turned_away.sum_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, (address, *_) = self._listener.accept()
            except OSError:  # closed; or too many open files, or gone before it was accepted
                if self._over.wait(AGAIN_SECONDS):
                    return
                continue
            self._make_room()
            with self._lock:
                self._unproved[connection] = address
            threading.Thread(
                target=self._attend, args=(connection, address), name="node-listener", daemon=True
            ).start()

    def _make_room(self) -> None:
        """If there are too many connections, end the oldest one of the address that has the
        most."""
        with self._lock:
            if len(self._unproved) < MOST_UNPROVED:
                return
            (crowd, _), *_ = Counter(self._unproved.values()).most_common(1)
            oldest = next(one for one, address in self._unproved.items() if address == crowd)
            del self._unproved[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it

    def _attend(self, connection: socket.socket, address: str) -> None:
        with closing(connection):
            if (channel := self._prove(connection, address)) is None:
                return
            try:
                if greeting := self._greet(channel, address):
                    self._serve(greeting, channel)
            finally:
                channel.close()

    def _prove(self, connection: socket.socket, address: str) -> Channel | None:
        """The channel; None for a connection that does not prove the token, which is told
        nothing."""
        try:
            keys = prove_as_lead(connection, self._request.token)
            return Channel(connection, keys, self._request.lost_seconds)
        except (Stranger, OSError) as error:
            self._turned_away.add(address, str(error))
            return None
        finally:
            with self._lock:
                self._unproved.pop(connection, None)

    def _greet(self, channel: Channel, address: str) -> Hello | None:
        """The node's hello; None if it is no node of this version, which is then told so."""
        try:
            greeting = channel.receive()
            if not isinstance(greeting, Hello):
                raise NotAMessage(f"{type(greeting).__name__} before any greeting")
        except (Closed, NotAMessage) as error:
            self._turned_away.add(address, str(error))
            with suppress(Closed):
                channel.send(Refused(reason=f"node 0 did not understand: {error}"))
            return None
        return greeting


def _listen(request: NodeRequest, me: Node) -> socket.socket:
    family = socket.AF_INET6 if ":" in me.address else socket.AF_INET
    try:
        return socket.create_server((me.address, request.port), family=family)
    except OSError as error:
        remedy = "expected a port above 1023, or the right to use it"
        if error.errno == errno.EADDRINUSE:
            remedy = "something listens there already; expected a free port, the same on all nodes"
        raise UsageError(
            f"--rdzv-endpoint {request.endpoint}: cannot listen on {me.address}: "
            f"{os.strerror(error.errno or 0)}; {remedy}"
        ) from None


MOST_ADDRESSES = 64
"""Most addresses that are named, since the owner of an IPv6 network could use up any number."""
OTHERS = "other addresses"


class TurnedAway:
    """Reports the first refusal of each address at once, and at the end how many followed."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()
        self._over = False
        self._lock = threading.Lock()

    def add(self, address: str, reason: str) -> None:
        with self._lock:
            if self._over:  # connections that were silent until the end are not reported
                return
            if address not in self._counts and len(self._counts) >= MOST_ADDRESSES:
                address = OTHERS
            self._counts[address] += 1
            if self._counts[address] == 1:
                self._say(
                    f"turned away who came from {address}: {reason}; more of them are counted"
                )

    def sum_up(self) -> None:
        """Report the counts of repeated refusals; nothing is reported after that."""
        with self._lock:
            self._over = True
            for address, count in self._counts.items():
                if count > 1:
                    times = units.counted(count, "connection")
                    self._say(f"turned away {times} from {address}")


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
        self._members: dict[int, Member] = {}
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
        member = Member(comer.node, channel)
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

    def _admit(self, comer: Hello, member: Member, channel: Channel) -> str | None:
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
        return LaunchError(
            f"{missing}; start the same command there with its own --node-rank, or give more "
            "--join-timeout"
        )

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

    def _lose(self, member: Member, reason: str) -> None:
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
