"""The way of a node to node 0: connect, say hello, be let in."""

from __future__ import annotations

import socket
from time import monotonic, sleep

from dpbench import units
from dpbench.errors import LaunchError, UsageError
from dpbench.launch.nodes.admission import hello
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.messages import NotAMessage, Refused, Welcome
from dpbench.launch.nodes.node import Node, NodeRequest, Say

AGAIN_SECONDS = 0.2
"""Between two attempts to reach node 0."""
CONNECT_SECONDS = 5.0


def join(request: NodeRequest, me: Node, say: Say) -> tuple[Channel, str]:
    """The way to node 0, and how it is called.

    Raises LaunchError if it cannot be reached in time, UsageError if it refuses this node.
    """
    channel = Channel(_connect(request, say), request.lost_seconds)
    try:
        answer = _greet(request, me, channel)
    except BaseException:
        channel.close()
        raise
    channel.start_beats()
    say(f"joined {request.endpoint} as node {me.number} of {request.node_count}")
    return channel, f"node 0 ({answer.hostname})"


def _connect(request: NodeRequest, say: Say) -> socket.socket:
    deadline = monotonic() + request.join_timeout_seconds
    source = None if request.address is None else (request.address, 0)
    waited = False
    while True:
        try:
            return socket.create_connection(
                (request.host, request.port), timeout=CONNECT_SECONDS, source_address=source
            )
        except OSError as error:
            reason = error.strerror or str(error)
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


def _greet(request: NodeRequest, me: Node, channel: Channel) -> Welcome:
    try:
        channel.send(hello(request, me))
        answer = channel.receive()
    except Closed as error:
        raise LaunchError(f"{request.endpoint} did not let this node in: {error}") from None
    except NotAMessage as error:
        raise UsageError(
            f"--rdzv-endpoint {request.endpoint}: what listens there is not node 0 of a sweep: "
            f"{error}"
        ) from None
    if isinstance(answer, Refused):
        raise UsageError(answer.reason)
    if not isinstance(answer, Welcome):
        raise LaunchError(f"{request.endpoint} answered with {type(answer).__name__}")
    return answer
