"""Node 0: all nodes come together, and do what it tells them, until it tells them to end."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from dpbench.errors import DataError, Interrupted, LaunchError
from dpbench.launch.nodes.arrivals import Arrivals
from dpbench.launch.nodes.attempt import Attempt
from dpbench.launch.nodes.messages import (
    Abort,
    End,
    Message,
    NotAMessage,
    Prepare,
    Prepared,
    Result,
    Run,
)
from dpbench.launch.nodes.node import Node, NodeRequest, Say, endpoint_text
from dpbench.launch.nodes.roster import Roster
from dpbench.specs import TrialSpec


@contextmanager
def lead(request: NodeRequest, me: Node, *, say: Say) -> Iterator[Team]:
    """Listens at the endpoint until all nodes have joined; tells them to end when it is left.

    Leaving with Interrupted or KeyboardInterrupt ends them as interrupted. Raises UsageError if
    it cannot listen there; when the time to join is over, UsageError with the reason if a node was
    refused, else LaunchError naming the missing nodes.
    """
    team = Team(request, me, say)
    with Arrivals(request, me, team.roster.serve, say) as arrivals:
        try:
            team.roster.gather(endpoint_text(request.host, arrivals.port))
            yield team
        except BaseException as error:
            team.roster.end(_farewell(error))
            raise
        team.roster.end(End())


def _farewell(error: BaseException) -> End:
    if isinstance(error, Interrupted):
        return End(signal=error.signal_number)
    if isinstance(error, KeyboardInterrupt):
        return End(signal=signal.SIGINT)
    return End(error=str(error) or type(error).__name__)


class Team:
    """The nodes of a sweep, and what they are told to do."""

    def __init__(self, request: NodeRequest, me: Node, say: Say) -> None:
        self.request = request
        self.roster = Roster(request, me, say, heed=self._heed, mourn=self._mourn)
        self._prepared: dict[int, Prepared] = {}
        self._attempts = 0
        self._attempt: Attempt | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order of their numbers, this one included."""
        return self.roster.nodes

    def lost_reason(self, number: int) -> str | None:
        """Why that node is there no more; None while it is."""
        return self.roster.lost_reason(number)

    def prepare(self, dataset: str) -> None:
        """Has the dataset prepared on all other nodes, and returns when it is.

        Raises DataError with the node and its reason, LaunchError if a node was lost.
        """
        others = self.nodes[1:]
        self._prepared.clear()
        for node in others:
            self.roster.send(node.number, Prepare(dataset=dataset))
        with self.roster.changed:
            self.roster.changed.wait_for(
                lambda: all(
                    n.number in self._prepared or self.lost_reason(n.number) for n in others
                )
            )
        for node in others:
            if lost := self.lost_reason(node.number):
                raise LaunchError(
                    f"{lost}, before the first trial; start the same commands again on all nodes"
                )
            if error := self._prepared[node.number].error:
                raise DataError(f"{node.name}: {error}")

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
            store_prefix=secrets.token_hex(16),
        )
        self._attempt = attempt = Attempt(order)
        try:
            for number in attempt.missing:
                self.roster.send(number, order)
                if self.lost_reason(number):
                    attempt.lose(number)
            yield attempt
        finally:
            self.abort(attempt)
            self._attempt = None

    def abort(self, attempt: Attempt) -> None:
        """Tells the nodes whose parts have not ended to end them."""
        for number in attempt.awaited:
            self.roster.send(number, Abort(number=attempt.order.number))

    def _heed(self, number: int, message: Message) -> None:
        if isinstance(message, Result):
            attempt = self._attempt
            if attempt and attempt.order.number == message.number:
                attempt.add(number, message)
        elif isinstance(message, Prepared):
            with self.roster.changed:
                self._prepared[number] = message
                self.roster.changed.notify_all()
        else:
            raise NotAMessage(f"{type(message).__name__} is for node 0 to say")

    def _mourn(self, number: int) -> None:
        if attempt := self._attempt:
            attempt.lose(number)
