"""Every node but node 0: joins, runs its ranks of each trial on order, and ends on order."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from dpbench import units
from dpbench.architecture import with_input_shape
from dpbench.data.user_code import NamedCode
from dpbench.errors import DpbenchError, Interrupted, LaunchError, UsageError
from dpbench.launch.agent import PartFailed, scratch_folder
from dpbench.launch.machine import in_child
from dpbench.launch.nodes.admission import hello
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.handshake import OPTION, VARIABLE, OtherToken, Stranger, prove_as_node
from dpbench.launch.nodes.launcher import run_order
from dpbench.launch.nodes.messages import (
    Abort,
    End,
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
from dpbench.measure.trial import measure
from dpbench.messages import Say

PrepareData = Callable[[str], Path | None]
"""Prepares the dataset of that name on this host and returns its folder, None if it is synthetic.
If it raises a DpbenchError, node 0 gets the message."""
AGAIN_SECONDS = 0.2
"""Seconds between two attempts to reach node 0."""
CONNECT_SECONDS = 5.0
PROOFS_REFUSED = 3
"""Consecutive refusals of the token that are believed. Node 0 may drop a node by mistake if
strangers crowd it, but not so often."""


def join(request: NodeRequest, me: Node, say: Say) -> tuple[Channel, str]:
    """Connect to node 0; returns the channel and node 0's name.

    It retries as long as the time to join lasts. Raises LaunchError if node 0 cannot be reached in
    time, UsageError if it has another token or refuses this node.
    """
    channel = _connect(request, say)
    try:
        answer = _greet(request, me, channel)
    except BaseException:
        channel.close()
        raise
    channel.start_beats()
    say(f"joined {request.endpoint} as node {me.number} of {request.node_count}")
    return channel, f"node 0 ({answer.hostname})"


def _connect(request: NodeRequest, say: Say) -> Channel:
    deadline = monotonic() + request.join_timeout_seconds
    refusals, waited = 0, False
    while True:
        try:
            return _try(request)
        except OtherToken as error:
            refusals, reason = refusals + 1, str(error)
        except (Stranger, OSError) as error:
            refusals, reason = 0, getattr(error, "strerror", None) or str(error)
        if refusals == PROOFS_REFUSED:
            raise UsageError(
                f"--rdzv-endpoint {request.endpoint}: what listens there does not know the token "
                f"of this node; expected the one that node 0 prints, in {VARIABLE}, or the same "
                f"{OPTION} as there"
            )
        if monotonic() >= deadline:
            raise LaunchError(
                f"node 0 did not answer at {request.endpoint} for "
                f"{units.seconds(request.join_timeout_seconds)} ({reason}); start the same command "
                "there with --node-rank 0, and see whether this host can reach it"
            )
        if not waited:
            say(f"waiting for node 0 at {request.endpoint} ({reason})")
        waited = True
        sleep(AGAIN_SECONDS)


def _try(request: NodeRequest) -> Channel:
    """Make one attempt; raises Stranger, and OSError if nobody listens."""
    source = None if request.address is None else (request.address, 0)
    connection = socket.create_connection(
        (request.host, request.port), timeout=CONNECT_SECONDS, source_address=source
    )
    try:
        return Channel(connection, prove_as_node(connection, request.token), request.lost_seconds)
    except BaseException:
        connection.close()
        raise


def _greet(request: NodeRequest, me: Node, channel: Channel) -> Welcome:
    try:
        channel.send(hello(request, me))
        answer = channel.receive()
    except (Closed, NotAMessage) as error:
        raise LaunchError(f"{request.endpoint} did not let this node in: {error}") from None
    if isinstance(answer, Refused):
        raise UsageError(answer.reason)
    if not isinstance(answer, Welcome):
        raise LaunchError(f"{request.endpoint} answered with {type(answer).__name__}")
    return answer


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
        parts = Parts(request, me, prepare, logs, traces)
        return _Follower(channel, lead, parts, say).follow_orders()
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

    def follow_orders(self) -> str:
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


class Parts:
    """Carries out node 0's orders on this node."""

    def __init__(
        self, request: NodeRequest, me: Node, prepare: PrepareData, logs: Path, traces: Path
    ) -> None:
        self._request = request
        self._me = me
        self._named = _named_code(me)
        self._prepare = prepare
        self.logs = logs
        self._traces = traces
        self._folders: dict[str, Path | None] = {}
        """Folders of the prepared datasets."""

    def prepare(self, number: int, dataset: str) -> Prepared:
        """Prepare the dataset, and start the server that ranks are forked from, so that the first
        trial does not pay for its start."""
        if refused := self._named.refusal(dataset=dataset):
            return Prepared(number=number, error=refused)
        try:
            in_child(os.getpid)
            self._folders[dataset] = self._prepare(dataset)
        except DpbenchError as error:
            return Prepared(number=number, error=str(error))
        return Prepared(number=number)

    def run(self, order: Run, stop: threading.Event) -> Result:
        """Run this node's ranks until they have ended, or `stop` is set."""
        if stop.is_set():
            return Result(number=order.number)
        trial, workload = order.trial, order.trial.workload
        dataset = workload.dataset
        if refused := self._named.refusal(
            architecture=workload.architecture, dataset=dataset, step=workload.step
        ):
            return Result(number=order.number, error=refused)
        if dataset not in self._folders and (error := self.prepare(order.number, dataset).error):
            return Result(number=order.number, error=error)
        work = partial(measure, trial, self._folders[dataset], traces=self._traces)
        try:
            with scratch_folder(self.logs, trial.trial_id) as scratch:
                reports = run_order(order, self._me, self._request, work, scratch, stop)
        except PartFailed as failed:
            return Result(number=order.number, traces=failed.traces, error=failed.outside)
        except (LaunchError, OSError) as error:
            return Result(number=order.number, error=str(error))
        return Result(number=order.number, reports=tuple(reports))


def _named_code(node: Node) -> NamedCode:
    """The node's NamedCode, as its command has it."""
    typed = {option: value.strip() for option, value in node.options}
    arch = typed.get("--arch")
    if arch is not None and "--input-shape" in typed:
        arch = with_input_shape(arch, typed["--input-shape"])
    return NamedCode(architecture=arch, dataset=typed.get("--data"), step=typed.get("--step"))
