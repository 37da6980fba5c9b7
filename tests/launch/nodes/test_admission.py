"""Node 0 decides who may take part, and no stranger keeps it busy."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest

from dpbench.launch.nodes.admission import (
    MOST_ADDRESSES,
    MOST_UNPROVED,
    OTHERS,
    Admission,
    Refusals,
    hello,
    refusal,
)
from dpbench.launch.nodes.channel import Channel
from dpbench.launch.nodes.handshake import GREETING, NONCE_BYTES
from dpbench.launch.nodes.messages import Hello
from dpbench.launch.nodes.node import Node
from tests.launch.nodes.builders import Comer, node, request

LEAD = hello(request(0), node(0, options=(("--batch-sizes", "32"),)))
TAKEN = {0: "host0 leads"}


def comer(number: int = 1, *, who: Node | None = None, **changes: object) -> Hello:
    who = who or node(number, options=LEAD.node.options)
    return hello(replace(request(number), **changes), who)  # type: ignore[arg-type]


def other_node(*versions: tuple[str, ...]) -> Node:
    return node(1, options=LEAD.node.options, versions=versions)


def refused(comer: Hello, taken: dict[int, str] = TAKEN) -> str:
    found = refusal(comer, LEAD, taken)
    assert found is not None
    return found


def test_a_node_with_the_same_command_is_let_in() -> None:
    assert refusal(comer(), LEAD, TAKEN) is None


def test_other_devices_cores_and_python_are_let_in() -> None:
    other = node(1, options=LEAD.node.options, devices=("cpu",) * 8)
    other = replace(other, environment=replace(other.environment, python="3.13", cores=64))
    assert refusal(comer(who=other), LEAD, TAKEN) is None


def test_a_number_is_given_once() -> None:
    found = refused(comer(), {**TAKEN, 1: "node 1 (host7) has --node-rank 1 already"})
    assert found == (
        "node 1 (host1) at 127.0.0.1 cannot join: node 1 (host7) has --node-rank 1 already"
    )
    assert "host0 leads" in refused(comer(0))


@pytest.mark.parametrize("number", [2, -1])
def test_there_is_no_node_beyond_the_last(number: int) -> None:
    assert "no such --node-rank; expected 1 to 1" in refused(comer(number))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (comer(node_count=3), "node 1 (host1) has --nnodes 3, node 0 (host0) --nnodes 2"),
        (
            comer(who=other_node(("dpbench", "0.1"), ("torch", "2.6"))),
            "node 1 (host1) differs from node 0 (host0): torch 2.6 instead of 2.13; expected",
        ),
        (
            comer(who=other_node(("torch", "2.13"), ())),
            "dpbench left out instead of 0.1; expected",
        ),
        (
            comer(who=node(1, options=(("--batch-sizes", "64"), ("--steps", "5")))),
            "--batch-sizes 64 instead of 32, --steps 5 instead of left out; expected",
        ),
    ],
)
def test_what_must_be_equal_is_refused_with_both_values(other: Hello, words: str) -> None:
    found = refused(other)
    assert words in found


def test_a_value_of_any_length_is_cut_and_cannot_tell_a_terminal_what_to_do() -> None:
    options = (("--batch-sizes", "\x1b[2J" + "8" * 900_000), *((f"--x{n}", "1") for n in range(99)))
    found = refused(comer(who=node(1, options=options)))
    assert "--batch-sizes \\x1b[2J888" in found
    assert found.isprintable()
    assert "and 92 more" in found
    assert len(found) < 2000


def no_node(_: Hello, __: Channel) -> None:
    raise AssertionError("nobody says hello here")


@contextmanager
def door(
    said: list[str], serve: Callable[[Hello, Channel], None] = no_node, **asked: Any
) -> Iterator[int]:
    with Admission(request(0, **asked), node(0), serve, said.append) as admission:
        said.clear()  # that it listens on the loopback
        yield admission.port


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
        assert said[0].startswith("refused a connection from 127.0.0.1: ")
    assert said[1:] == ["refused 21 connections from 127.0.0.1"]
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
    assert said[0].startswith("refused a connection from 127.0.0.1: it closed the connection")


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
    refusals = Refusals(said.append)
    for number in range(1000):
        refusals.add(f"fe80::{number:x}", "silence")
    assert len(said) == MOST_ADDRESSES + 1
    refusals.sum_up()
    assert said[-1] == f"refused {1000 - MOST_ADDRESSES} connections from {OTHERS}"
    refusals.add("fe80::1", "silence")
    assert len(said) == MOST_ADDRESSES + 2


RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing resets the connection."""
