"""Another node as node 0 sees it: it gets one order at a time, and answers or is lost."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from dpbench.launch.nodes.messages import (
    Channel,
    Closed,
    End,
    Leave,
    Message,
    NotAMessage,
    Prepare,
    Prepared,
    Result,
    Run,
)
from dpbench.launch.nodes.node import Node

Answer = Prepared | Result


class Lost(Exception):
    """The node is gone; the text says which one, and since when or why."""


class Failed(Exception):
    """The node could not carry out the order; `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


class Member:
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
