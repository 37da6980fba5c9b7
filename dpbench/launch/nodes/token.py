"""The secret that the nodes of one sweep share."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from dpbench.errors import StoreError, UsageError
from dpbench.files import open_to_read

TOKEN_VARIABLE = "DPBENCH_TOKEN"
TOKEN_OPTION = "--token-file"
SHORTEST, LONGEST = 16, 1024
"""Limits in characters; a shorter token could be guessed from node 0's answers, one try after the
other."""
REMEDY = f"make one with: (umask 077; openssl rand -hex 16 > token), and give {TOKEN_OPTION} token"


def new_token() -> str:
    """Create 128 random bits, as letters and digits without a special meaning in a shell."""
    return secrets.token_hex(16)


def read_token(file: str | None, environ: Mapping[str, str]) -> str | None:
    """The token from the file or the environment; None if neither has one.

    Raises UsageError for a token that is too short, a file that others can read, and two different
    tokens.
    """
    in_environment = environ.get(TOKEN_VARIABLE)
    if in_environment is not None:
        in_environment = in_environment.strip()  # read from a file, it may end in a line break
        _check(in_environment, TOKEN_VARIABLE)
    if file is None:
        return in_environment
    token = _read(Path(file))
    if in_environment not in (None, token):
        raise UsageError(
            f"{TOKEN_OPTION} {file} and {TOKEN_VARIABLE} hold different tokens; "
            "expected one of them"
        )
    return token


def _read(path: Path) -> str:
    where = f"{TOKEN_OPTION} {path}"
    try:
        with open_to_read(path, named_by_user=True) as file:
            found = os.fstat(file.fileno())
            content = file.read(LONGEST + 2)
    except StoreError as error:
        raise UsageError(f"{TOKEN_OPTION}: {error}") from None
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
