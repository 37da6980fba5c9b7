"""What travels between nodes is read back as it was, and nothing else is read at all."""

from __future__ import annotations

import json
import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Thread
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.launch.causes import RankTrace, Stuck
from dpbench.launch.nodes.admission import hello
from dpbench.launch.nodes.handshake import Keys
from dpbench.launch.nodes.messages import (
    LONGEST_BYTES,
    PROTOCOL,
    Abort,
    Beat,
    Channel,
    Closed,
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
    from_json,
    to_json,
)
from dpbench.launch.rank import Failure
from dpbench.measure.trial import RankReport
from dpbench.records import RankMeasurement, Verification, Window
from tests.builders import trial_spec
from tests.launch.nodes.builders import node, request

REPORT = RankReport(
    item="rows",
    items_per_sample=2,
    verification=Verification(
        passed=True, max_relative_error=float("inf"), tolerance=1e-10, tensors_compared=2
    ),
    measurement=RankMeasurement(
        rank=1,
        pid=7,
        device="cpu",
        timed=Window(start_seconds=0.1, seconds=0.3, step_seconds=(0.1, 0.2), samples=8),
        setup_seconds=1.5,
    ),
)
FAILURE = Failure(1, 0.25, "ValueError", "broken", "", lost_peer=False, out_of_memory=False)
EVERY_KIND: tuple[Message, ...] = (
    hello(request(1), node(1, options=(("--batch-sizes", "32"),))),
    Welcome(hostname="host0"),
    Refused(reason="no"),
    Beat(),
    Prepare(number=2, dataset="digits"),
    Prepared(number=2, error="no file"),
    Run(
        number=3,
        trial=trial_spec(nodes=(1, 1)),
        limit_seconds=60.0,
        address="::1",
        port=40_000,
        store_prefix="secret",
    ),
    Abort(number=3),
    Result(number=3, reports=(REPORT,)),
    Result(
        number=3,
        traces=(
            RankTrace(rank=0, stuck=Stuck(place="loss (model.py:12)", waiting=False)),
            RankTrace(rank=1, failure=FAILURE, exit_code=-9, aborted=True),
        ),
    ),
    Leave(reason="it was interrupted"),
    End(signal=2),
)


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
def test_a_message_is_read_back_as_it_was(message: Message) -> None:
    assert from_json(to_json(message)) == message


def test_every_kind_is_tried() -> None:
    assert {type(message) for message in EVERY_KIND} == set(get_args(Message))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b'["Run"]\n',
        b'["Run", {}]\n',
        b'["Popen", {"args": "true"}]\n',
        b'["Abort", {"number": 1, "more": 2}]\n',
        b'["Abort", {"number": "1"}]\n',
        b'[["Abort"], {"number": 1}]\n',
        b'["Hello", 3]\n',
        b"[" * 100_000,
        pickle.dumps(Abort(number=1)),
    ],
)
def test_anything_else_is_refused_and_shown(line: bytes) -> None:
    with pytest.raises(NotAMessage, match=r"^not a message of dpbench: b[^(]*$"):
        from_json(line)


def test_another_protocol_is_told_apart_before_its_fields_are_read() -> None:
    name, content = json.loads(to_json(EVERY_KIND[0]))
    line = json.dumps([name, {**content, "protocol": PROTOCOL + 1, "new": 1}]).encode()
    with pytest.raises(NotAMessage, match=f"protocol {PROTOCOL + 1} instead of {PROTOCOL}"):
        from_json(line)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_no_bytes_end_the_reader(line: bytes) -> None:
    with pytest.raises(NotAMessage):
        from_json(line)


def test_texts_for_people_are_cut_and_tell_no_terminal_what_to_do() -> None:
    evil = "\x1b[2J\ndpbench: all is well\x07" + "x" * 900_000
    failure = replace(FAILURE, kind=evil, text=evil, place=evil)
    trace = RankTrace(rank=0, failure=failure)
    for message, read in (
        (Leave(reason=evil), lambda message: message.reason),
        (End(error=evil), lambda message: message.error),
        (Welcome(hostname=evil), lambda message: message.hostname),
        (hello(request(1), node(1, address=evil)), lambda message: message.node.address),
        (Result(number=1, traces=(trace,)), lambda message: message.traces[0].failure.kind),
        (Result(number=1, traces=(trace,)), lambda message: message.traces[0].failure.text),
        (Result(number=1, traces=(trace,)), lambda message: message.traces[0].failure.place),
    ):
        text = read(from_json(to_json(message)))
        assert text.isprintable()
        assert text.startswith("\\x1b[2J\\ndpbench: all is well\\x07xx")
        assert text.endswith("…")
        assert len(text) <= 1000


LOST_SECONDS = 0.3
KEYS, OTHER_KEYS = Keys(b"one", b"other"), Keys(b"other", b"one")


@contextmanager
def two_ends(
    lost_seconds: float = LOST_SECONDS,
) -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Two channels to each other, and the socket of the second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = Channel(socket.create_connection(listener.getsockname()), KEYS, lost_seconds)
        connection, _ = listener.accept()
        second = Channel(connection, OTHER_KEYS, lost_seconds)
        try:
            yield first, second, connection
        finally:
            first.close()
            second.close()


def send_for_ever(channel: Channel, message: Message) -> None:
    while True:
        channel.send(message)


def send_until_closed(channel: Channel, message: Message) -> None:
    with suppress(Closed):
        send_for_ever(channel, message)


def test_beats_keep_a_silent_node_alive() -> None:
    with two_ends() as (first, second, _):
        second.start_beats()
        later = Thread(
            target=lambda: (
                time.sleep(3 * LOST_SECONDS),
                second.send(Prepare(number=1, dataset="digits")),
            )
        )
        later.start()
        assert first.receive() == Prepare(number=1, dataset="digits")
        later.join()


def test_silence_is_a_loss_soon_after_its_time() -> None:
    with two_ends() as (first, _, _):
        start = time.monotonic()
        with pytest.raises(Closed, match="no sign of life for 300 ms"):
            first.receive()
        assert time.monotonic() - start < LOST_SECONDS + 2.0


def test_a_message_that_never_ends_is_silence_too() -> None:
    with two_ends() as (first, _, other):
        other.sendall(b"\0\0\1\0" + bytes(32) + b'["Prepare"')
        with pytest.raises(Closed, match="no sign of life"):
            first.receive()


def test_an_end_is_noticed_at_once() -> None:
    with two_ends(lost_seconds=60) as (first, second, _):
        second.close()
        with pytest.raises(Closed, match="its connection was closed"):
            first.receive()
        with pytest.raises(Closed, match="its connection was closed"):
            send_for_ever(first, Leave(reason="x" * 10_000))


def test_who_waits_is_woken_by_closing() -> None:
    with two_ends(lost_seconds=60) as (first, _, _):
        closing = Thread(target=lambda: (time.sleep(0.1), first.close()))
        closing.start()
        with pytest.raises(Closed):
            first.receive()
        closing.join()


def test_what_was_sent_before_finishing_arrives() -> None:
    with two_ends(lost_seconds=60) as (first, second, _):
        first.start_beats()  # what is unread must not break the connection
        second.send(Leave(reason="enough"))
        second.finish()
        assert first.receive() == Leave(reason="enough")
        with pytest.raises(Closed):
            first.receive()


def test_large_messages_pass_and_longer_ones_than_allowed_do_not() -> None:
    large = Prepare(number=1, dataset="x" * 20_000_000)
    with two_ends(lost_seconds=60) as (first, second, other):
        sending = Thread(target=send_until_closed, args=(first, large))
        sending.start()
        assert second.receive() == large
        other.sendall((LONGEST_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(NotAMessage, match="a message of 256 MiB, more than 256 MiB"):
            first.receive()
        second.close()
        sending.join()
