"""The secret that the nodes of one sweep share, and its proof by both ends of a connection."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from dpbench import units
from dpbench.errors import StoreError, UsageError
from dpbench.files import open_to_read

VARIABLE = "DPBENCH_TOKEN"
OPTION = "--token-file"
SHORTEST, LONGEST = 16, 1024
"""Limits in characters; a shorter token could be guessed from node 0's answers, one try after the
other."""
REMEDY = f"make one with: (umask 077; openssl rand -hex 16 > token), and give {OPTION} token"


def new_token() -> str:
    """Create 128 random bits, as letters and digits without a special meaning in a shell."""
    return secrets.token_hex(16)


def given_token(file: str | None, environ: Mapping[str, str]) -> str | None:
    """The token from the file or the environment; None if neither has one.

    Raises UsageError for a token that is too short, a file that others can read, and two different
    tokens.
    """
    in_environment = environ.get(VARIABLE)
    if in_environment is not None:
        in_environment = in_environment.strip()  # read from a file, it may end in a line break
        _check(in_environment, VARIABLE)
    if file is None:
        return in_environment
    token = _read(Path(file))
    if in_environment not in (None, token):
        raise UsageError(
            f"{OPTION} {file} and {VARIABLE} hold different tokens; expected one of them"
        )
    return token


def _read(path: Path) -> str:
    where = f"{OPTION} {path}"
    try:
        with open_to_read(path, named_by_user=True) as file:
            found = os.fstat(file.fileno())
            content = file.read(LONGEST + 2)
    except StoreError as error:
        raise UsageError(f"{OPTION}: {error}") from None
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}; expected a file with the token") from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{where}: other users can read it (mode {stat.S_IMODE(found.st_mode):03o}); "
            f"expected a file of yours alone: chmod 600 {path}"
        )
    token = content.decode("ascii", "replace").strip()
    _check(token, where)
    return token


def _check(token: str, where: str) -> None:
    """Check the token's length; the error message does not contain it."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{where}: expected letters and digits in one line; {REMEDY}")
    if not SHORTEST <= len(token) <= LONGEST:
        raise UsageError(
            f"{where}: {len(token)} characters; expected {SHORTEST} to {LONGEST}; {REMEDY}"
        )


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
