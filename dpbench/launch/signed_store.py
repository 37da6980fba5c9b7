"""Values that the nodes of a launch, or its ranks, leave for each other in one TCPStore.

Each value is JSON and carries an HMAC, under the token that all of them share, over the launch, the
key, a counter and the value. Whoever reaches the store can disturb a launch, but cannot forge a
value, move it to another key, or repeat one of an earlier launch.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

VARIABLE = "DPBENCH_TOKEN"
OPTION = "--token-file"
SHORTEST, LONGEST = 16, 1024
"""Limits in characters; a shorter token could be guessed from a signed value."""
REMEDY = f"make one with: (umask 077; openssl rand -hex 16 > token), and give {OPTION} token"
PIECE_BYTES = 4 * 2**20
"""Largest value in the store, which takes 8 MiB at most; longer ones are cut into pieces."""
MOST_PIECES = 256


def new_token() -> str:
    """Create 128 random bits, as letters and digits without a special meaning in a shell."""
    return secrets.token_hex(16)


def given_token(file: str | None, environ: Mapping[str, str]) -> str | None:
    """The token from the file or the environment; None if neither has one.

    Raises UsageError for a token that is too short, a file that others can read, and two different
    tokens. No message contains the token.
    """
    found = {}
    if VARIABLE in environ:
        found[VARIABLE] = environ[VARIABLE].strip()
    if file is not None:
        where = f"{OPTION} {file}"
        try:
            status = Path(file).stat()
            text = Path(file).read_bytes()[: LONGEST + 2] if stat.S_ISREG(status.st_mode) else b""
        except OSError as error:
            raise UsageError(f"{where}: {error.strerror}; expected a file with the token") from None
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise UsageError(
                f"{where}: other users can read it (mode {stat.S_IMODE(status.st_mode):03o}); "
                f"expected a file of yours alone: chmod 600 {file}"
            )
        found[where] = text.decode("ascii", "replace").strip()
    for where, token in found.items():
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise UsageError(f"{where}: expected letters and digits in one line; {REMEDY}")
        if not SHORTEST <= len(token) <= LONGEST:
            raise UsageError(
                f"{where}: {len(token)} characters; expected {SHORTEST} to {LONGEST}; {REMEDY}"
            )
    if len({*found.values()}) > 1:
        raise UsageError(f"{OPTION} and {VARIABLE} hold different tokens; expected one of them")
    return next(iter(found.values()), None)


class SignedStore:
    """The signed values of one member of a launch, which are numbered from 0.

    Every member contributes a random number to the launch id, so what was signed in an earlier
    launch is not accepted in this one. Nobody may put or get anything before `is_complete`.
    """

    def __init__(self, store: Store, token: str, *, member: int, members: int) -> None:
        self._store = store
        self._token = token.encode()
        self._members = members
        self._nonce = f"{secrets.token_hex(16)} of {members}"
        self._member = member
        self._launch = ""
        self._refused: dict[str, bytes] = {}
        self.rejected = 0
        """Number of values that this member has found and not accepted."""
        self.other_token: set[str] = set()
        """Keys of values of this very launch that are signed with another token."""
        store.set(f"hello {member}", self._nonce)

    def is_complete(self) -> bool:
        """Whether all members have come; sets a new launch id, if one came again.

        Raises UsageError if another process has come in the place of this one, or with another
        number of members.
        """
        keys = [f"hello {member}" for member in range(self._members)]
        if not self._store.check(keys):
            return False
        fast = self._store.has_extended_api()  # type: ignore[attr-defined]
        values = self._store.multi_get(keys) if fast else [self._store.get(key) for key in keys]
        nonces = [value.decode("ascii", "replace") for value in values]
        for nonce in nonces:
            if nonce.rpartition(" ")[2] != str(self._members):
                raise UsageError(
                    f"the nodes expect different numbers of nodes: {self._members} here, and "
                    f"{nonce.rpartition(' ')[2][:9]!r} elsewhere; expected the same on all of them"
                )
        if nonces[self._member] != self._nonce:
            raise UsageError(
                f"another process has come as number {self._member} after this one; expected "
                "another number for each"
            )
        self._launch = hashlib.sha256("\n".join(nonces).encode()).hexdigest()[:32]
        return True

    def missing(self) -> list[int]:
        """The members that have not come."""
        return [n for n in range(self._members) if not self._store.check([f"hello {n}"])]

    @property
    def launch(self) -> str:
        """The id of the launch; empty until all members have come."""
        return self._launch

    def leave(self) -> None:
        """Make room for another process with the number of this one."""
        self._store.delete_key(f"hello {self._member}")

    def put(self, key: str, value: Any, counter: int = 0) -> None:
        """Set the key to a value that json.dumps takes."""
        content = zlib.compress(json.dumps(value).encode())
        pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{key}, piece {number}", piece)  # type: ignore[arg-type]
        mac = self._mac(key, counter, content)
        self._store.set(key, f"{self._launch} {counter} {len(pieces)} {mac}")

    def get(self, key: str) -> Any:
        """The value of the key; None if there is none that this launch has signed."""
        return self.counted(key)[1]

    def counted(self, key: str) -> tuple[int, Any]:
        """The counter and the value of the key; -1 and None if there is none."""
        if not self._store.check([key]):
            return -1, None
        header = self._store.get(key)
        try:
            launch, counter, count, mac = header.decode("ascii").split(" ")
            keys = [f"{key}, piece {number}" for number in range(min(int(count), MOST_PIECES))]
            whole = launch == self._launch and self._store.check(keys)
            content = b"".join(map(self._store.get, keys)) if whole else b""
            if whole and hmac.compare_digest(mac, self._mac(key, int(counter), content)):
                return int(counter), json.loads(zlib.decompress(content))
            if launch == self._launch:
                self.other_token.add(key)
        except ValueError:
            pass  # random bytes
        if self._refused.get(key) != header:
            self._refused[key] = header
            self.rejected += 1
        return -1, None

    def forget(self, *keys: str) -> None:
        """Free the memory of values that everybody has read."""
        for key in keys:
            for number in range(MOST_PIECES):
                if not self._store.delete_key(f"{key}, piece {number}"):
                    break
            self._store.delete_key(key)

    def _mac(self, key: str, counter: int, content: bytes) -> str:
        signed = f"{self._launch} {counter} {key}\0".encode() + content
        return hmac.new(self._token, signed, "sha256").hexdigest()
