"""Strangers at the door of node 0: one line for each address, and never more than a few at once."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dpbench.launch.nodes.arrivals import MOST_GREETING, Arrivals
from dpbench.launch.nodes.channel import Channel
from dpbench.launch.nodes.messages import Hello
from dpbench.launch.nodes.turned_away import MOST_ADDRESSES, OTHERS, TurnedAway
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
            last.sendall(b"?\n")
            assert last.recv(2**16)
        eventually(lambda: bool(said) and not listeners())
        assert len(said) == 1
        assert said[0].startswith("turned away who came from 127.0.0.1: ")
    assert said[1:] == ["turned away 21 connections from 127.0.0.1"]
    assert not raised


def test_who_sends_a_byte_now_and_then_has_no_more_time_than_the_silent() -> None:
    said: list[str] = []
    with door(said, lost_seconds=0.5) as port, knock(port) as connection:
        start = time.monotonic()
        while not said and time.monotonic() < start + 10:
            connection.sendall(b"[")
            time.sleep(0.1)
        assert time.monotonic() - start < 5
    assert "no greeting within 500 ms" in said[0]


def test_the_silent_are_few_and_a_node_may_come_when_they_have_gone() -> None:
    said: list[str] = []
    came = threading.Event()
    with door(said, lambda *_: came.set()) as port:
        with ExitStack() as silent:
            for _ in range(MOST_GREETING):
                silent.enter_context(knock(port))
            eventually(lambda: listeners() == MOST_GREETING)
            with knock(port) as last:
                assert last.recv(1) == b""
            line = (
                f"turned away who came from 127.0.0.1: {MOST_GREETING} others have yet to say "
                "hello; more of them are counted"
            )
            eventually(lambda: said == [line])
        eventually(lambda: not listeners())
        Comer()(port)
        assert came.wait(10)


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
