"""Nothing is said to who does not prove the token, and nobody can prove it from what he saw."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from dpbench.launch.nodes import handshake
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    Keys,
    OtherToken,
    Stranger,
    prove_as_lead,
    prove_as_node,
    signature,
)
from dpbench.launch.nodes.messages import Abort, End, NotAMessage, Run, to_json
from tests.builders import trial_spec
from tests.launch.nodes.builders import TOKEN

SECRET = "0123456789abcdef"


Side = Callable[[socket.socket, str], Keys]


class Proving:
    """One side in a thread of its own: the keys that it got, or why it got none."""

    def __init__(self, side: Side, connection: socket.socket, token: str = TOKEN) -> None:
        self.keys: Keys | None = None
        self.error: Stranger | None = None
        self._thread = threading.Thread(target=self._prove, args=(side, connection, token))
        self._thread.start()

    def _prove(self, side: Side, connection: socket.socket, token: str) -> None:
        try:
            self.keys = side(connection, token)
        except Stranger as error:
            self.error = error
            connection.close()

    def end(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def two_ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    with first, second:
        first.settimeout(10)
        yield first, second


def all_that_comes(connection: socket.socket) -> bytes:
    received = b""
    with suppress(OSError):
        while more := connection.recv(2**16):
            received += more
    return received


def test_two_that_know_the_token_get_the_same_keys_and_others_in_each_direction() -> None:
    with two_ends() as (node, lead):
        asking, answering = Proving(prove_as_node, node), Proving(prove_as_lead, lead)
        asking.end()
        answering.end()
    assert asking.keys is not None
    assert answering.keys is not None
    assert asking.keys.sending == answering.keys.receiving
    assert asking.keys.receiving == answering.keys.sending
    assert asking.keys.sending != asking.keys.receiving
    assert str(asking.keys) == "Keys()"


def test_another_token_is_refused_by_both_without_a_proof_of_node_0() -> None:
    with two_ends() as (node, lead):
        asking = Proving(prove_as_node, node, "a token of another sweep")
        answering = Proving(prove_as_lead, lead)
        asking.end()
        answering.end()
    assert isinstance(asking.error, OtherToken)
    assert isinstance(answering.error, OtherToken)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b'["Hello", {"protocol": 1}]\n',
        b"x" * 100_000,
        GREETING,
        GREETING + b"n" * NONCE_BYTES,
        GREETING + b"n" * (NONCE_BYTES + PROOF_BYTES),
        GREETING + b"n" * (NONCE_BYTES + PROOF_BYTES + 100_000),
    ],
    ids=lambda said: f"{said[:12]!r} of {len(said)}",
)
def test_a_stranger_is_told_a_nonce_at_most(said: bytes) -> None:
    with two_ends() as (stranger, lead):
        answering = Proving(prove_as_lead, lead)
        with suppress(OSError):
            stranger.sendall(said)
        with suppress(OSError):
            stranger.shutdown(socket.SHUT_WR)
        received = all_that_comes(stranger)
        answering.end()
    assert answering.error is not None
    assert len(received) in (0, NONCE_BYTES)


def test_who_poses_as_node_0_learns_a_proof_that_is_worth_nothing_elsewhere() -> None:
    with two_ends() as (node, impostor), two_ends() as (replayed, lead):
        asking = Proving(prove_as_node, node)
        greeting = impostor.recv(len(GREETING) + NONCE_BYTES)
        impostor.sendall(b"n" * NONCE_BYTES)
        proof = impostor.recv(PROOF_BYTES)
        answering = Proving(prove_as_lead, lead)
        replayed.sendall(greeting)
        assert len(replayed.recv(NONCE_BYTES)) == NONCE_BYTES
        replayed.sendall(proof)
        assert all_that_comes(replayed) == b""
        answering.end()
        impostor.sendall(proof)  # the proof of a node is none of node 0
        asking.end()
    assert isinstance(answering.error, OtherToken)
    assert isinstance(asking.error, OtherToken)


def test_who_sends_a_byte_now_and_then_has_no_more_time_than_the_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.4)
    with two_ends() as (stranger, lead):
        answering = Proving(prove_as_lead, lead)
        start = time.monotonic()
        with suppress(OSError):
            for byte in GREETING + b"n" * NONCE_BYTES:
                stranger.sendall(bytes([byte]))
                time.sleep(0.1)
        answering.end()
    assert time.monotonic() - start < 4.0
    assert str(answering.error) == "no proof of the token within 400 ms"


KEYS = Keys(b"to", b"from")
ORDER = Run(
    number=1,
    trial=trial_spec(nodes=(1, 1)),
    limit_seconds=1.0,
    address="127.0.0.1",
    port=4000,
    store_prefix="secret",
)


def frame(number: int, content: bytes, key: bytes = KEYS.receiving) -> bytes:
    return len(content).to_bytes(4, "big") + signature(key, number, content) + content


@pytest.mark.parametrize(
    "frames",
    [
        [frame(0, to_json(ORDER), key=b"of a stranger")],
        [frame(0, to_json(ORDER), key=KEYS.sending)],  # what this end has said itself
        [frame(0, to_json(Abort(number=1))), frame(0, to_json(Abort(number=1)))],
        [frame(1, to_json(Abort(number=1)))],
        [frame(0, to_json(Abort(number=1)))[:-2] + b"7}]"],
    ],
    ids=["another key", "the other direction", "repeated", "one left out", "changed"],
)
def test_a_message_that_is_forged_repeated_left_out_or_changed_is_none(
    frames: list[bytes],
) -> None:
    with two_ends() as (first, second):
        second.sendall(b"".join(frames))
        with closing(tcp(first)) as channel:
            for _ in frames[1:]:
                assert channel.receive() == Abort(number=1)
            with pytest.raises(NotAMessage, match="a message that was changed on its way"):
                channel.receive()


def test_signed_messages_pass_in_their_order() -> None:
    with two_ends() as (first, second):
        second.sendall(frame(0, to_json(ORDER)) + frame(1, to_json(End())))
        with closing(tcp(first)) as channel:
            assert channel.receive() == ORDER
            assert channel.receive() == End()
            second.close()
            with pytest.raises(Closed):
                channel.receive()


def tcp(connection: socket.socket) -> Channel:
    """A channel over a pair of sockets, which have no TCP_NODELAY."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpbench.launch.nodes.channel.socket.TCP_NODELAY", socket.SO_KEEPALIVE)
        patch.setattr("dpbench.launch.nodes.channel.socket.IPPROTO_TCP", socket.SOL_SOCKET)
        return Channel(connection, KEYS, 5.0)
