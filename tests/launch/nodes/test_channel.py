"""What a connection between two nodes carries, and when it counts as lost."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from dpbench.launch.nodes.channel import LONGEST_BYTES, Channel, Closed
from dpbench.launch.nodes.handshake import Keys
from dpbench.launch.nodes.messages import Leave, Message, NotAMessage, Prepare

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
