"""The proof by both ends of a connection that they know the token of the sweep."""

from __future__ import annotations

import hmac
import secrets
import socket
from dataclasses import dataclass, field
from time import monotonic

from dpbench import units

GREETING = b"dpbench\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
"""The size of an HMAC-SHA256."""
HANDSHAKE_SECONDS = 5.0
"""Time limit of the whole exchange, which takes two round trips."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that sign the messages of one connection, one per direction."""

    sending: bytes = field(repr=False)
    receiving: bytes = field(repr=False)


class Stranger(Exception):
    """The other end has not proved that it knows the token; the text says how it failed."""


class OtherToken(Stranger):
    """The other end has another token or none: it ended the exchange when it had this end's proof,
    or gave a wrong one."""


def prove_as_node(connection: socket.socket, token: str) -> Keys:
    """The node's side; raises Stranger."""
    exchange = _Exchange(connection)
    nonce = secrets.token_bytes(NONCE_BYTES)
    exchange.send(GREETING + nonce)
    nonces = nonce + exchange.receive(NONCE_BYTES)
    exchange.send(_digest(token, b"proof of a node", nonces))
    try:
        proof = exchange.receive(PROOF_BYTES)
    except Stranger as error:
        raise OtherToken(str(error)) from None
    if not hmac.compare_digest(proof, _digest(token, b"proof of node 0", nonces)):
        raise OtherToken("it does not know the token")
    return Keys(
        sending=_digest(token, b"from a node", nonces),
        receiving=_digest(token, b"from node 0", nonces),
    )


def prove_as_lead(connection: socket.socket, token: str) -> Keys:
    """Node 0's side; raises Stranger, after sending only a nonce."""
    exchange = _Exchange(connection)
    if exchange.receive(len(GREETING)) != GREETING:
        raise Stranger("it is no node of dpbench")
    nonce = exchange.receive(NONCE_BYTES)
    own_nonce = secrets.token_bytes(NONCE_BYTES)
    exchange.send(own_nonce)
    nonces = nonce + own_nonce
    proof = exchange.receive(PROOF_BYTES)
    if not hmac.compare_digest(proof, _digest(token, b"proof of a node", nonces)):
        raise OtherToken("it does not know the token")
    exchange.send(_digest(token, b"proof of node 0", nonces))
    return Keys(
        sending=_digest(token, b"from node 0", nonces),
        receiving=_digest(token, b"from a node", nonces),
    )


def signature(key: bytes, number: int, content: bytes) -> bytes:
    """Sign the message with its number in its direction, so that none can be repeated or left
    out."""
    return hmac.digest(key, number.to_bytes(8, "big") + content, "sha256")


def _digest(token: str, purpose: bytes, nonces: bytes) -> bytes:
    assert token, "a sweep over several nodes has a token"
    return hmac.digest(token.encode(), purpose + b"\0" + nonces, "sha256")


class _Exchange:
    """Parts of fixed length over a connection, all within one deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = monotonic() + HANDSHAKE_SECONDS

    def send(self, part: bytes) -> None:
        try:
            self._connection.settimeout(self._seconds_left())
            self._connection.sendall(part)
        except OSError as error:
            raise Stranger(_words(error)) from None

    def receive(self, count: int) -> bytes:
        part = b""
        while len(part) < count:
            try:
                self._connection.settimeout(self._seconds_left())
                more = self._connection.recv(count - len(part))
            except OSError as error:
                raise Stranger(_words(error)) from None
            if not more:
                raise Stranger("it closed the connection")
            part += more
        return part

    def _seconds_left(self) -> float:
        if (left := self._deadline - monotonic()) <= 0:
            raise TimeoutError
        return left


def _words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no proof of the token within {units.seconds(HANDSHAKE_SECONDS)}"
    if isinstance(error, ConnectionError):
        return "it closed the connection"
    return error.strerror or str(error)
