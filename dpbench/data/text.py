"""A user's text as tokens: every byte of the file is one, so the vocabulary is 256.

It is cut into sequences as long as the architecture's context, one after the other; the target of
a token is the one that follows it. The remainder at the end is not used. The last fifth of the
sequences is held out: in one piece, since neighboring sequences are related.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpbench.data.bundled import EVERY
from dpbench.data.registry import Split
from dpbench.errors import DataError


def read(
    path: Path | None, context: int, split: Split | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Tokens and those that follow each, both int64 (n, context), and notes about the file.

    These are all sequences, the training sequences, or the test sequences (the last fifth, at least
    one). The notes are about the whole file, and not repeated for the test split. The arrays take
    16 bytes for each byte of the file. Raises DataError if the file is missing, is no text, or is
    too short.
    """
    content = _content(path)
    count, least = (len(content) - 1) // context, 1 if split is None else 2
    if count < least:
        raise DataError(
            f"{path}: got {len(content):,} B, expected at least {least * context + 1:,}, for "
            f"{least} sequences of {context:,} tokens; take a longer text or a shorter context"
        )
    stream = np.frombuffer(content, dtype=np.uint8, count=count * context + 1).astype(np.int64)
    tokens, following = stream[:-1].reshape(count, context), stream[1:].reshape(count, context)
    train = count if split is None else count - max(1, count // EVERY)
    if split == "test":
        return tokens[train:], following[train:], ()
    digest = hashlib.sha256(content).hexdigest()[:12]
    note = (
        f"{path}: {len(content):,} B, {count:,} sequences of {context:,} tokens, SHA-256 {digest}…"
    )
    return tokens[:train], following[:train], (note,)


def missing_reason(path: Path | None) -> str | None:
    """Why there is no such file, or None if there is; reads nothing."""
    if path is None:
        return "dataset 'text': got no file, expected one of text; give it with --data-dir FILE"
    if path.is_file():
        return None
    what = "a folder" if path.is_dir() else "no file"
    return f"dataset 'text': --data-dir {path}: got {what}, expected a file of text"


def _content(path: Path | None) -> bytes:
    reason = missing_reason(path)
    if path is None or reason is not None:
        raise DataError(reason)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected a file of text") from error
    # Any bytes would work as tokens, but nobody means to train on an archive.
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 text, got {error.reason} at {error.start:,}"
        ) from None
    if b"\0" in content:
        raise DataError(f"{path}: expected UTF-8 text, got zero bytes")
    return content
