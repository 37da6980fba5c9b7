"""A store whose values are signed, in which the nodes of a sweep or the ranks of a launch leave
values for each other.

Each value is JSON and carries an HMAC, under the token that all members share, over the launch, the
key and the value. Whoever reaches the store without it can disturb a launch, but cannot forge a
value, move it to another key, or repeat one of an earlier launch. A value that changes counts its
changes, so that an earlier one is known as such. The ranks of a training may have no token; then
they trust the store, as torch does.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpbench import units
from dpbench.errors import DpbenchError, UsageError
from dpbench.rendezvous.barrier import wait_until

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

TOKEN_VARIABLE = "DPBENCH_TOKEN"
MIN_TOKEN_LENGTH = 16
"""Fewest characters; a shorter token could be guessed from a signed value."""
TOKEN_REMEDY = "make one with: openssl rand -hex 16"
ARRIVAL_SECONDS = 300.0
"""Seconds that members wait for each other at the start."""
ALGORITHM = "sha256"
MAC_BYTES = hashlib.new(ALGORITHM).digest_size
MAX_BYTES = 8 * 2**20 - MAC_BYTES
"""Largest value after compression; torch's store ends the connection of who sends more."""


def given_token(environ: Mapping[str, str]) -> str | None:
    """The token in the environment; None if there is none.

    Raises UsageError, which does not contain the token, if it is too short.
    """
    token = environ.get(TOKEN_VARIABLE)
    if token is not None and len(token := token.strip()) < MIN_TOKEN_LENGTH:
        raise UsageError(
            f"{TOKEN_VARIABLE}: {len(token)} characters; expected at least {MIN_TOKEN_LENGTH}; "
            f"{TOKEN_REMEDY}"
        )
    return token


class SignedStore:
    """The values of one launch, as one of its members sees them.

    Every member contributes a random number to the launch id, so what was signed in an earlier
    launch is not accepted in this one.
    """

    def __init__(self, store: Store, token: str, kind: str, *, member: int, members: int) -> None:
        """`kind` is what messages call a member: node or rank."""
        self._store = store
        self._token = token.encode()
        self._kind = kind
        self._member = member
        self._members = range(members)
        self.launch_id = ""
        """Empty until all members have come."""

    def wait_for_members(self, description: object, seconds: float) -> list[Any]:
        """Wait for all members and return their descriptions.

        Raises DpbenchError with those that are missing when the time is over, and UsageError for a
        number that two members have.
        """
        nonce = secrets.token_hex(16).encode()
        self._store.set(f"hello {self._member}", nonce)  # type: ignore[arg-type]
        has = self._store.check
        missing: dict[int, str] = {}

        def have_all_joined() -> bool:
            missing.clear()
            missing.update({n: "" for n in self._members if not has([f"hello {n}"])})
            if missing:
                return False
            nonces = [self._store.get(f"hello {n}") for n in self._members]
            if nonces[self._member] != nonce:
                raise UsageError(
                    f"another process has come as {self._kind} {self._member} after this one; "
                    "expected another number for each"
                )
            launch_id = hashlib.sha256(b"\n".join(nonces)).hexdigest()[:32]
            if launch_id != self.launch_id:  # also where a member has come again
                self.launch_id = launch_id
                self.put(f"member {self._member}", description)
            for n in self._members:
                if self.get(f"member {n}") is None:
                    missing[n] = " (with another token)" if has([f"member {n}"]) else ""
            return not missing

        if not wait_until(have_all_joined, seconds):
            names = " and ".join(f"{self._kind} {n}{remark}" for n, remark in missing.items())
            raise DpbenchError(
                f"{names} did not come within {units.seconds(seconds)}; start the same command "
                "there, or look at its output"
            )
        return [self.get(f"member {n}") for n in self._members]

    def put(self, key: str, value: object) -> None:
        """Set the key to a value that json.dumps takes, other than None. Raises DpbenchError for a
        value that is too large for torch's store."""
        content = zlib.compress(json.dumps(value).encode())
        if len(content) > MAX_BYTES:
            size, most = units.bytes_binary(len(content)), units.bytes_binary(MAX_BYTES)
            raise DpbenchError(f"{key} takes {size}, expected at most {most}; measure fewer steps")
        self._store.set(key, self._mac(key, content) + content)  # type: ignore[arg-type]

    def get(self, key: str) -> Any:
        """The value of the key; None if this launch has signed none."""
        if not self._store.check([key]):
            return None
        stored = self._store.get(key)
        mac, content = stored[:MAC_BYTES], stored[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(key, content)):
            return None
        return json.loads(zlib.decompress(content))

    def _mac(self, key: str, content: bytes) -> bytes:
        return hmac.digest(self._token, f"{self.launch_id} {key}\0".encode() + content, ALGORITHM)
