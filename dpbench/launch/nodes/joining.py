"""A node's steps to join node 0: connect, prove the token, say hello, be admitted."""

from __future__ import annotations

import socket
from time import monotonic, sleep

from dpbench import units
from dpbench.errors import LaunchError, UsageError
from dpbench.launch.nodes.admission import hello
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.handshake import OtherToken, Stranger, prove_as_node
from dpbench.launch.nodes.messages import NotAMessage, Refused, Welcome
from dpbench.launch.nodes.node import Node, NodeRequest, Say
from dpbench.launch.nodes.token import OPTION, VARIABLE

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
