"""Strangers at the door of node 0: told nothing, one line for each address, and a few at once."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil
import pytest

from dpbench.launch.nodes.arrivals import (
    MOST_ADDRESSES,
    MOST_UNPROVED,
    OTHERS,
    Arrivals,
    TurnedAway,
)
from dpbench.launch.nodes.channel import Channel
from dpbench.launch.nodes.handshake import GREETING, NONCE_BYTES
from dpbench.launch.nodes.messages import Hello
from tests.launch.nodes.builders import Comer, node, request

RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing resets the connection."""


def no_node(_: Hello, __: Channel) -> None:
    raise AssertionError("nobody says hello here")


@contextmanager
def door(
    said: list[str], serve: Callable[[Hello, Channel], None] = no_node, **asked: Any
) -> Iterator[int]:
    with Arrivals(request(0, **asked), node(0), serve, said.append) as arrivals:
        said.clear()  # that it listens on the loopback
        yield arrivals.port


def knock(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listeners() -> int:
    return sum(thread.name == "node-listener" for thread in threading.enumerate())


def test_connections_that_are_reset_are_one_line_and_a_count_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    said: list[str] = []
    with door(said) as port:
        for _ in range(20):
            connection = knock(port)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
        with knock(port) as last:  # they are accepted in their order
            last.sendall(b"no hello")
            assert last.recv(2**16) == b""
        eventually(lambda: bool(said) and not listeners())
        assert len(said) == 1
        assert said[0].startswith("turned away who came from 127.0.0.1: ")
    assert said[1:] == ["turned away 21 connections from 127.0.0.1"]
    assert not raised


def test_a_node_comes_at_once_beside_any_number_of_the_silent() -> None:
    """And they are no more threads and connections than a few, however many there are."""
    said: list[str] = []
    came = threading.Event()
    with door(said, lambda *_: came.set()) as port, ExitStack() as silent:
        for _ in range(3 * MOST_UNPROVED):
            silent.enter_context(knock(port))
        eventually(lambda: listeners() == MOST_UNPROVED)
        start = time.monotonic()
        Comer()(port)
        assert came.wait(5)
        assert time.monotonic() - start < 5
        eventually(lambda: bool(said))
    assert said[0].startswith("turned away who came from 127.0.0.1: it closed the connection")


def test_the_address_with_the_most_connections_makes_room() -> None:
    """So strangers elsewhere cannot put out a node that has just come."""
    with door([]) as port, ExitStack() as open_ones:
        first = open_ones.enter_context(
            socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.2", 0))
        )
        crowd = [open_ones.enter_context(knock(port)) for _ in range(2 * MOST_UNPROVED)]
        assert all(one.recv(1) == b"" for one in crowd[:MOST_UNPROVED])
        first.settimeout(0.2)
        with pytest.raises(TimeoutError):
            first.recv(1)


def test_a_line_without_an_end_takes_node_0_to_no_size() -> None:
    """Before it is known who sends it, no more is read than a proof takes."""
    process = psutil.Process()
    with door([]) as port, knock(port) as stranger:
        before = process.memory_info().rss
        stranger.sendall(GREETING + bytes(NONCE_BYTES))
        sent = 0
        with suppress(OSError):
            while sent < 2**28:
                sent += stranger.send(bytes(2**20))
        assert sent < 2**26
        assert process.memory_info().rss - before < 2**25


def test_any_number_of_addresses_is_a_bounded_number_of_lines() -> None:
    said: list[str] = []
    away = TurnedAway(said.append)
    for number in range(1000):
        away.add(f"fe80::{number:x}", "silence")
    assert len(said) == MOST_ADDRESSES + 1
    away.sum_up()
    assert said[-1] == f"turned away {1000 - MOST_ADDRESSES} connections from {OTHERS}"
    away.add("fe80::1", "silence")
    assert len(said) == MOST_ADDRESSES + 2
