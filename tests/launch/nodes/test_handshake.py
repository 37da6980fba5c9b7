"""Nothing is said to who does not prove the token, and nobody can prove it from what he saw."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.launch.nodes import handshake
from dpbench.launch.nodes.channel import Channel, Closed
from dpbench.launch.nodes.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    VARIABLE,
    Keys,
    OtherToken,
    Stranger,
    given_token,
    new_token,
    prove_as_lead,
    prove_as_node,
    signature,
)
from dpbench.launch.nodes.messages import Abort, End, NotAMessage, Run, to_json
from dpbench.launch.nodes.node import NodeRequest
from tests.builders import trial_spec
from tests.launch.nodes.builders import TOKEN, request

SECRET = "0123456789abcdef"


def token_file(folder: Path, content: str = f"{SECRET}\n", mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def test_a_new_token_is_another_every_time_and_good_enough_to_be_given() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert given_token(None, {VARIABLE: token}) == token
        assert token.isalnum()


def test_the_file_and_the_environment_say_the_same_or_one_of_them_is_there(tmp_path: Path) -> None:
    path = token_file(tmp_path)
    assert given_token(None, {}) is None
    assert given_token(None, {VARIABLE: f"{SECRET}\n"}) == SECRET
    assert given_token(path, {}) == SECRET
    assert given_token(path, {VARIABLE: SECRET}) == SECRET
    with pytest.raises(UsageError, match="hold different tokens"):
        given_token(path, {VARIABLE: SECRET + "x"})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, mode=mode)
    with pytest.raises(UsageError, match=f"other users can read it.*chmod 600 {path}"):
        given_token(path, {})


def test_what_is_no_file_is_refused_and_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, words in (
        (pipe, "pipe is a pipe; expected a regular file"),
        (tmp_path, "is a folder; expected a regular file"),
        (Path("/dev/zero"), "is a device; expected a regular file"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(UsageError, match=words):
            given_token(str(path), {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "0 characters; expected 16 to 1024"),
        ("tooshort", "8 characters"),
        ("z" * 2000, "expected 16 to 1024"),
        (f"{SECRET}\n{SECRET}", "in one line"),
        (f"{SECRET}\x1b[2J", "letters and digits"),
        (f"{SECRET} {SECRET}", "letters and digits"),
    ],
)
def test_a_token_that_is_none_is_refused_and_not_shown(
    tmp_path: Path, content: str, words: str
) -> None:
    for file, environ in ((token_file(tmp_path, content), {}), (None, {VARIABLE: content})):
        with pytest.raises(UsageError, match=words) as raised:
            given_token(file, environ)
        assert SECRET not in str(raised.value)


def test_nothing_that_is_printed_holds_it() -> None:
    asked: NodeRequest = request(1)
    assert asked.token == TOKEN
    assert TOKEN not in repr(asked)


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
