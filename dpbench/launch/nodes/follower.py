"""Every node but node 0: joins, runs its ranks of each trial on order, and ends on order."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from pathlib import Path

from dpbench import units
from dpbench.errors import Interrupted, LaunchError
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.joining import join
from dpbench.launch.nodes.messages import (
    Abort,
    End,
    Leave,
    Message,
    NotAMessage,
    Prepare,
    Run,
)
from dpbench.launch.nodes.node import Node, NodeRequest, Say
from dpbench.launch.nodes.parts import Parts, PrepareData


def follow(
    request: NodeRequest, me: Node, *, prepare: PrepareData, logs: Path, traces: Path, say: Say
) -> str:
    """Run this host's ranks of all trials until node 0 has no more; returns the closing message.

    Failed trials leave their ranks' output in `logs`, traced ones their timelines in `traces`.
    Raises UsageError if node 0 refuses this node, LaunchError if node 0 cannot be reached, is
    lost or has failed, Interrupted with node 0's signal if it was interrupted, or with this
    node's own.
    """
    channel, lead = join(request, me, say)
    try:
        return _Follower(channel, lead, Parts(request, me, prepare, logs, traces), say).obey()
    except (Interrupted, KeyboardInterrupt):
        _leave(channel, "it was interrupted")
        raise
    except Exception as error:
        _leave(channel, f"it failed: {error}")
        raise
    finally:
        channel.close()


def _leave(channel: Channel, reason: str) -> None:
    with suppress(Closed):
        channel.send(Leave(reason=reason))


class _Follower:
    """One thread listens, and stops ranks at once; the calling thread does the work."""

    def __init__(self, channel: Channel, lead: str, parts: Parts, say: Say) -> None:
        self._channel = channel
        self._lead = lead
        self._parts = parts
        self._say = say
        self._orders: queue.SimpleQueue[Message | Closed] = queue.SimpleQueue()
        self._stops: dict[int, threading.Event] = {}
        """Stop events of the ordered trials, by their numbers."""
        self._done = 0

    def obey(self) -> str:
        """Follow node 0's orders until the end; raises the same errors as `follow`."""
        threading.Thread(target=self._listen, name="node-orders", daemon=True).start()
        while True:
            order = self._orders.get()
            if isinstance(order, Prepare):
                self._answer(self._parts.prepare(order.number, order.dataset))
            elif isinstance(order, Run):
                self._run(order)
            elif isinstance(order, End):
                return self._end(order)
            elif isinstance(order, Closed):
                raise LaunchError(f"{self._lead} was lost: {order}")
            else:
                raise LaunchError(f"{self._lead} sent {type(order).__name__}")

    def _listen(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, Abort):
                    self._stop(message.number)
                    continue
                if isinstance(message, Run):
                    self._stops[message.number] = threading.Event()
                if isinstance(message, End):
                    self._stop(*self._stops)
                self._orders.put(message)
        except (Closed, NotAMessage) as error:
            self._orders.put(Closed(str(error)))
            self._stop(*self._stops)

    def _stop(self, *numbers: int) -> None:
        for number in numbers:
            if stop := self._stops.get(number):  # otherwise it has just ended
                stop.set()

    def _run(self, order: Run) -> None:
        result = self._parts.run(order, self._stops[order.number])
        self._answer(result)
        del self._stops[order.number]
        self._done += not result.failed
        if not all(trace.done or trace.aborted for trace in result.traces):
            label, logs = order.trial.label, self._parts.logs
            self._say(f"{label} failed; what the ranks here have written is in {logs}")

    def _answer(self, message: Message) -> None:
        """Send an answer. If node 0 is gone, the listening thread reports it."""
        with suppress(Closed):
            self._channel.send(message)

    def _end(self, order: End) -> str:
        if order.signal is not None:
            raise Interrupted(order.signal, f"{self._lead} was interrupted")
        if order.error is not None:
            raise LaunchError(f"ended by {self._lead}: {order.error}")
        trials = units.counted(self._done, "trial")
        return f"{self._lead} has no more to run; {trials} completed with ranks of this node"
